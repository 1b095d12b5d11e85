"""Return against compute per new host, and the number of hosts after which a policy has paid for its own training.

    python experiments/2026-11-24_one_training/break_even.py

Reads comparison.csv and training.csv beside it. FLOPs are those of training hosts; measuring them and learning are left out.
"""

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
HOSTS = (1, 10, 100, 1_000, 10_000)


def means() -> pd.DataFrame:
    """Return the mean of each outcome by arm."""
    return pd.read_csv(HERE / "comparison.csv").groupby("arm")[["return", "accuracy", "parameters", "training_flops"]].mean()


def training() -> float:
    """Return the FLOPs of the hosts that a policy is trained on, mean over blocks."""
    return float(pd.read_csv(HERE / "training.csv")["training_flops"].mean())


def break_even(rival: str) -> float:
    """Return the number of new hosts after which the policy has cost as much as the rival."""
    flops = means()["training_flops"]
    return training() / (flops[rival] - flops["ppo"])


def main() -> None:
    table = means()
    table["trainings"] = table["training_flops"] / table.loc["same_seed", "training_flops"]
    print(table.sort_values("training_flops").to_string(float_format="%.4g"))
    each = {hosts: table.loc["ppo", "training_flops"] + training() / hosts for hosts in HOSTS}
    print(
        "FLOPs per new host of the policy, its training shared out:", ", ".join(f"{n}: {flops:.3g}" for n, flops in each.items())
    )
    for rival in table.index:
        if rival.startswith("search"):
            print(f"{rival}: as dear as the policy after {break_even(rival):.0f} hosts")


if __name__ == "__main__":
    main()
