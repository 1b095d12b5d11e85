"""Every part runs, and is found by its name. Copy a line for each part of your own."""

import numpy as np
import pytest
from esper_example import PARTS

import esper
from esper.cli.overrides import check
from esper.plugins import load_plugins
from esper.training.trainer import Trainer

TINY = ["hosts=4", "steps=3", "updates=1", "telemetry=quiet"]
GROW = ["task=gratings", "optimiser=lion", "slots=last", "gates=proven", "reward=doublings", "agent=plateau", "governor=ceiling"]
BET = ["env=hints", "buffer=best", "agent.minibatches=2", "agent.twins=1", "agent.baseline=critic"]


@pytest.mark.parametrize("overrides", [GROW, BET], ids=["grow", "bet"])
def test_parts_run(overrides, tmp_path):
    load_plugins([])
    config = check([*TINY, *overrides, "telemetry.writers=[jsonl,markdown]"])
    for override in overrides:
        group, name = override.split("=")
        if name == PARTS.get(group, ("",))[0]:
            assert type(getattr(config, group)) is PARTS[group][1]
    Trainer(config, tmp_path).run()
    assert (tmp_path / "table.md").read_text().count("\n") == 3
    env = esper.make_env(["steps=3", overrides[0]])  # as a learner of another library sees it
    (seen, _), ended = env.reset(), False
    while not ended:
        seen, _, ended, _, _ = env.step(np.zeros_like(env.action_space.sample()))
    assert env.observation_space.contains(seen)
