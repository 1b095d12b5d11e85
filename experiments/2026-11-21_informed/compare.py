"""Do seeds with informed first weights help their hosts more than seeds with default ones?

    python experiments/2026-11-21_informed/compare.py

Both grow in the same hosts at the same time with the same data orders and the same default draw; only the filters before the last
map differ. Writes results.json beside this file.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from esper.agent.scripted.base import WaitConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.cli.overrides import check
from esper.config import register
from esper.env.growth_env import GrowthEnv
from esper.stats.intervals import mean_interval
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

NAMES = ("conv_light", "depthwise", "conv_heavy")
PLANS = [("conv_light", 0), ("conv_light", 1), ("depthwise", 0), ("conv_heavy", 1)]
TASKS = {"lesioned": [], "1x1 kernels": ["task.instances=healthy", "host.kernel=1"]}
EARLY = 5
"""Epochs after planting at which validation accuracy is looked at too."""


def environment(words: list[str], init: str, hosts: int) -> GrowthEnv:
    given = [f"blueprint=[{','.join(NAMES)}]", *(f"blueprint.{name}.init={init}" for name in NAMES), *words]
    return build_env(check(given), split=Split.TRAINING, hosts=hosts, test_at_end=True)


def reached(env: GrowthEnv, config: Any, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Test accuracy at the end, and validation accuracy some epochs after planting, both `[N]` [%]."""
    early: list[np.ndarray] = []

    def look(done: int, _total: int) -> None:
        if done == at + EARLY:
            early.append(env.accuracy_NH[:, 0].copy())

    env.reset(options={"episode": 0})
    episode = play(env, config.build(env.layout, seed=0), progress=look)
    assert episode.test_accuracy_N is not None
    return episode.test_accuracy_N, early[0]


def cell(values: np.ndarray) -> dict[str, float]:
    interval = mean_interval(values)
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=36)
    given = parser.parse_args()
    torch.set_num_threads(1)
    register()
    rows: list[dict[str, Any]] = []
    for task, words in TASKS.items():
        envs = {init: environment(words, init, given.hosts) for init in ("default", "informed")}
        alone, _ = reached(envs["default"], WaitConfig(), 0)
        print(f"{task}: {alone.mean():.1f} % without a seed", flush=True)
        for at in (0, 3):
            for blueprint, slot in PLANS:
                plan = ScheduleConfig(slot=slot, blueprint=blueprint, at=at)
                end, early = zip(*(reached(envs[init], plan, at) for init in ("default", "informed")), strict=True)
                row = {
                    "task": task,
                    "seed": f"{blueprint} in {envs['default'].layout.slot_names[slot]}",
                    "at": at,
                    "alone": float(alone.mean()),
                    "default": cell(end[0]),
                    "informed": cell(end[1]),
                    "difference": cell(end[1] - end[0]),
                    "early difference": cell(early[1] - early[0]),
                }
                rows.append(row)
                shown = [f"{row[key]['mean']:.1f} [{row[key]['low']:.1f}, {row[key]['high']:.1f}]" for key in list(row)[4:]]
                print(task, row["seed"], f"at {at}:", *shown, sep=" | ", flush=True)
        for env in envs.values():
            env.close()
    (Path(__file__).parent / "results.json").write_text(json.dumps({"hosts": given.hosts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
