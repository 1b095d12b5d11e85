"""Grow every fixed schedule of one seed on the hosts of the 15 blocks of `experiments/2026-11-22_policy`.

    python experiments/2026-11-23_fixed_seed/fixed_seed.py        # all blocks; writes schedules.csv
    python experiments/2026-11-23_fixed_seed/fixed_seed.py 1 F    # only the first block, into the file F

A schedule plants the same seed in the same slot of every host in the first epoch, advances it and keeps it. All of them grow 64
training hosts of a block. The best one there by validation accuracy, never growing, and the schedules in `ALWAYS` then grow the
64 held-out hosts on which the policy of the block was scored. One row per block, split and schedule: means over hosts.
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from esper.agent.scripted.schedule import ScheduleConfig
from esper.cli.overrides import check
from esper.config import GROUPS
from esper.env.base import Environment
from esper.evaluation.outcomes import HostOutcomes
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

HERE = Path(__file__).parent
RECORD = HERE.parent / "2026-11-22_policy" / "comparison.csv"
HOSTS = 64
SEEDS = pd.read_csv(HERE / "seeds.csv")["seed"].tolist()
"""Seeds of the blocks, as `sweep=ab` drew them from root=20261123 at the time of that experiment."""
OUTCOMES = ("accuracy", "validation", "parameters")
"""Test and validation accuracy of the committed network [pp], parameters of the seeds."""
ALWAYS = ("conv_heavy in r0c1", "conv_heavy in r0c0")
"""Schedules that grow the held-out hosts of every block."""


def rows(block: int) -> list[dict[str, Any]]:
    """Return the outcomes of schedules on the training and held-out hosts of a block."""
    training, held_out = (_env(block, split) for split in (Split.TRAINING, Split.HELD_OUT))
    slots, blueprints = training.layout.slot_names, training.layout.blueprint_names
    names = [f"{blueprint} in {slot}" for slot in slots for blueprint in blueprints]
    tried = {name: grown(training, name) for name in ["wait", *names]}
    best = max(tried, key=lambda name: tried[name]["validation"])
    final = {name: grown(held_out, name, returns=True) for name in dict.fromkeys(["wait", *ALWAYS, best])}
    training.close()
    held_out.close()
    return [
        {"block": block, "split": split, "schedule": name} | values
        for split, table in (("training", tried), ("held_out", final))
        for name, values in table.items()
    ]


def _env(block: int, split: Split) -> Environment:
    config = check([f"seed={SEEDS[block]}", "devices.auto.members_per_shard=32"])
    return build_env(config, split=split, hosts=HOSTS, test_at_end=True)


def grown(env: Environment, name: str, *, returns: bool = False) -> dict[str, float]:
    """Return the mean outcomes of the hosts that a schedule grows.

    Args:
        returns: add the mean return. It is the plain sum of rewards, as in the record of the policy; since then, returns leave
            out what shaping deducts a second time after a rollback.
    """
    if name == "wait":
        controller = GROUPS["agent"]["wait"]().build(env.layout, seed=0)
    else:
        blueprint, slot = name.split(" in ")
        controller = ScheduleConfig(slot=env.layout.slot_names.index(slot), blueprint=blueprint).build(env.layout, seed=0)
    env.reset(options={"episode": 0})
    paid: list[float] = []
    values = HostOutcomes.of(
        play(env, controller, record=lambda step: paid.append(float(step.reward_N.mean()))), env.layout
    ).values
    return {outcome: float(values[outcome].mean()) for outcome in OUTCOMES} | ({"return": sum(paid)} if returns else {})


def main(arguments: list[str]) -> None:
    """Grow the schedules, and check that never growing gives the recorded accuracy, hence that the hosts are the same."""
    blocks = int(arguments[0]) if arguments else len(SEEDS)
    target = Path(arguments[1]) if arguments[1:] else HERE / "schedules.csv"
    recorded = pd.read_csv(RECORD).query("arm == 'wait'").set_index("block")["accuracy"]
    table: list[dict[str, Any]] = []
    for block in range(blocks):
        table += rows(block)
        pd.DataFrame(table).to_csv(target, index=False)
        (wait,) = [
            row["accuracy"] for row in table if (row["block"], row["split"], row["schedule"]) == (block, "held_out", "wait")
        ]
        print(f"block {block}: never growing {wait:.3f}, recorded {recorded[block]:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
