"""A blueprint that raises an error ends the run with one sentence, and nothing is lost by it."""

import re
from pathlib import Path

import numpy as np
import pytest

from esper.cli.overrides import check
from esper.seeds.blueprints.plain import NormBranch
from esper.seeds.errors import SeedError
from esper.telemetry.jsonl import read_records
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer
from tests.forked import run_forked

ROOT = Path(__file__).parents[2]
OVERRIDES = ["hosts=2", "steps=6", "updates=3", "agent=random", "agent.wait_weight=0.2", "telemetry=quiet", "blueprint=[norm]"]
OVERRIDES += ["task.batch_size=32", "task.epoch_samples=64", "devices=[cpu]"]


def untimed(folder):
    records = read_records(folder / "metrics.jsonl")
    return [{tag: value for tag, value in record.items() if not tag.startswith("time/")} for record in records]


def test_updates_before_the_error_are_saved_and_the_fixed_run_is_equal(tmp_path, monkeypatch):
    config, whole, broken = check(OVERRIDES), tmp_path / "whole", tmp_path / "broken"
    forward, calls = NormBranch.forward, []

    def counts(self, x):
        calls.append(len(calls))
        return forward(self, x)

    def fails(self, x):
        if len(calls) >= limit:
            raise ZeroDivisionError("no mean of nothing")
        return counts(self, x)

    monkeypatch.setattr(NormBranch, "forward", counts)
    Trainer(config, whole).run()
    limit = 2 * len(calls) // 3
    calls.clear()
    monkeypatch.setattr(NormBranch, "forward", fails)
    with pytest.raises(SeedError, match=r"blueprint NormConfig failed in slot \w+ with ZeroDivisionError: no mean"):
        Trainer(config, broken).run()
    done = int(find_checkpoint(str(broken), "x").stem.removeprefix("checkpoint_"))
    assert 0 < done < 3, "in mid-run"
    assert len(untimed(broken)) == done
    monkeypatch.setattr(NormBranch, "forward", forward)
    Trainer(config, broken).run()
    np.testing.assert_equal(untimed(broken), untimed(whole))


def test_the_command_shows_the_traceback_and_how_to_resume(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending" / "hosts.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "nn.SiLU()" in block]
    lost = "\n\nclass Lost(nn.Module):\n    def forward(self, x):\n        return x if len(x) == 3 else {}['lost']\n"
    code = code.replace("nn.SiLU()", "Lost()").replace("\nesper.register(", f"{lost}\nesper.register(", 1)
    (tmp_path / "my_growth.py").write_text(code)
    overrides = ["task=mine", "blueprint=[swish]", "hosts=2", "steps=6", "updates=1", "agent=random", "agent.wait_weight=0.2"]
    done = run_forked("esper.train", "plugins=[my_growth.py]", *overrides, "devices=[cpu]", "hydra.run.dir=here", cwd=tmp_path)
    assert done.returncode == 1
    *trace, last = done.stderr.strip().splitlines()
    assert any("my_growth.py" in entry and "in forward" in entry for entry in trace)
    assert re.fullmatch(
        r"esper: blueprint Swish\w* failed in slot \w+ with KeyError: 'lost'; all earlier updates are saved: "
        r"fix the blueprint, and resume with: python -m esper.train resume=\S+here",
        last,
    )
