"""Every example trains for two updates, and is short enough to be read at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
NEEDS = {
    "sb3_ppo": "stable_baselines3",
    "maskable_ppo": "sb3_contrib",
    "recurrent_ppo": "sb3_contrib",
    "torchrl_ppo": "torchrl",
    "single_file_ppo": "gymnasium",
}
"""Library of each example."""


def test_every_example_says_what_it_needs() -> None:
    assert {path.stem for path in EXAMPLES} == NEEDS.keys()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[path.stem], reason="pip install -e '.[drivers]'")
    words = ["task.batch_size=512"] if path.stem == "single_file_ppo" else ["env=sandbox"]  # it has the id of a task
    command = [sys.executable, str(path), "2", "steps=6", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ep_rew_mean" in done.stdout or "update 2: return" in done.stdout or "n_updates" in done.stdout
    assert len(path.read_text().splitlines()) < 60
