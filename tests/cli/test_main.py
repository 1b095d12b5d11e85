"""The command esper: the same as python -m esper.COMMAND, and quick where nothing has to be computed."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import hydra
import pytest

from esper import __main__ as esper_main
from tests.cli.test_disturbed import ENDLESS, wait_for_checkpoints
from tests.forked import Forked, run_forked

ROOT = Path(__file__).parents[2]
MAIN = "esper.__main__"


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the command in this process, and returns its exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["esper", *words])
        code = 0
        try:
            esper_main.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


def test_help_fits_one_screen_and_names_every_command(say) -> None:
    code, out, err = say("--help")
    assert (code, err) == (0, "")
    assert say() == (0, out, "")
    lines = out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 110
    assert all(f"  {name:<12}{about}" in lines for name, about in esper_main.COMMANDS.items())


def test_version_is_that_of_the_project(say) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert say("--version") == (0, f"esper {version}\n", "")
    train = [sys.executable, "-m", "esper.train", "--version"]
    text = subprocess.run(train, capture_output=True, text=True, check=True).stdout
    assert text == f"esper {version} (Hydra {hydra.__version__})\n"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "trian",
            "there is no command trian: choose from train, evaluate, compare, report, export, completion; did you mean train?",
        ),
        ("esper.evaluate", "; did you mean evaluate?"),
        ("--verbose", "there is no command --verbose: choose from train, "),
        ("hosts=64", "hosts=64 is not a command: put one in front, as in esper train hosts=64"),
    ],
)
def test_an_unknown_command_gets_one_sentence(say, command: str, sentence: str) -> None:
    code, out, err = say(command)
    assert (code, out) == (2, "")
    assert err.startswith("esper: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_every_command_is_a_module() -> None:
    for command in esper_main.COMMANDS:
        assert 'if __name__ == "__main__":' in (ROOT / "esper" / f"{command}.py").read_text()


def test_help_and_version_import_nothing_heavy() -> None:
    """They answer within 0.1 s, since nothing but the table is imported; a limit of time would depend on the machine."""
    code = (
        "import sys; before = set(sys.modules); from esper import __main__ as m\n"
        "for word in ('--help', '--version'): sys.argv[1:] = [word]; m.main()\n"
        "print(len(set(sys.modules) - before), [n for n in ('torch', 'numpy', 'hydra', 'omegaconf') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    count, heavy = done.stdout.splitlines()[-1].split(" ", 1)
    assert heavy == "[]"
    assert int(count) < 120


@pytest.mark.parametrize("words", [["-m", "seed=1,-2"], ["--help"]], ids=" ".join)
def test_a_command_says_what_its_module_says(tmp_path: Path, words: list[str]) -> None:
    one = run_forked(MAIN, "train", *words, cwd=tmp_path)
    other = run_forked("esper.train", *words, cwd=tmp_path)
    assert one.stdout + one.stderr
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)


def test_modules_are_searched_beside_the_caller_not_beside_the_script(
    say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with python -m, so that plugins=[my_parts] finds my_parts.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/bin", *sys.path[1:]])
    monkeypatch.setattr("runpy.run_module", lambda name, **_: print(name, sys.path[0], *sys.argv[1:]))
    assert say("train", "hosts=8") == (0, f"esper.train {tmp_path} hosts=8\n", "")


def test_an_interrupted_run_says_how_to_resume(tmp_path: Path) -> None:
    command = Forked(MAIN, "train", *ENDLESS, f"hydra.run.dir={tmp_path}", cwd=ROOT)
    wait_for_checkpoints(tmp_path)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate()
    assert command.returncode == 130
    assert f"resume with: python -m esper.train resume={tmp_path}" in err
