"""Train a bandit in the 15 blocks of `experiments/2026-11-22_policy`, and grow the held-out hosts of each.

    python experiments/2026-11-24_bandit/bandit.py        # all blocks; writes bandit.csv
    python experiments/2026-11-24_bandit/bandit.py 1 F    # only the first block, into the file F

One row per block: mean outcomes of 64 held-out hosts under the bandit, and the accuracy of never growing there.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from esper.agent.bandit import Bandit
from esper.cli.overrides import check
from esper.config import GROUPS
from esper.evaluation.outcomes import HostOutcomes
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.trainer import Trainer

HERE = Path(__file__).parent
RECORDS = HERE.parent
HOSTS = 64
SEEDS = pd.read_csv(RECORDS / "2026-11-23_fixed_seed" / "seeds.csv")["seed"].tolist()
"""Seeds of the blocks, as `sweep=ab` drew them from root=20261123 at the time of that experiment."""
OUTCOMES = ("accuracy", "validation", "parameters")
"""Test and validation accuracy of the committed network [pp], parameters of the seeds."""


def row(block: int) -> dict[str, float]:
    """Return the outcomes of a block."""
    overrides = [f"seed={SEEDS[block]}", "devices.auto.members_per_shard=32", "agent=bandit", "updates=13", "telemetry=quiet"]
    config = check(overrides)
    with TemporaryDirectory() as folder:
        trainer = Trainer(config, folder)
        trainer.run()
        bandit = trainer.agent
    assert isinstance(bandit, Bandit)
    env = build_env(config, split=Split.HELD_OUT, hosts=HOSTS, test_at_end=True)
    found: dict[str, float] = {"block": block}
    for name, controller in {"": bandit, "wait_": GROUPS["agent"]["wait"]().build(env.layout, seed=0)}.items():
        env.reset(options={"episode": 0})
        paid: list[float] = []
        episode = play(env, controller, record=lambda step, paid=paid: paid.append(float(step.reward_N.mean())))
        values = HostOutcomes.of(episode, env.layout).values
        found |= {f"{name}{outcome}": float(values[outcome].mean()) for outcome in OUTCOMES}
        found[f"{name}return"] = sum(paid)  # the plain sum of rewards, as in the record of the policy
    env.close()
    return found


def main(arguments: list[str]) -> None:
    """Train and grow in all blocks, and show that never growing has the recorded accuracy, hence that the hosts are the same."""
    blocks = int(arguments[0]) if arguments else len(SEEDS)
    target = Path(arguments[1]) if arguments[1:] else HERE / "bandit.csv"
    recorded = pd.read_csv(RECORDS / "2026-11-22_policy" / "comparison.csv").query("arm == 'wait'").set_index("block")["accuracy"]
    table: list[dict[str, float]] = []
    for block in range(blocks):
        table.append(row(block))
        pd.DataFrame(table).to_csv(target, index=False)
        print(f"block {block}: never growing {table[-1]['wait_accuracy']:.3f}, recorded {recorded[block]:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
