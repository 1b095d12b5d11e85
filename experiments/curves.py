"""Curves of a run: python experiments/curves.py RUN OUT.png; needs the extra compare."""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from esper.telemetry.jsonl import read_records

PANELS = {
    "policy/return": "return [points]",
    "host/committed_accuracy": "committed accuracy, validation [%]",
    "policy/explained_variance": "explained variance, fresh rollouts",
}


def main(run: str, out: str) -> None:
    records = read_records(Path(run) / "metrics.jsonl")
    figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 3.6), layout="constrained")
    for axis, (tag, label) in zip(axes, PANELS.items(), strict=True):
        axis.plot([record["update"] for record in records], [record.get(tag, math.nan) for record in records])
        axis.set(xlabel="update", ylabel=label)
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    main(*sys.argv[1:])
