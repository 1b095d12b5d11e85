"""Every example of a tracker trains two runs and reads them back, and is short enough to be read at once."""

import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.forked import in_fork, run_forked
from tests.telemetry.tracker_fixtures import ALL, mlflow_tables, no_network, warm  # noqa: F401  (fixtures)

EXAMPLES = Path(__file__).parents[2] / "examples" / "trackers"
SHOWN = {"csv": "run 0  run 1", "mlflow": "seed 2, return", "wandb": "policy/return", "aim": "seed 2: 1: "}
"""What each prints of its runs."""
SMALL = ["env=sandbox", "hosts=4", "steps=6", "updates=1", "agent.epochs=1", "agent.baseline=critic", "telemetry=quiet"]


def test_every_tracker_has_an_example() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {f"{name}_runs.py" for name in SHOWN}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    """In a fork, and `python -m esper.train` in forks of that: seconds faster than new interpreters."""
    if name == "csv":
        pytest.importorskip("pandas", reason="pip install -e '.[compare]'")
    warm(name)
    path, start = EXAMPLES / f"{name}_runs.py", subprocess.run

    def run(command: list[str], *, check: bool) -> None:
        assert check
        if command[:3] == [sys.executable, "-m", "esper.train"]:
            done = run_forked("esper.train", *command[3:], cwd=tmp_path)
        else:
            done = start(command, capture_output=True, text=True, check=False)
            print(done.stdout)
        assert done.returncode == 0, done.stderr

    def example() -> dict[str, Any]:
        os.chdir(tmp_path)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run, sys.argv = run, [str(path), *SMALL]  # pyright: ignore[reportAttributeAccessIssue]
        with redirect_stdout(StringIO()) as out:
            runpy.run_path(str(path), run_name="__main__")
        return {"out": out.getvalue()}

    assert SHOWN[name] in in_fork(example)["out"]
    assert len(path.read_text().splitlines()) < 60
