"""What a reader of a comparison can do next: continue the experiment, start a larger one, or train longer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from esper.cli.quoting import typed_as
from esper.lab.design import Design, command_of
from esper.lab.outcomes import OutcomeSpec
from esper.lab.power import Spread, assumed_spread
from esper.lab.roots import new_root
from esper.lab.runs import Run
from esper.stats.verdict import PairResult

ALIKE = 0.5
"""Share of blocks with equal greedy accuracies above which arms are said to act alike."""
LONGER = 4
"""Factor by which to raise the number of updates if the arms act alike."""
LEAST = 50
"""Smallest number of updates to propose in that case; by then, policies of the default task have learned."""


def unfinished(runs: Sequence[Run], design: Design | None, folders: Sequence[Path]) -> str:
    """Return the sentence about runs that are not finished, with the command that continues them."""
    finished = sum(run.finished for run in runs)
    return f"{finished} of {len(runs)} runs finished: no verdict yet; continue with {continuing(design, folders)}"


def states(runs: Sequence[Run]) -> list[str]:
    """Return the status of runs, one line per arm and status, as in "sparse, blocks 1, 4 to 11: never started"."""
    alike: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        alike.setdefault((run.arm, run.status), []).append(run.block)
    return [f"{arm}, block{'s' * (len(blocks) > 1)} {_listed(blocks)}: {status}" for (arm, status), blocks in alike.items()]


def _listed(numbers: Sequence[int]) -> str:
    """Return numbers as text; three or more consecutive ones by the first and the last."""
    ordered, parts = sorted(numbers), list[list[int]]()
    for number in ordered:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)


def continuing(design: Design | None, folders: Sequence[Path]) -> str:
    """Return the command that continues an experiment, or words for it where there is no design."""
    return command_of(design, folders[0]) if design else "the command that started them"


def next_experiment(results: Sequence[PairResult], design: Design | None, folder: Path, longer: int | None) -> list[str]:
    """Return the command of a new experiment, for pairs that have had their last look without a verdict.

    Args:
        results: all pairs in the primary outcome.
        design: the experiment.
        folder: its folder.
        longer: number of updates to propose if the arms act alike; None if they do not.
    """
    open_ = [result for result in results if not result.decided and result.needed is not None and result.look is not None]
    if design is None or not open_ or design.blocks < design.plan.looks[-1]:
        return []
    blocks = design.blocks if longer else max(result.needed or 0 for result in open_)
    more = [f"root={new_root(design.digest)}", f"updates={longer}" if longer else typed_as("pilot", folder)]
    why = (
        "train longer in a new experiment"
        if longer
        else f"start a new experiment of {blocks} blocks (these blocks have had their verdict)"
    )
    return [f"{'next' if longer else 'to decide'}, {why}: {command_of(design, folder, blocks=blocks, more=more, new=True)}"]


def measured_spread(spread: Spread | None, design: Design | None, spec: OutcomeSpec) -> list[str]:
    """Return the measured standard deviation of a difference, beside the one that the power at the start assumed."""
    if spread is None:
        return []
    unit = "" if spec.difference == "1" else f" {spec.difference}"
    assumed = assumed_spread(design) if design and design.plan.outcome == spec.name else None  # of the planned outcome
    before = "" if assumed is None else f"; the power that was printed before the first run assumed {assumed:.2g}{unit}"
    return [f"measured standard deviation of a difference: {spread.value:.2g}{unit} (upper 60 % bound){before}"]


def acting_alike(greedy_BA: pd.DataFrame) -> tuple[int, int] | None:
    """Return in how many blocks the most probable actions of all arms give the same accuracy, and of how many; None unless most.

    Args:
        greedy_BA: accuracy with the most probable actions `[blocks, trained arms]` [%].
    """
    whole: Any = greedy_BA.dropna(axis=0)
    if len(whole) < 2 or whole.shape[1] < 2:
        return None
    same = int(np.isclose(whole.max(axis=1), whole.min(axis=1), rtol=0, atol=1e-9).sum())
    return (same, len(whole)) if same > ALIKE * len(whole) else None
