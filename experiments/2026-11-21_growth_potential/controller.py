"""Does a controller that follows growth potential beat one that never grows, and a fixed schedule?

    python experiments/2026-11-21_growth_potential/controller.py

All on the same fresh hosts with the default task, reward and slots.
"""

import argparse

import torch

from esper.agent.scripted.base import WaitConfig
from esper.agent.scripted.greedy import GreedyPotentialConfig
from esper.agent.scripted.heuristic import HeuristicConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.cli.overrides import check
from esper.config import register
from esper.stats.intervals import mean_interval
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=48)
    given = parser.parse_args()
    torch.set_num_threads(1)
    register()
    env = build_env(check([]), split=Split.HELD_OUT, hosts=given.hosts, test_at_end=True)
    alone = None
    for name, config in {
        "wait": WaitConfig(),
        "greedy_potential threshold=0.005": GreedyPotentialConfig(threshold=0.005),
        "greedy_potential (threshold 0.03)": GreedyPotentialConfig(),
        "greedy_potential threshold=0.005 per_parameter=true": GreedyPotentialConfig(threshold=0.005, per_parameter=True),
        "schedule conv_heavy in slot 0 at 0": ScheduleConfig(slot=0, blueprint="conv_heavy"),
        "schedule conv_heavy in slot 0 at 3": ScheduleConfig(slot=0, blueprint="conv_heavy", at=3),
        "heuristic": HeuristicConfig(),
    }.items():
        env.reset(options={"episode": 0})
        episode = play(env, config.build(env.layout, seed=0))
        assert episode.test_accuracy_N is not None
        alone = alone or episode
        assert alone.test_accuracy_N is not None
        cells = [
            mean_interval(values)
            for values in (
                episode.return_N,
                episode.return_N - alone.return_N,
                episode.test_accuracy_N,
                episode.test_accuracy_N - alone.test_accuracy_N,
            )
        ]
        shown = " | ".join(f"{cell.mean:.1f} ± {(cell.high - cell.low) / 2:.1f}" for cell in cells)
        print(f"| {name} | {shown} | {episode.params_N.mean():.0f} |", flush=True)
    env.close()


if __name__ == "__main__":
    main()
