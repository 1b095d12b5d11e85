"""Small runs for tests: their overrides, what they wrote, and one rollout."""

from pathlib import Path
from types import SimpleNamespace

import torch

from esper.checkpoint import load
from esper.cli.overrides import check
from esper.telemetry.jsonl import read_records
from esper.training.interrupt import StopRequest
from esper.training.resume import find_checkpoint

TINY = ["hosts=4", "steps=3", "updates=3", "telemetry=quiet", "agent.minibatches=2", "agent.epochs=2", "agent.hidden=8"]
FEW = ["task.epoch_samples=256", "task.valid_samples=100"]
"""A quarter of the data; the sandbox has none."""


def config(*overrides):
    return check([*TINY, *([] if "env=sandbox" in overrides else FEW), *overrides])


def command(folder, *overrides):
    return ["esper.train", *TINY, *FEW, f"hydra.run.dir={folder}", *overrides]


def untimed(folder):
    """Return the metrics of a run, without times."""
    records = read_records(Path(folder) / "metrics.jsonl")
    return [{tag: value for tag, value in record.items() if not tag.startswith("time/")} for record in records]


def same(a, b):
    """Return whether two nested states are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def newest(folder):
    return load(find_checkpoint(str(folder), "resume"))


def collected(trainer):
    """Return a rollout and the record of its episode."""
    silent = SimpleNamespace(step=lambda step, steps: None)
    episode = trainer.collect(silent, StopRequest())
    (rollout,) = trainer.buffer.rollouts()
    return rollout, episode
