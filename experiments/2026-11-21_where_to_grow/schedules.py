"""Plants each kind of seed in each slot of every host at the start, and shows what each kind of lesion makes of it.

    python experiments/2026-11-21_where_to_grow/schedules.py

Writes results.json beside this file.
"""

import json
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

HOSTS, EPISODES = 96, 2


def main() -> None:
    torch.set_num_threads(1)
    register()
    env = build_env(check([]), split=Split.TRAINING, hosts=HOSTS, test_at_end=True)
    layout = env.layout
    controllers = {"no seed": WaitConfig().build(layout, seed=0)}
    for slot, place in enumerate(layout.slot_names):
        for blueprint in layout.blueprint_names:
            config = ScheduleConfig(slot=slot, blueprint=blueprint)
            controllers[f"{blueprint} in {place}"] = config.build(layout, seed=0)
    table: dict[str, dict[str, dict[str, float]]] = {}
    scores: dict[str, np.ndarray] = {}
    kinds = np.empty(0)
    for name, controller in controllers.items():
        episodes: list[Episode] = []
        for episode in range(EPISODES):
            env.reset(options={"episode": episode})
            episodes.append(play(env, controller))
        accuracy = np.concatenate([one.test_accuracy_N for one in episodes])
        params = np.concatenate([one.params_N for one in episodes])
        returns = np.concatenate([one.return_N for one in episodes])
        kinds = np.concatenate([one.instance for one in episodes])
        scores[name] = returns
        table[name] = {
            kind: {
                "accuracy": float(accuracy[kinds == kind].mean()),
                "return": float(returns[kinds == kind].mean()),
                "hosts": int((kinds == kind).sum()),
                "error": float(accuracy[kinds == kind].std(ddof=1) / (kinds == kind).sum() ** 0.5),
            }
            for kind in np.unique(kinds)
        } | {"all": {"accuracy": float(accuracy.mean()), "return": float(returns.mean()), "parameters": float(params.mean())}}
        row = {kind: f"{cell['accuracy']:.1f}/{cell['return']:.1f}" for kind, cell in table[name].items()}
        print(f"{name:24s}", row, flush=True)
    # Chosen on the hosts of the first episode, judged on those of the second, so that neither profits from luck.
    first = np.arange(len(kinds)) < HOSTS
    best = max(scores, key=lambda name: scores[name][first].mean())
    for_kind = {kind: max(scores, key=lambda name: scores[name][first & (kinds == kind)].mean()) for kind in np.unique(kinds)}
    oracle = np.array([scores[for_kind[kind]][host] for host, kind in enumerate(kinds)])
    lead = (oracle - scores[best])[~first]
    verdict = {
        "best fixed": best,
        "its return": float(scores[best][~first].mean()),
        "oracle": for_kind,
        "oracle's return": float(oracle[~first].mean()),
        "lead": float(lead.mean()),
        "standard error of the lead": float(lead.std(ddof=1) / len(lead) ** 0.5),
    }
    print(verdict)
    env.close()
    (Path(__file__).parent / "results.json").write_text(json.dumps({"table": table, "verdict": verdict}, indent=1) + "\n")


if __name__ == "__main__":
    main()
