"""What hosts of a task reach bare and with one seed planted at once, and whether knowing the instance helps.

    python experiments/2026-11-21_tasks/oracle.py NAME hosts=48 [overrides of esper.train]

Plays every fixed schedule of one seed (and none) on the same hosts. On one half of the hosts the best fixed schedule and the best
schedule of each instance (the oracle's) are chosen; on the other half they are judged, and the other way round. Writes NAME.json
beside this file.
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
from esper.env.episode import Episode
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play


def main(name: str, words: list[str]) -> None:
    torch.set_num_threads(1)
    register()
    env = build_env(check(["slots=one_seed", *words]), split=Split.TRAINING, test_at_end=True)
    layout, begun = env.layout, time.perf_counter()
    controllers = {"no seed": WaitConfig().build(layout, seed=0)}
    for slot, place in enumerate(layout.slot_names):
        for blueprint in layout.blueprint_names:
            config = ScheduleConfig(slot=slot, blueprint=blueprint)
            controllers[f"{blueprint} in {place}"] = config.build(layout, seed=0)
    scores: dict[str, np.ndarray] = {}
    table: dict[str, dict[str, str]] = {}
    kinds = np.empty(0)
    for title, controller in controllers.items():
        env.reset(options={"episode": 0})
        episode: Episode = play(env, controller)
        accuracy, scores[title] = episode.test_accuracy_N, episode.return_N
        assert accuracy is not None
        kinds = np.array(episode.instance)
        chosen = {kind: kinds == kind for kind in np.unique(kinds)} | {"all": np.ones(len(kinds), dtype=bool)}
        table[title] = {
            str(kind): f"{accuracy[rows].mean():.1f}/{episode.return_N[rows].mean():.1f}" for kind, rows in chosen.items()
        } | {"error": f"{accuracy.std(ddof=1) / len(accuracy) ** 0.5:.1f}"}
        print(f"{title:26s}", table[title], f"{time.perf_counter() - begun:.0f} s", flush=True)
    verdict = judge(scores, kinds)
    print(verdict)
    env.close()
    record = {"command": words, "hosts": {str(kind): int((kinds == kind).sum()) for kind in np.unique(kinds)}}
    path = Path(__file__).parent / f"{name}.json"
    path.write_text(json.dumps(record | {"test accuracy/return": table, "verdict": verdict}, indent=1) + "\n")


def judge(scores: dict[str, np.ndarray], kinds: np.ndarray) -> dict[str, object]:
    """The oracle's lead on hosts on which neither it nor the best fixed schedule was chosen."""
    half = np.arange(len(kinds)) % 2 == 0
    lead, best, oracle = np.zeros(len(kinds)), list[str](), list[dict[str, str]]()
    for learnt in (half, ~half):
        fixed = max(scores, key=lambda title: scores[title][learnt].mean())
        pick = {
            kind: max(scores, key=lambda title: scores[title][learnt & (kinds == kind)].mean())
            for kind in np.unique(kinds)
            if (learnt & (kinds == kind)).any()
        }
        best.append(fixed)
        oracle.append({str(kind): title for kind, title in pick.items()})
        for host in np.flatnonzero(~learnt):
            lead[host] = scores[pick.get(kinds[host], fixed)][host] - scores[fixed][host]
    return {
        "best fixed": best,
        "oracle": oracle,
        "lead": round(float(lead.mean()), 2),
        "standard error of the lead": round(float(lead.std(ddof=1) / len(lead) ** 0.5), 2),
        "oracle's return where chosen on the same hosts": round(
            float(np.mean([max(scores[t][kinds == kind].mean() for t in scores) for kind in kinds])), 2
        ),
        "best fixed return where chosen on the same hosts": round(max(float(score.mean()) for score in scores.values()), 2),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
