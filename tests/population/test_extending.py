"""docs/extending.md as it stands: hosts, seeds and tasks from outside the package, fused and not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text()
SHORT = ["hosts=2", "steps=6", "updates=1", "agent=random", "agent.wait_weight=0.2", "devices=[cpu]"]


@pytest.fixture
def outside(tmp_path: Path):
    """A folder with the page's module, changed by a replacement where wanted, and a way to run it."""

    def run(*words: str, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
        (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        assert change[0] in code
        (tmp_path / "my_growth.py").write_text(code.replace(*change))
        return subprocess.run(
            [sys.executable, "my_growth.py", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def grown(done: subprocess.CompletedProcess[str]) -> int:
    """Parameters that the run's hosts have grown, as its last line says."""
    found = re.search(r"parameters grown (\d+)", done.stdout)
    assert found, done.stdout
    return int(found.group(1))


WITHOUT_TWIN = ("nn.ReLU()", "nn.PReLU()")
SEED_WITHOUT_TWIN = ("nn.SiLU()", "nn.PReLU(c)")


def test_a_host_and_a_seed_from_outside_train_and_are_evaluated(outside, tmp_path):
    done = outside("task=mine", "blueprint=[norm,swish]", *SHORT)
    assert done.returncode == 0, done.stderr
    assert "random on mine" in done.stdout
    assert grown(done) > 0
    (run,) = (tmp_path / "multirun" / "single").iterdir()
    code = re.search(r'python -c "(.*?)" checkpoint', PAGE)
    assert code
    words = [sys.executable, "-c", code.group(1), f"checkpoint={run}", "hosts=2"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    judged = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert judged.returncode == 0, judged.stderr
    assert "mine" in outside("--help").stdout
    bare = [sys.executable, "-m", "esper.evaluate", f"checkpoint={run}", "hosts=2"]
    lost = subprocess.run(bare, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert lost.returncode == 2
    assert "task=mine is not an option here" in lost.stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (WITHOUT_TWIN, "task=mine: segments.0.1 is a PReLU, which has no stacked twin"),
        (SEED_WITHOUT_TWIN, "blueprint=swish: 1 is a PReLU, which has no stacked twin"),
    ],
)
def test_without_twin_one_by_one_is_the_way_and_the_error_says_so(outside, change, sentence):
    refused = outside("task=mine", "blueprint=[swish]", *SHORT, change=change)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"esper: {sentence}")
    assert refused.stderr.strip().endswith("members_per_shard=1")
    assert refused.stderr.count("\n") == 1
    done = outside("task=mine", "blueprint=[swish]", *SHORT, "devices.cpu.members_per_shard=1", change=change)
    assert done.returncode == 0, done.stderr
    assert grown(done) > 0


def test_chance_is_refused_one_by_one_too(outside):
    change = ("nn.ReLU()", "nn.Dropout(0.1)")
    refused = outside("task=mine", "blueprint=[swish]", *SHORT, "devices.cpu.members_per_shard=1", change=change)
    assert refused.returncode == 2
    assert "task=mine: segments.0.1 is a Dropout, which draws from torch's global random stream" in refused.stderr


def test_an_unknown_blueprint_is_answered_with_those_that_there_are(outside):
    refused = outside("task=mine", "blueprint=[swich]", *SHORT)
    assert refused.returncode == 2
    assert "no option swich in group blueprint" in refused.stderr
    assert "did you mean swish?" in refused.stderr
