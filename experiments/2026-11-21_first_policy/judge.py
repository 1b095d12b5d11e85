"""Judges policies, of one or more ways to train, on the same fresh hosts, beside fixed schedules.

    python experiments/2026-11-21_first_policy/judge.py multirun/first_policy --seeds 0 1 2 --arms critic

Expects runs in ROOT/ARM+SEED. Writes results.json and curves.png beside this file; needs matplotlib, no dependency of the
project itself.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from esper.agent.ppo.ppo import PPO
from esper.agent.scripted.base import WaitConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.checkpoint import Checkpoints
from esper.config import register
from esper.env.episode import Episode
from esper.stats.intervals import mean_interval
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.config_io import from_plain
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.resume import find_checkpoint

FIXED = "conv_heavy in r0c0"
"""The best fixed schedule of 2026-11-21_where_to_grow, chosen on other hosts."""
ORACLE = {"ooo": "depthwise in r0c0", "xoo": "conv_heavy in r0c0", "oxx": "conv_heavy in r0c1"}
"""The best schedule of each kind there."""


def judge(root: Path, arms: list[str], seed: int, hosts: int) -> dict[str, dict[str, list[float] | list[str]]]:
    """What every controller reaches on the held-out hosts of a seed, host by host."""
    found: dict[str, Episode] = {}
    place = find_checkpoint(str(root / f"{arms[0]}{seed}"), "root")
    config = from_plain(Checkpoints(place.parent).load(place)["config"])
    env = build_env(config, split=Split.HELD_OUT, hosts=hosts, test_at_end=True)

    def let(name: str, controller: object, *, greedy: bool = False) -> None:
        env.reset(options={"episode": 0})
        found[name] = play(env, controller, greedy=greedy)

    let("wait", WaitConfig().build(env.layout, seed=seed))
    for schedule in sorted({FIXED, *ORACLE.values()}):
        blueprint, _, place_name = schedule.split()
        slot = env.layout.slot_names.index(place_name)
        let(schedule, ScheduleConfig(slot=slot, blueprint=blueprint).build(env.layout, seed=seed))
    for arm in arms:
        place = find_checkpoint(str(root / f"{arm}{seed}"), "root")
        state = Checkpoints(place.parent).load(place)
        agent = from_plain(state["config"]).agent.build(env.layout, seed=seed)
        assert isinstance(agent, PPO)
        agent.load_state_dict(state["agent"])
        let(arm, agent)
        let(f"{arm}, greedy", agent, greedy=True)
    kinds = np.array(found["wait"].instance)
    env.close()
    scores = {
        name: {"return": one.return_N, "accuracy": one.test_accuracy_N, "parameters": one.params_N} for name, one in found.items()
    }
    scores["best schedule"] = scores[FIXED]
    scores["oracle"] = {
        key: np.select([kinds == kind for kind in ORACLE], [scores[schedule][key] for schedule in ORACLE.values()])
        for key in ("return", "accuracy", "parameters")
    }
    return {
        name: {key: np.asarray(row).tolist() for key, row in one.items()} | {"kind": kinds.tolist()}
        for name, one in scores.items()
    }


def table(judged: list[dict[str, dict[str, list]]], arms: list[str]) -> None:
    """Means over all hosts of all seeds, and differences by seed."""
    names = [*(name for arm in arms for name in (arm, f"{arm}, greedy")), "wait", "best schedule", "oracle"]
    kinds = np.concatenate([one["wait"]["kind"] for one in judged])
    print(
        "| controller | return | test accuracy | parameters | "
        + " | ".join(f"{kind}: return, parameters" for kind in ORACLE)
        + " |"
    )
    print("|---|---|---|---|" + "---|" * len(ORACLE))
    for name in names:
        rows = {key: np.concatenate([one[name][key] for one in judged]) for key in ("return", "accuracy", "parameters")}
        cells = [f"{rows['return'][kinds == kind].mean():.1f}, {rows['parameters'][kinds == kind].mean():.0f}" for kind in ORACLE]
        whole = [str(mean_interval(rows["return"])), str(mean_interval(rows["accuracy"])), f"{rows['parameters'].mean():.0f}"]
        print(f"| {name} | {' | '.join(whole + cells)} |")
    print("\n| return minus best schedule | mean over seeds | by seed | minus oracle |")
    print("|---|---|---|---|")
    for name in names[: 2 * len(arms)]:
        means = [np.subtract(one[name]["return"], one["best schedule"]["return"]).mean() for one in judged]
        oracle = [np.subtract(one[name]["return"], one["oracle"]["return"]).mean() for one in judged]
        whole = mean_interval(np.array(means)) if len(means) > 1 else f"{means[0]:.1f}"
        print(f"| {name} | {whole} | {', '.join(f'{mean:.1f}' for mean in means)} | {np.mean(oracle):.1f} |")


def draw(root: Path, arms: list[str], judged: list[dict[str, dict[str, list]]]) -> None:
    """Return and explained variance over updates, beside what the others reach on fresh hosts."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for arm, colour in zip(arms, ("tab:blue", "tab:purple", "tab:brown", "tab:pink"), strict=False):
        runs = [read_records(root / f"{arm}{seed}" / "metrics.jsonl") for seed in range(len(judged))]
        for axis, tag in ((left, "policy/return"), (right, "policy/explained_variance")):
            curves = np.array([[record[tag] for record in run if tag in record] for run in runs])
            updates = np.arange(1, curves.shape[1] + 1)
            axis.plot(updates, curves.T, color=colour, alpha=0.3, linewidth=1)
            axis.plot(updates, curves.mean(0), color=colour, linewidth=2, label=f"{arm}, mean of {len(runs)} seeds")
            axis.set_xlabel("update (32 hosts x 20 epochs each)")
    for name, colour in {"wait": "tab:gray", "best schedule": "tab:green", "oracle": "tab:red"}.items():
        mean = np.mean([np.mean(one[name]["return"]) for one in judged])
        left.axhline(mean, color=colour, linestyle="--", linewidth=1, label=f"{name}, fresh hosts")
    left.set_ylabel("return [points]")
    left.legend(fontsize=8, loc="lower right")
    right.set_ylabel("explained variance, fresh rollouts")
    right.set_ylim(-0.2, 1)
    figure.savefig(Path(__file__).parent / "curves.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", default=["critic"])
    parser.add_argument("--hosts", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    register()
    judged = [judge(given.root, given.arms, seed, given.hosts) for seed in given.seeds]
    table(judged, given.arms)
    draw(given.root, given.arms, judged)
    given.out.write_text(json.dumps(judged) + "\n")


if __name__ == "__main__":
    main()
