"""Build rl_oodkit from settings.ini, the one place where its metadata lives."""

import shlex
import shutil
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SHIPPED = {  # place in the clone -> place below rl_oodkit/_data in the wheel
    "data/checkpoints": "checkpoints",
    "data/suites": "suites",
    "nbs/experiments/profiles.toml": "profiles.toml",
}
parser = ConfigParser(delimiters=["="])
parser.read(ROOT / "settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]


def shipped_files() -> list[tuple[Path, Path]]:
    """Pair each data file of the clone, relative to its root, with its path below rl_oodkit/_data."""
    pairs = []
    for source, target in SHIPPED.items():
        top = ROOT / source
        files = sorted(p for p in top.rglob("*") if p.is_file()) if top.is_dir() else [top] if top.is_file() else []
        pairs += [(p.relative_to(ROOT), Path(target) / p.relative_to(top)) for p in files]
    return pairs


class BuildWithData(build_py):
    """Copy the shipped checkpoints, suites and profiles into the wheel, so that git holds them once."""

    def run(self):
        """Build the package and add the data; an editable install reads the clone instead."""
        super().run()
        if not self.editable_mode:
            for source, target in shipped_files():
                place = Path(self.build_lib) / "rl_oodkit" / "_data" / target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / source, place)

    def get_source_files(self):
        """Name the files that the source distribution needs besides the modules."""
        return [*super().get_source_files(), "settings.ini", *(str(source) for source, _ in shipped_files())]


extras = {k.removesuffix("_requirements"): shlex.split(v) for k, v in cfg.items() if k.endswith("_requirements")}
readme = ROOT / "README.md"

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    author=cfg["author"],
    license="Apache-2.0",
    keywords=shlex.split(cfg["keywords"]),
    packages=find_packages(include=["rl_oodkit", "rl_oodkit.*"]),
    package_data={"rl_oodkit": ["py.typed"]},
    python_requires=f">={cfg['min_python']}",
    install_requires=shlex.split(cfg["requirements"]),
    extras_require=extras,
    entry_points={
        "console_scripts": shlex.split(cfg["console_scripts"]),
        "gymnasium.envs": ["rl_oodkit = rl_oodkit.envs.registration:register_all"],
    },
    cmdclass={"build_py": BuildWithData},
)
