"""Tables and figure from the evaluations and metrics of three runs: python summary.py RUN RUN RUN

Needs matplotlib for the figure, which is no dependency of the project.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from esper.stats import mean_interval
from esper.telemetry import read_records

HERE = Path(__file__).parent


def main(folders: list[str]) -> None:
    runs = [json.loads(sorted(Path(folder).glob("evaluation_*.json"))[-1].read_text())["hosts"] for folder in folders]
    runs = [{name.split(" (")[0]: values for name, values in run.items()} for run in runs]
    names = list(runs[0])
    print("| controller | return | test accuracy | parameters |\n|---|---|---|---|")
    for name in names:
        cells = [mean_interval(np.concatenate([run[name][key] for run in runs])) for key in ("return", "accuracy")]
        params = np.mean([np.mean(run[name]["parameters"]) for run in runs])
        print(f"| {name} | {cells[0]} | {cells[1]} | {params:.0f} |")
    print("\n| policy minus | key | all | " + " | ".join(f"seed {seed}" for seed in range(len(runs))) + " |")
    print("|---|---|---|" + "---|" * len(runs))
    for policy in ("policy", "policy_greedy"):
        for name in names:
            for key in ("return", "accuracy"):
                differences = [np.subtract(run[policy][key], run[name][key]) for run in runs]
                if name in ("policy", "policy_greedy"):
                    continue
                cells = [str(mean_interval(np.concatenate(differences))), *(str(mean_interval(one)) for one in differences)]
                print(f"| {policy} - {name} | {key} | {' | '.join(cells)} |")
    print("\nplanted by the greedy policy, by kind (share of hosts with a seed, mean parameters):")
    kinds = np.concatenate([run["policy_greedy"]["instance"] for run in runs])
    params = np.concatenate([run["policy_greedy"]["parameters"] for run in runs])
    for kind in np.unique(kinds):
        print(kind, f"{(params[kinds == kind] > 0).mean():.2f} {params[kinds == kind].mean():.0f}")
    draw(folders, runs)


def draw(folders: list[str], runs: list[dict[str, dict[str, list[float]]]]) -> None:
    """Return and explained variance over updates, with what the others reach."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    records = [read_records(Path(folder) / "metrics.jsonl") for folder in folders]
    for axis, tag in ((left, "policy/return"), (right, "policy/explained_variance")):
        curves = np.array([[record[tag] for record in run] for run in records])
        updates = np.arange(1, curves.shape[1] + 1)
        axis.plot(updates, curves.T, color="tab:blue", alpha=0.3, linewidth=1)
        axis.plot(updates, curves.mean(0), color="tab:blue", linewidth=2, label="policy, mean of 3 seeds")
        axis.set_xlabel("update (32 hosts x 20 epochs each)")
    colours = {"wait": "tab:gray", "heuristic": "tab:orange", "best schedule": "tab:green", "oracle schedule by kind": "tab:red"}
    for name, colour in colours.items():
        if name in runs[0]:
            mean = np.mean([np.mean(run[name]["return"]) for run in runs if name in run])
            left.axhline(mean, color=colour, linestyle="--", linewidth=1, label=f"{name}, fresh hosts")
    left.set_ylabel("return [points]")
    left.legend(fontsize=8, loc="lower right")
    right.set_ylabel("explained variance, fresh rollouts")
    right.axhline(0.5, color="tab:gray", linestyle=":", linewidth=1)
    right.set_ylim(-0.2, 1)
    figure.savefig(HERE / "curves.png", dpi=110)


if __name__ == "__main__":
    main(sys.argv[1:])
