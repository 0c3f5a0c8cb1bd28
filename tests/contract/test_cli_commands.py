"""The command line: help with examples, one-line errors, exit codes, and nothing heavy before it is needed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_oodkit import cli
from rl_oodkit.core.errors import ParameterError, RunInterrupted

COMMANDS = ["list", "train", "collect", "certify", "bench ood", "bench speed", "reproduce", "verify", "doctor"]


@pytest.fixture
def shell(capsys):
    """Run the command line in this process; return exit code, output and errors."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        os.environ.pop("RL_OODKIT_DEBUG", None)
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_that_is_a_call(shell, command):
    """`--help` ends with code 0 and shows a call of the very command."""
    code, out, _ = shell(*command.split(), "--help")
    assert code == 0 and "Examples:" in out
    assert re.search(rf"^\s+rl-oodkit {command}\b", out, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_the_help_parse(shell, command, monkeypatch):
    """Each example's words are accepted by the parser of its command."""
    _, out, _ = shell(*command.split(), "--help")
    examples = re.findall(r"^\s+rl-oodkit (.+)$", out, re.M)
    assert examples
    for example in examples:
        code, _, err = shell(*example.split(), "--no-such-option")
        assert code == 2 and "no-such-option" in err, example


def test_the_list_of_commands_is_complete(shell):
    """The help of the whole names every command."""
    _, out, _ = shell("--help")
    assert all(re.search(rf"^\s+{name.split()[0]}\b", out, re.M) for name in COMMANDS)


def test_exit_codes(shell):
    """0 for success, 1 for a named error, 2 for a wrong call."""
    assert shell("list")[0] == 0
    code, out, err = shell("list", "detectr")
    assert code == 1 and "detector" in err and "Traceback" not in err and not out
    assert shell("lst")[0] == 2 and shell("list", "--wrong")[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "--profile", "quik", "--dry-run"),
        ("reproduce", "ood_bord", "--dry-run"),
        ("collect", "--injector", "nois", "--out", "x.npz"),
        ("collect", "--split", "tset", "--out", "x.npz"),
        ("collect", "--injector", "noise", "--strength", "enormous", "--out", "x.npz"),
        ("collect", "--policy", "dqn-luna", "--out", "x.npz"),
        ("collect", "-n", "0", "--out", "x.npz"),
        ("bench", "ood", "--detectors", "gm/transition", "--list-cells"),
        ("bench", "ood", "--families", "dely", "--list-cells"),
        ("bench", "ood", "--cells", "noise:enormous", "--list-cells"),
        ("bench", "ood", "--fit", "0", "--list-cells"),
        ("bench", "ood", "--spec", "no/such.toml", "--list-cells"),
        ("bench", "speed", "--only", "nothing"),
        ("train", "dqn-lunarlnder"),
        ("verify", "99"),
        ("verify", "fautls"),
    ],
)
def test_mistakes_are_one_line_and_code_1(shell, words, tmp_path, monkeypatch):
    """A wrong id, level, split or size is a named error in one line, and no file is left."""
    monkeypatch.chdir(tmp_path)
    code, _, err = shell(*words)
    assert code == 1, (words, err)
    assert err.startswith("error: ") and "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*.npz"))


def test_debug_shows_the_traceback(shell):
    """With `--debug` the same mistake comes with its origin."""
    code, _, err = shell("--debug", "list", "detectr")
    assert code == 1 and "Traceback" in err and "UnknownIdError" in err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ParameterError("n is 0"), 1, "error: n is 0"),
        (
            RunInterrupted("3 of 9 units are finished", instead="Run it again."),
            130,
            "3 of 9 units are finished. Run it",
        ),
        (KeyboardInterrupt(), 130, "interrupted before it was done. Give the same command again"),
        (ValueError("deep inside"), 1, "should have been caught earlier"),
    ],
)
def test_errors_become_codes(shell, monkeypatch, error, code, says):
    """Named errors, interrupts and unexpected errors end with their code and say what to do."""

    def fail(*args):
        raise error

    monkeypatch.setattr("rl_oodkit.core.registry.kinds", fail)
    found, _, err = shell("list")
    assert found == code and says in err and "Traceback" not in err


