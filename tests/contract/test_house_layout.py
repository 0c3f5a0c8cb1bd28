"""One notebook, one module; one source for each fact; a wheel that holds what a user needs."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser

import pytest
import yaml
from house import NBS, PACKAGE, ROOT, chapters, default_exp, load_script, modules, notebooks, read_notebook

EXPERIMENTS = NBS / "experiments"
PROJECT_KEYS = {"type", "output-dir", "preview", "resources", "render", "execute-dir", "title"}


def settings() -> dict[str, str]:
    """Return settings.ini."""
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return dict(parser["DEFAULT"])


def quarto() -> dict:
    """Return _quarto.yml."""
    return yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))


def expected_module(notebook) -> str:
    """Return the module that a notebook's place and name promise."""
    relative = notebook.relative_to(NBS).with_suffix("")
    name = re.sub(r"^\d+[a-z]?_", "", relative.name)
    return ".".join([*relative.parts[:-1], "__init__" if name == "api" else name])


def test_one_notebook_one_module():
    """A chapter exports the module of its own name and folder, and every module has a chapter."""
    wrong = {p: default_exp(p) for p in chapters() if default_exp(p) != expected_module(p)}
    assert not wrong
    written = {PACKAGE / f"{default_exp(p).replace('.', '/')}.py" for p in chapters()}
    assert written == set(modules())
    assert len(written) == len(chapters())


def test_only_index_and_experiments_export_nothing():
    """Everything else in nbs/ is a chapter."""
    others = [p for p in notebooks() if not default_exp(p)]
    assert all(p.parent == EXPERIMENTS or p == NBS / "index.ipynb" for p in others)


def test_version_is_one():
    """The package, its metadata and the citation name the same version."""
    import rl_oodkit

    assert rl_oodkit.__version__ == settings()["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == settings()["version"] and citation["license"] == "Apache-2.0"
    assert f"## {settings()['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_cleaner_keeps_the_parameters_tag():
    """Without the tag papermill would put its values before the defaults, and every run would use the defaults."""
    from nbdev.clean import _nbdev_clean

    nb = {
        "cells": [{"cell_type": "code", "id": "a", "metadata": {"tags": ["parameters"]}, "outputs": [], "source": "x"}]
    }
    _nbdev_clean(nb | {"metadata": {}, "nbformat": 4, "nbformat_minor": 5}, path=None)
    assert nb["cells"][0]["metadata"] == {"tags": ["parameters"]}


def test_quarto_file_is_valid():
    """Known keys, existing pages, and the same title and folder as settings.ini."""
    site = quarto()
    assert set(site["project"]) <= PROJECT_KEYS
    assert site["project"]["output-dir"] == settings()["doc_path"]
    assert site["website"]["title"] == settings()["title"]
    assert site["website"]["description"] == settings()["description"]
    assert (NBS / "_quarto.yml").resolve() == ROOT / "_quarto.yml"


def test_every_notebook_is_in_the_sidebar_once():
    """A page that no reader can reach does not exist."""
    build = load_script(ROOT / "docs" / "build.py", "docs_build")
    listed = ["index.ipynb", *(n for _, names in build.sidebar() for n in names)]
    assert sorted(listed) == sorted(p.relative_to(NBS).as_posix() for p in notebooks())
    assert quarto()["website"]["sidebar"]["contents"][0] == "index.ipynb"


def test_nothing_else_at_the_root():
    """The root holds the files a repository is expected to have."""
    expected = """settings.ini _quarto.yml pyproject.toml setup.py Makefile README.md LICENSE CITATION.cff CHANGELOG.md
    CONTRIBUTING.md SECURITY.md .ci .gitignore .gitattributes .pre-commit-config.yaml nbs rl_oodkit tests data docs"""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git repository")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= set(expected.split())
    assert all((ROOT / name).exists() for name in expected.split())


def test_the_continuous_integration_script_is_sound():
    """It parses, is executable, and ends with pytest, whose closing line must be the last."""
    script = ROOT / ".ci" / "run"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert script.stat().st_mode & 0o111
    assert " -m pytest " in script.read_text(encoding="utf-8").splitlines()[-1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Copy what packaging reads, so that a build leaves nothing in the clone."""
    folder = tmp_path_factory.mktemp("sources")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("setup.py", "settings.ini", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("rl_oodkit", "data/checkpoints"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    if (EXPERIMENTS / "profiles.toml").exists():
        (folder / "nbs" / "experiments").mkdir(parents=True)
        shutil.copy(EXPERIMENTS / "profiles.toml", folder / "nbs" / "experiments")
    return folder


def shipped() -> set[str]:
    """Return what the wheel must hold besides the modules."""
    data = {f"rl_oodkit/_data/checkpoints/{p.name}" for p in (ROOT / "data" / "checkpoints").glob("*") if p.is_file()}
    profiles = {"rl_oodkit/_data/profiles.toml"} if (EXPERIMENTS / "profiles.toml").exists() else set()
    return data | profiles | {"rl_oodkit/py.typed"}


def build(kind: str, folder, out) -> str:
    """Build a wheel or a source distribution without any network."""
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_the_wheel_holds_modules_types_and_data(sources, tmp_path):
    """A user without the clone has every module, the type marker, the checkpoints and the profiles."""
    with zipfile.ZipFile(tmp_path / build("wheel", sources, tmp_path)) as wheel:
        names = set(wheel.namelist())
    assert {p.relative_to(ROOT).as_posix() for p in modules()} | shipped() <= names
    assert not [n for n in names if n.startswith(("tests", "nbs", "data"))]


def test_a_wheel_can_be_built_from_the_source_distribution(sources, tmp_path):
    """Whoever packages us starts from the sdist and gets the same wheel."""
    with tarfile.open(tmp_path / build("sdist", sources, tmp_path)) as sdist:
        sdist.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(tmp_path / build("wheel", folder, tmp_path)) as wheel:
        assert {p.relative_to(ROOT).as_posix() for p in modules()} | shipped() <= set(wheel.namelist())


def test_notebooks_name_the_kernel_of_the_environment():
    """Every notebook runs on `python3`, the kernel of whatever environment it is opened in."""
    kernels = {p.name: read_notebook(p)["metadata"].get("kernelspec", {}).get("name") for p in notebooks()}
    assert set(kernels.values()) == {"python3"}, kernels
