"""Curves of a run: python curves.py RUN; writes curves.png beside this file.

Needs matplotlib, which is no dependency of the project.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from esper.telemetry import read_records

PANELS = {
    "policy/return": "return [points]",
    "host/committed_accuracy": "committed accuracy, validation [%]",
    "policy/explained_variance": "explained variance, fresh rollouts",
}


def main(run: str) -> None:
    records = read_records(Path(run) / "metrics.jsonl")
    figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 3.6), layout="constrained")
    for axis, (tag, label) in zip(axes, PANELS.items(), strict=True):
        axis.plot([record["update"] for record in records], [record[tag] for record in records])
        axis.set(xlabel="update (32 hosts x 20 epochs each)", ylabel=label)
    figure.savefig(Path(__file__).parent / "curves.png", dpi=90)


if __name__ == "__main__":
    main(sys.argv[1])
