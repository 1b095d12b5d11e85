"""Return against compute per new host, and the number of hosts after which a policy has paid for its own training.

    python experiments/2026-11-24_one_training/break_even.py [WORLD ...]

Reads comparison.csv and training.csv in the folder of each world beside it. FLOPs are those of training hosts; measuring them
and learning are left out.
"""

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
WORLDS = ("digits", "mnist5k_drift", "digits_trials")
HOSTS = (1, 10, 100, 1_000, 10_000)


def means(world: str) -> pd.DataFrame:
    """Return the mean of each outcome by arm."""
    runs = pd.read_csv(HERE / world / "comparison.csv")
    return runs.groupby("arm")[["return", "accuracy", "parameters", "training_flops"]].mean()


def training(world: str) -> float:
    """Return the FLOPs of the hosts that a policy is trained on, mean over blocks."""
    return float(pd.read_csv(HERE / world / "training.csv")["training_flops"].mean())


def break_even(world: str, rival: str) -> float:
    """Return the number of new hosts after which the policy has cost as much as the rival."""
    flops = means(world)["training_flops"]
    return training(world) / (flops[rival] - flops["ppo"])


def main(*worlds: str) -> None:
    for world in worlds or WORLDS:
        table, total = means(world), training(world)
        table["trainings"] = table["training_flops"] / table.loc["same_seed", "training_flops"]
        print(f"{world}\n{table.sort_values('training_flops').to_string(float_format='%.4g')}")
        each = {hosts: table.loc["ppo", "training_flops"] + total / hosts for hosts in HOSTS}
        shared = ", ".join(f"{hosts}: {flops:.3g}" for hosts, flops in each.items())
        print(f"FLOPs per new host of the policy, its training shared out: {shared}")
        for rival in table.index:
            if rival.startswith("search"):
                print(f"{rival}: as dear as the policy after {break_even(world, rival):.0f} hosts")


if __name__ == "__main__":
    main(*sys.argv[1:])
