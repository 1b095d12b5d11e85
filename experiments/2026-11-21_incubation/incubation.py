"""How should a seed learn before it is in? One schedule, three ways of incubation, the same hosts and data orders in every arm.

    python experiments/2026-11-21_incubation/incubation.py [digits] [digits_1x1] [mnist5k]

Adds its tasks to results.json beside this file, and prints the tables of all that is there.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from esper.agent.scripted.base import WaitConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.cli.overrides import check
from esper.config import register
from esper.stats.intervals import mean_interval
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

BOTH = ("conv_light", "conv_heavy")
TASKS = {
    "digits": (["task=digits"], 48, BOTH),
    "digits_1x1": (["task=digits", "task.instances=healthy", "host.kernel=1", "host.base_channels=4"], 48, BOTH),
    "mnist5k": (["task=mnist5k"], 32, BOTH[:1]),
}
"""Overrides, hosts, and blueprints."""
ARMS = {
    "never": None,
    "none": ["slots.incubation=none"],
    **{
        f"{way}, {epochs} epoch{'s' * (epochs > 1)}": [f"slots.incubation={way}", f"gates.min_training={epochs}"]
        for epochs in (1, 5)
        for way in ("straight_through", "closed_loop")
    },
}
"""Overrides of each arm; None plants nothing."""
AT, SLOT = 2, 1
RESULTS = Path(__file__).parent / "results.json"


def accuracies(words: list[str], hosts: int, blueprint: str | None) -> list[float]:
    """Test accuracy of what each host has committed at the end [pp]."""
    env = build_env(check(words), split=Split.TRAINING, hosts=hosts, test_at_end=True)
    config = ScheduleConfig(slot=SLOT, blueprint=blueprint, at=AT) if blueprint else WaitConfig()
    env.reset(options={"episode": 0})
    episode = play(env, config.build(env.layout, seed=0))
    env.close()
    assert blueprint is None or episode.fossilized == hosts, f"{hosts - episode.fossilized} seeds were not kept in time"
    return [round(float(value), 3) for value in episode.test_accuracy_N]


def table(task: str, scores: dict[str, dict[str, list[float]]]) -> None:
    for blueprint in TASKS[task][2]:
        print(f"\n{task}, {blueprint} in slot {SLOT} from epoch {AT} on")
        rows = {"never": scores["never"]["-"]} | {arm: by[blueprint] for arm, by in scores.items() if blueprint in by}
        for arm, values in rows.items():
            print(f"| {arm} | {mean_interval(values)} | {np.median(values):.1f} | {min(values):.1f} |")
        for epochs in ("1 epoch", "5 epochs"):
            closed, straight = (np.array(rows[f"{way}, {epochs}"]) for way in ("closed_loop", "straight_through"))
            pairs = {
                "closed_loop - straight_through": closed - straight,
                "closed_loop - none": closed - np.array(rows["none"]),
                "straight_through - none": straight - np.array(rows["none"]),
            }
            print(f"{epochs}:", "; ".join(f"{name} {mean_interval(pair)}" for name, pair in pairs.items()))


def main() -> None:
    torch.set_num_threads(1)
    register()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for task in sys.argv[1:] or TASKS:
        words, hosts, blueprints = TASKS[task]
        scores: dict[str, dict[str, list[float]]] = {}
        for arm, extra in ARMS.items():
            begun = time.perf_counter()
            if extra is None:
                scores[arm] = {"-": accuracies(words, hosts, None)}
            else:
                scores[arm] = {blueprint: accuracies(words + extra, hosts, blueprint) for blueprint in blueprints}
            print(task, arm, f"{time.perf_counter() - begun:.0f} s", flush=True)
        results[task] = scores
        RESULTS.write_text(json.dumps(results) + "\n")
    for task, scores in results.items():
        table(task, scores)


if __name__ == "__main__":
    main()
