"""Figures of a comparison."""

# U updates, B blocks

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from esper.config import ConfigError
from esper.lab.comparison import wide
from esper.lab.runs import OutcomeSpec, Run, records_of
from esper.stats.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE = "host/committed_accuracy"
# Twenty distinct colours: ten, and the same ten lighter.
COLOURS = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#ff7f0e", "#7f7f7f"),
    *("#aec7e8", "#ff9896", "#98df8a", "#c5b0d5", "#c49c94", "#f7b6d2", "#9edae5", "#dbdb8d", "#ffbb78", "#c7c7c7"),
)
FEW = 5
"""Largest number of arms that share axes, with horizontal labels."""
COLUMNS, WIDE = 4, 11.0
"""Axes per row for more arms, and width of the figure [inch]."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its caption."""

    name: str
    """Stem of its file."""
    caption: str
    figure: "Figure"

    def image(self, kind: str) -> bytes:
        """Return the figure as a file of this format: png, pdf or svg."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format=kind, dpi=110)
        return buffer.getvalue()


def draw(runs: Sequence[Run], outcomes: pd.DataFrame, spec: OutcomeSpec) -> list[Drawing]:
    """Draw all figures of an experiment.

    Args:
        runs: its runs.
        outcomes: the table of `Comparison.outcomes`.
        spec: the outcome that decides.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: install the extra compare, or set plots=false") from error
    values_BA = wide(outcomes, spec.name)
    colours = {arm: COLOURS[index % len(COLOURS)] for index, arm in enumerate(values_BA)}
    drawings = [
        Drawing(name, caption, Figure(figsize=(7.0, 3.8), layout="constrained"))
        for name, caption in (
            ("learning", "Committed accuracy in training: mean over blocks with 95 % interval."),
            ("slopes", f"{spec.name} by arm, one line per block: {spec.description}."),
            ("profiles", f"Performance profiles: share of runs above each {spec.name}."),
            ("front", "Test accuracy against parameters, one dot per run. Line: Pareto front."),
        )
    ]
    learning, joined, shares, costs = (one.figure for one in drawings)
    learning_curves(learning, [run for run in runs if run.finished], colours)
    slopes(joined.subplots(), values_BA, spec, colours)
    profiles(shares.subplots(), values_BA, spec, colours)
    front(costs.subplots(), wide(outcomes, "parameters"), wide(outcomes, "accuracy"), colours)
    return drawings


def learning_curves(figure: "Figure", runs: Sequence[Run], colours: Mapping[str, str]) -> None:
    """Draw mean and interval over blocks for every update that all runs of an arm have reached.

    A few arms share axes. More bands would hide each other, so each further arm gets axes of its own, together with the first.
    """
    curves: dict[str, npt.NDArray[np.float64]] = {}
    for arm in colours:
        found = [[record[CURVE] for record in records_of(run) if CURVE in record] for run in runs if run.arm == arm]
        if found and (length := min(map(len, found))):
            curves[arm] = np.array([curve[:length] for curve in found])
    if len(curves) <= FEW:
        axes = figure.subplots()
        for arm, curves_BU in curves.items():
            _band(axes, curves_BU, colours[arm], arm)
        _legend(axes)
    else:
        first, *others = curves
        rows = -(-len(others) // COLUMNS)
        figure.set_size_inches(WIDE, 1.9 * rows)
        grid = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        for arm, axes in zip(others, grid.flat, strict=False):
            _band(axes, curves[first], colours[first], first)
            _band(axes, curves[arm], colours[arm], arm)
            axes.set_title(f"{first} and {arm}", fontsize="medium")
        for axes in grid.flat[len(others) :]:
            axes.set_axis_off()
    figure.supxlabel("update", fontsize="medium")
    figure.supylabel("committed accuracy [pp]", fontsize="medium")


def _band(axes: "Axes", curves_BU: npt.NDArray[np.float64], colour: str, label: str) -> None:
    updates = np.arange(1, curves_BU.shape[1] + 1)
    axes.plot(updates, curves_BU.mean(axis=0), color=colour, label=label)
    if len(curves_BU) > 1:
        bands = [mean_interval(column) for column in curves_BU.T]
        axes.fill_between(updates, [band.low for band in bands], [band.high for band in bands], color=colour, alpha=0.15)


def slopes(axes: "Axes", values_BA: pd.DataFrame, spec: OutcomeSpec, colours: Mapping[str, str]) -> None:
    """Draw one line per block across all arms, and the means of the arms."""
    arms = list(values_BA)
    axes.plot(range(len(arms)), values_BA.to_numpy().T, color="#999999", linewidth=0.8, marker=".")
    for place, (arm, mean) in enumerate(values_BA.mean().items()):
        axes.plot([place - 0.15, place + 0.15], [mean, mean], color=colours[str(arm)], linewidth=3)
    many = len(arms) > FEW
    axes.set_xticks(range(len(arms)), arms, rotation=30 if many else 0, ha="right" if many else "center")
    axes.set_ylabel(f"{spec.name} [{spec.unit}]")


def _legend(axes: "Axes") -> None:
    """Put the legend beside the axes, where it hides no data."""
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def profiles(axes: "Axes", values_BA: pd.DataFrame, spec: OutcomeSpec, colours: Mapping[str, str]) -> None:
    """Draw performance profiles: the share of runs above each value (Dolan, More 2002)."""
    for arm, column in values_BA.items():
        values = column.dropna().sort_values()
        if len(values):
            steps = [values.iloc[0], *values]
            axes.step(steps, np.linspace(1, 0, len(steps)), where="post", color=colours[str(arm)], label=arm)
    axes.set_xlabel(f"{spec.name} [{spec.unit}]")
    axes.set_ylabel("share of runs above")
    _legend(axes)


def front(axes: "Axes", parameters_BA: pd.DataFrame, accuracy_BA: pd.DataFrame, colours: Mapping[str, str]) -> None:
    """Draw accuracy against parameters, with the Pareto front of all runs."""
    for arm, colour in colours.items():
        axes.scatter(parameters_BA[arm], accuracy_BA[arm], color=colour, label=arm, s=18)
    best = pareto(np.column_stack([parameters_BA.to_numpy().ravel(), accuracy_BA.to_numpy().ravel()]))
    axes.plot(*best.T, color="#444444", linewidth=1, drawstyle="steps-post")
    axes.set_xlabel("parameters of seeds")
    axes.set_ylabel("test accuracy [pp]")
    _legend(axes)


def pareto(points_B2: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the points that no other beats in cost (first column, lower is better) and gain (second), sorted by cost."""
    finite = points_B2[np.isfinite(points_B2).all(axis=1)]
    ordered = finite[np.lexsort((-finite[:, 1], finite[:, 0]))]
    reached = np.maximum.accumulate(np.concatenate([[-np.inf], ordered[:-1, 1]])) if len(ordered) else np.zeros(0)
    return ordered[ordered[:, 1] > reached]
