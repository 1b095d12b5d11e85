"""Try to beat the gate by hand: a grid of reacting rules, chosen on the training hosts of three blocks, on all held-out hosts.

    python experiments/2026-11-23_drift_gate/rules.py FOLDER      # FOLDER of the experiment; writes rules.csv

`agent=react` finds its rule in 40 tries on 32 hosts. Here every rule of the grid grows 3 x 64 hosts, and the best one by mean
return then grows the 64 held-out hosts of each of the 12 blocks.
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from esper.agent.scripted.rule import Reaction, ReactRule
from esper.cli.overrides import check
from esper.evaluation.held_out import Evaluation
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

SEEDS = [("conv_light", 1), ("depthwise", 1), ("depthwise", 2), ("conv_heavy", 0)]
"""Blueprints and slots that repair at least one kind of drift well."""
WHEN = list(product((8.0, 32.0, 64.0), (0, 3)))
"""Falls of the accuracy [pp], and patience [steps]."""


def main(folder: Path) -> None:
    """Choose a rule, and score it."""
    runs = sorted((folder / "react").glob("block-*"))
    evaluations = [Evaluation.load(str(run), hosts=64) for run in runs]
    names = evaluations[0].env.layout.blueprint_names
    rules = [
        ReactRule(trigger="drop", threshold=fall, patience=patience, slot=slot, blueprint=names.index(blueprint))
        for (blueprint, slot), (fall, patience) in product(SEEDS, WHEN)
    ]
    totals = np.zeros(len(rules))
    for evaluation in evaluations[:3]:
        seed = evaluation.config.seed
        config = check([f"seed={seed}", "task=digits_drift", "env.potential=false", "devices.auto.members_per_shard=32"])
        env = build_env(config, split=Split.TRAINING, hosts=64)
        for number, rule in enumerate(rules):
            env.reset(options={"episode": 0})
            paid: list[float] = []
            play(env, Reaction(rule, env.layout), record=lambda step, paid=paid: paid.append(float(step.reward_N.mean())))
            totals[number] += sum(paid) / 3
            print(f"{totals[number]:6.2f} so far: {rule}", flush=True)
        env.close()
    best = rules[int(totals.argmax())]
    scores = [float(one.grow(Reaction(best, one.env.layout)).values["return"].mean()) for one in evaluations]
    table = pd.DataFrame({"block": range(len(scores)), "return": scores, "rule": str(best)})
    table.to_csv(Path(__file__).parent / "rules.csv", index=False)
    print(f"best on training hosts {totals.max():.2f}: {best}; held-out hosts {np.mean(scores):.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