def test_dry_run_and_list_run_nothing(shell, tmp_path):
    """Planning names experiments and parameters and leaves no file."""
    code, out, _ = shell("reproduce", "--profile", "smoke", "--dry-run", "--out", str(tmp_path / "out"))
    plan = dict(line.split("  ", 1) for line in out.splitlines() if line.endswith("}"))
    assert code == 0 and json.loads(plan["ood_policy"])["n_episodes"] > 0 and not (tmp_path / "out").exists()
    code, out, _ = shell("reproduce", "--list")
    assert code == 0 and "group demo" in out and "ood_board" in out and "resamples: int" in out


def test_collect_writes_what_it_says(shell, tmp_path):
    """The file holds the asked number of episodes and the strength of the level."""
    from rl_oodkit.training.trajectories import load

    path = tmp_path / "x.npz"
    code, out, err = shell("collect", "--injector", "noise", "--strength", "light", "-n", "2", "--out", str(path))
    assert code == 0, err
    trajs = load(path)
    assert trajs.n_episodes == 2 and "2 episodes" in out and trajs.active.any()


def test_collect_replaces_a_file_only_by_force(shell, tmp_path, monkeypatch):
    """Whoever has made it; nothing is flown before the refusal, and the bytes are as they were."""
    path, words = tmp_path / "x.npz", ("collect", "-n", "2", "--out", str(tmp_path / "x.npz"))
    path.write_text("a thesis")
    with monkeypatch.context() as patch:
        patch.setattr("rl_oodkit.ood.collect.collect", None)
        code, _, err = shell(*words)
    assert code == 1 and "x.npz exists already" in err and "force" in err and len(err.splitlines()) == 1
    assert path.read_text() == "a thesis" and [p.name for p in tmp_path.iterdir()] == ["x.npz"]
    assert shell(*words, "--force")[0] == 0 and path.read_bytes()[:2] == b"PK"


@pytest.mark.parametrize("command", [("collect", "-n", "2"), ("bench", "ood", "--cells", "null")])
def test_a_target_that_cannot_be_written_ends_the_command_at_once(shell, tmp_path, monkeypatch, command):
    """A folder, or a path through a file, is found out before the work and not after it."""
    monkeypatch.setattr("rl_oodkit.ood.collect.collect", None)
    monkeypatch.setattr("rl_oodkit.ood.benchmark.run_board", None)
    (tmp_path / "file").write_text("x")
    for out in (tmp_path, tmp_path / "file" / "x"):
        code, _, err = shell(*command, "--out", str(out))
        assert code == 1 and len(err.splitlines()) == 1 and "caught earlier" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_environments_are_listed_whatever_table_they_are_in(shell):
    """All ids that Gymnasium knows from here, with a line and parameters."""
    from rl_oodkit.envs.registration import CERTIFIED, ELSEWHERE

    code, out, _ = shell("list", "env")
    ids = [line.split()[0] for line in out.splitlines()]
    own = {name for name in ids if not name.startswith("tests/")}  # other tests may have registered one of theirs
    assert code == 0 and ids == sorted(ids) and own == {*CERTIFIED, *ELSEWHERE, "lunarlander"}
    assert "suite=None" in out and "turns=2" in out


def test_help_and_list_are_light():
    """Help and a list of kinds load no heavy library."""
    heavy = ("torch", "stable_baselines3", "matplotlib", "papermill", "sklearn")
    code = (
        "import sys\nfrom rl_oodkit.cli import main\n"
        "for words in (['--help'], ['reproduce', '--help'], ['list']):\n"
        "    try:\n        main(words)\n    except SystemExit as end:\n        assert end.code == 0\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]", done.stderr


def test_ctrl_c_ends_with_130_and_the_way_to_resume(tmp_path):
    """An interrupted `reproduce` says how to go on, leaves no half-made result, and no failure."""
    out = tmp_path / "out"
    words = ["reproduce", "ood_policy", "--profile", "smoke", "--executor", "serial", "--out", str(out)]
    code = f"from rl_oodkit.cli import main; main({words!r})"
    environment = {**os.environ, "RL_OODKIT_RUNS": str(tmp_path / "runs")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while not list(out.glob(".ood_policy.*.part/*.ipynb")) and time.time() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "again to resume" in err and "Traceback" not in err
    assert [p.name for p in Path(out).iterdir() if not p.name.startswith(".")] == []
