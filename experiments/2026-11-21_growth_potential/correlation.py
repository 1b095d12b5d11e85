"""Does growth potential say where growing will pay? Measures it early, and then plants each kind of seed in each slot.

    python experiments/2026-11-21_growth_potential/correlation.py

The hosts are held-out ones: the estimate that the sensor makes was chosen on others. Every seed is planted in the same hosts with
the same data orders, one at a time, so that gains are paired. Writes results.json beside this file.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from esper.measure.sensor import PotentialSensor
from scipy.stats import spearmanr

import esper.pool.local as crew_room
from esper.agent.scripted.base import WaitConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.cli.overrides import check
from esper.config import register
from esper.env.actions import Head
from esper.env.growth_env import GrowthEnv
from esper.seeds.slot_gradients import Evidence
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play


def potentials(env: GrowthEnv, after: int) -> dict[str, np.ndarray]:
    """Growth potential `[N, S, K]` after so many epochs, by several estimates."""
    sensors: list[PotentialSensor] = []
    felt: list[Sequence[Evidence]] = []
    true, usual = PotentialSensor.measure, crew_room.SAMPLES

    def keep(sensor: PotentialSensor, parts: Sequence[Evidence]) -> torch.Tensor:
        sensors[:], felt[:] = [sensor], [parts]
        return true(sensor, parts)

    PotentialSensor.measure, crew_room.SAMPLES = keep, env.task.batch_size
    for _ in range(after):
        env.step(np.zeros((env.num_envs, len(Head)), dtype=np.int64))
    PotentialSensor.measure, crew_room.SAMPLES = true, usual
    [sensor], [whole] = sensors, felt
    few = [_first(part, max(usual, kept)) for part, kept in zip(whole, _needed(whole), strict=True)]
    return {
        "sensor": sensor.measure(few).numpy(),
        "sensor, the whole batch": sensor.measure(whole).numpy(),
        "whole gradient": _gradient(sensor, few),
        "whole gradient, the whole batch": _gradient(sensor, whole),
        "whole gradient, noise taken off, the whole batch": _gradient(sensor, whole, apart=True),
    }


def _needed(felt: Sequence[Evidence]) -> list[int]:
    """Samples that the fit needs in each slot, as the sensor has it."""
    shapes = [part.features.shape for part in felt]
    return [-(-crew_room.SPOTS * (channels + 1) // (height * width)) for _, _, channels, height, width in shapes]


def _gradient(sensor: PotentialSensor, felt: Sequence[Evidence], *, apart: bool = False) -> np.ndarray:
    """The squared norm without the fit; `apart`: the product of two halves' gradients, whose noise is not the same."""
    slots = []
    for one, slot in zip(felt, sensor.slots, strict=True):
        halves = [one, one] if not apart else [_first(one, one.features.shape[1] // 2, last=last) for last in (False, True)]
        grads = [[dormant.gradients(half) for dormant in slot.dormant] for half in halves]
        slots.append(torch.stack([(a * b).sum(1) for a, b in zip(*grads, strict=True)], 1))
    return torch.stack(slots, 1).numpy()


def _first(felt: Evidence, count: int, *, last: bool = False) -> Evidence:
    """So many of the samples; the mean loss of fewer samples has larger gradients."""
    samples = felt.features.shape[1]
    part = slice(samples - count, samples) if last else slice(min(count, samples))
    return Evidence(features=felt.features[:, part], grad=felt.grad[:, part] * (samples / felt.features[:, part].shape[1]))


def gains(env: GrowthEnv, episode: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Test accuracy without a seed `[N]`, and what each slot and blueprint adds to it `[N, S, K]` [pp]."""
    layout = env.layout

    def reached(controller: Any) -> np.ndarray:
        env.reset(options={"episode": episode})
        accuracy = play(env, controller).test_accuracy_N
        assert accuracy is not None
        return accuracy

    alone = reached(WaitConfig().build(layout, seed=0))
    seeded = [
        [reached(ScheduleConfig(slot=s, blueprint=name, at=after).build(layout, seed=0)) for name in layout.blueprint_names]
        for s in range(layout.num_slots)
    ]
    return alone, np.array(seeded).transpose(2, 0, 1) - alone[:, None, None]


def rank(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; 0 where one of both is the same everywhere."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a.ravel(), b.ravel()).statistic)


def judge(score: np.ndarray, gain: np.ndarray) -> dict[str, float]:
    """How well a score `[N, S, K]` ranks the gains, and what following it would bring."""
    hosts, num_slots, kinds = gain.shape
    flat_gain, flat_score = gain.reshape(hosts, -1), score.reshape(hosts, -1)
    chosen = flat_gain[np.arange(hosts), flat_score.argmax(1)]
    by_slot, score_slot = gain.max(2), score.max(2)
    within = [rank(score[n], gain[n]) for n in range(hosts)]
    slots = [rank(score[n, :, k], gain[n, :, k]) for n in range(hosts) for k in range(kinds)]
    across = [rank(score[:, s, k], gain[:, s, k]) for s in range(num_slots) for k in range(kinds)]
    return {
        "all pairs": rank(score, gain),
        "within a host, over slots and blueprints": float(np.mean(within)),
        "within a host and blueprint, over slots": float(np.mean(slots)),
        "over hosts, in a slot and blueprint": float(np.mean(across)),
        "largest marks the best slot [%]": float(100 * (score_slot.argmax(1) == by_slot.argmax(1)).mean()),
        "gain where it is largest [pp]": float(chosen.mean()),
        "standard error of that": float(chosen.std(ddof=1) / hosts**0.5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--after", type=int, default=3, help="host epochs before potential is measured and seeds are planted")
    parser.add_argument("--again", action="store_true", help="take the gains from gains.npz of an earlier run")
    given = parser.parse_args()
    here = Path(__file__).parent
    torch.set_num_threads(1)
    register()
    env = build_env(check([]), split=Split.HELD_OUT, hosts=given.hosts, test_at_end=True)
    scores: dict[str, list[np.ndarray]] = {}
    gained, kinds = [], []
    for episode in range(given.episodes):
        env.reset(options={"episode": episode})
        kinds += env.cohort.instances()
        for name, score in potentials(env, given.after).items():
            scores.setdefault(name, []).append(score)
        if not given.again:
            alone, gain = gains(env, episode, given.after)
            gained.append(gain)
            print(f"episode {episode}: {alone.mean():.1f} % alone, gains up to {gain.mean(0).max():.1f} pp", flush=True)
    if not given.again:
        np.savez(here / "gains.npz", gain=np.concatenate(gained))
    gain, kind = np.load(here / "gains.npz")["gain"], np.array(kinds)
    whole = {name: np.concatenate(parts) for name, parts in scores.items()}
    params = np.array(env.layout.seed_params, dtype=np.float64).T
    whole["sensor, of a parameter"] = whole["sensor"] / params
    whole["parameters alone"] = np.broadcast_to(params, gain.shape)
    lesioned = kind != "ooo"
    table = {
        name: {"all": judge(score, gain), "lesioned": judge(score[lesioned], gain[lesioned])} for name, score in whole.items()
    }
    flat = gain.reshape(len(gain), -1)
    base = {
        "hosts": len(gain),
        "best of all [pp]": float(flat.max(1).mean()),
        "mean of all [pp]": float(flat.mean()),
        "best fixed [pp]": float(flat.mean(0).max()),
        "by kind": {
            one: {
                "hosts": int((kind == one).sum()),
                "gain": gain[kind == one].mean(0).round(2).tolist(),
                "potential": whole["sensor"][kind == one].mean(0).round(5).tolist(),
                "whole gradient": whole["whole gradient"][kind == one].mean(0).round(5).tolist(),
            }
            for one in np.unique(kind).tolist()
        },
    }
    for name, rows in table.items():
        print(name, {key: round(value, 2) for key, value in rows["all"].items()}, flush=True)
        print("   lesioned", {key: round(value, 2) for key, value in rows["lesioned"].items()}, flush=True)
    print(json.dumps(base, indent=1))
    (here / "results.json").write_text(json.dumps({"table": table, "base": base}, indent=1) + "\n")
    env.close()


if __name__ == "__main__":
    main()
