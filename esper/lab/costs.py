"""Costs of the arms of an experiment, in FLOPs and seconds: training, measuring, policy and search.

FLOPs are those of `esper.measure.costs`. Counted for a run, over all updates:

    training    hosts and seeds, without the pretraining of deployed hosts, which the arms of an experiment share
    measuring   validation, counterfactuals included; growth potential is not counted
    policy      decisions, and for PPO per update two evaluations of the rollout and three forward passes per pass of learning;
                losses and optimiser are not counted
    search      of `schedule`, `oracle` and `static_net`: training and validating hosts under every schedule tried; of `static`:
                all of the above, since the policies found its topologies

Seconds are those of the rollouts and of learning, or of the search. Start-up, telemetry and checkpoints are not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from esper.evaluation.outcomes import SPENT
from esper.lab.outcomes import SEARCHED, STATIC_NET
from esper.lab.runs import Run, records_of, regular
from esper.lab.scoring import Scoring

PARTS = ("training", "measuring", "policy", "search")
"""Parts of the cost of a run [FLOP]."""
Cost = dict[str, float]
"""Each of `PARTS` and their sum as `total` [FLOP], and `seconds` [s]; NaN if not measured."""
FORWARDS = 3
"""Forward passes that one pass of learning costs: outputs, gradients of weights, gradients of inputs."""


def cost(
    training: float = 0.0, measuring: float = 0.0, policy: float = 0.0, search: float = 0.0, *, seconds: float = 0.0
) -> Cost:
    """Return a cost with its sum."""
    values = dict(zip(PARTS, (training, measuring, policy, search), strict=True))
    return values | {"total": sum(values.values()), "seconds": seconds}


def run_cost(config: Mapping[str, Any], updates: int, records: Sequence[Mapping[str, float]], policy_flops: float) -> Cost:
    """Return the cost of a training run.

    Args:
        config: its values by dotted key.
        updates: number of its updates. Those without a record are taken to cost as much as those that `telemetry.every` selects.
        records: its metrics.
        policy_flops: FLOPs of the decisions about one host in an episode.
    """
    hosts, usual = float(config["hosts"]), regular(records, int(config.get("telemetry.every", 1)), updates)

    def total(value: Callable[[Mapping[str, float]], float]) -> float:
        mean = float(np.mean([value(record) for record in usual] or [np.nan]))
        return sum(map(value, records)) + ((updates - len(records)) * mean if updates > len(records) else 0.0)

    return cost(
        training=hosts * total(lambda record: record.get("host/training_flops", np.nan)),
        measuring=hosts * total(lambda record: record.get("host/measuring_flops", np.nan)),
        policy=hosts * policy_flops * total(lambda record: 1 + _learning_forwards(config, record)) if policy_flops else 0.0,
        seconds=total(lambda record: record["time/rollout_seconds"] + record.get("time/update_seconds", 0.0)),
    )


def _learning_forwards(config: Mapping[str, Any], record: Mapping[str, float]) -> float:
    """Return the FLOPs of learning in an update, in forward passes over its rollout; NaN for learners other than PPO."""
    if "time/update_seconds" not in record:
        return 0.0
    if "policy/skipped_fraction" not in record:
        return np.nan
    rollouts = min(record["update"], float(config.get("buffer.rollouts", 1)))
    return 2 + FORWARDS * float(config["agent.epochs"]) * rollouts * (1 - record["policy/skipped_fraction"])


def cost_table(runs: Sequence[Run], scoring: Scoring) -> pd.DataFrame:
    """Return the cost of every arm in every block, with columns arm, block, `host` and those of `Cost`.

    `host` is the cost of growing one held-out host: training, measuring and decisions. A baseline that is not searched costs
    nothing else. With evaluation overrides, the FLOPs of the policy in training are not known.

    Args:
        runs: finished runs, scored with these settings.
        scoring: settings.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        scored = scoring.read(run)
        grown, choice = scored["rows"], scored["choice"]
        policy_flops = np.nan if scoring.overrides else float(np.mean(grown["policy"]["policy_flops"]))
        trained = run_cost(run.config, run.updates, records_of(run), policy_flops)
        costs = {"policy": trained}
        for name in scoring.baselines if run.arm == scoring.arm else ():
            costs[name] = cost()
            if name == "static":
                costs[name] = cost(search=trained["total"], seconds=trained["seconds"])
            elif name in SEARCHED:
                costs[name] = cost(search=choice["flops"], seconds=choice["seconds"])
            elif name == STATIC_NET:
                costs[name] = cost(search=choice[STATIC_NET]["flops"], seconds=choice[STATIC_NET]["seconds"])
        for name, found in costs.items():
            parts = [np.mean(grown[name][key]) for key in SPENT]
            rows.append({"arm": run.arm if name == "policy" else name, "block": run.block, **found, "host": float(sum(parts))})
    return pd.DataFrame(rows, columns=["arm", "block", *PARTS, "total", "seconds", "host"])
