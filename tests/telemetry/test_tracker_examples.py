"""Every example of a tracker trains two runs and reads them back, and is short enough to be read at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.telemetry.tracker_fixtures import ALL, no_network  # noqa: F401  (a fixture)

EXAMPLES = Path(__file__).parents[2] / "examples" / "trackers"
SHOWN = {"csv": "run 0  run 1", "mlflow": "seed 2, return", "wandb": "policy/return", "aim": "seed 2: 1: "}
"""What each prints of its runs."""


def test_every_tracker_has_an_example() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {f"{name}_runs.py" for name in SHOWN}


@pytest.mark.parametrize("name", ALL)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name == "csv":
        pytest.importorskip("pandas", reason="pip install -e '.[compare]'")
    path, overrides = EXAMPLES / f"{name}_runs.py", "env=sandbox hosts=4 steps=6 updates=1 agent.minibatches=2 telemetry=quiet"
    env = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(path), *overrides.split(), "agent.baseline=critic"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert SHOWN[name] in done.stdout
    assert len(path.read_text().splitlines()) < 60
