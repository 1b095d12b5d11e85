"""Figures of a comparison."""

# U updates, B blocks

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import color_sequences, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

from esper.lab.arms import AA_CONTROL
from esper.lab.comparison import wide
from esper.lab.outcomes import OutcomeSpec
from esper.lab.runs import Run, records_of
from esper.stats.intervals import mean_interval
from esper.telemetry.tags import in_terms_of
from esper.training.run_folder import PAGE

CURVE = "host/committed_accuracy"
FEW = 5
"""Largest number of arms with bands and horizontal labels; more would overlap."""

FEWEST_RUNS = 3
"""Fewest runs of an arm with a band: an interval of two is 13 standard errors wide on each side."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its caption."""

    name: str
    """Stem of its file."""
    caption: str
    figure: Figure

    def image(self, kind: str) -> bytes:
        """Return the figure as a file of this format: png, pdf or svg."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format=kind, dpi=110)
        return buffer.getvalue()

    def inline(self) -> str:
        """Return the figure as an SVG element of a page, whose colours and fonts it takes."""
        buffer = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name}):
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        whole = buffer.getvalue()
        return whole[whole.index("<svg") :].replace("#000000", "currentColor")


Colours = Mapping[str, ColorType]
"""Colour of each arm."""
Links = Mapping[tuple[str, int], str]
"""Arm and block -> address of the page of this run."""


def page_links(runs: Sequence[Run], folder: Path) -> dict[tuple[str, int], str]:
    """Return the addresses of the pages of those runs that have one, relative to the folder of the report."""
    pages = {(run.arm, run.block): run.folder / PAGE for run in runs}
    return {cell: quote(os.path.relpath(page, folder)) for cell, page in pages.items() if page.exists()}


def draw(runs: Sequence[Run], outcomes: pd.DataFrame, spec: OutcomeSpec, score: str, floor: float, links: Links) -> list[Drawing]:
    """Draw all figures of an experiment.

    Args:
        runs: its runs.
        outcomes: the table of `Comparison.outcomes`.
        spec: the primary outcome.
        score: name of the hosts' score.
        floor: its lowest possible value [%].
        links: pages of runs, to which their dots lead.
    """
    linked = " A dot leads to the page of its run." if links else ""
    values_BA = wide(outcomes, spec.name)
    palette = color_sequences["tab20"]  # pairs of a dark and a light colour
    colours = dict(zip(values_BA, cycle([*palette[::2], *palette[1::2]]), strict=False))
    finished = [run for run in runs if run.finished]
    few = len({run.arm for run in finished}) <= FEW
    intervals = ", with 95 % intervals of three blocks or more" * few
    drawings = [
        Drawing(name, in_terms_of(score, caption), Figure(figsize=(7.0, 3.8), layout="constrained"))
        for name, caption in (
            ("learning", f"Committed accuracy in training: mean over blocks{intervals}."),
            ("slopes", f"{spec.label[0].upper()}{spec.label[1:]} by arm, one line per block: {spec.description}.{linked}"),
            ("front", "Test accuracy against parameters, one dot per run. Line: Pareto front, without the A/A control." + linked),
        )
    ]
    learning, joined, costs = (one.figure for one in drawings)
    learning_curves(learning.subplots(), finished, colours, floor=floor, bands=few)
    slopes(joined.subplots(), values_BA, spec, colours, links)
    front(costs.subplots(), wide(outcomes, "parameters"), wide(outcomes, "accuracy"), colours, links)
    for figure in (learning, joined, costs):
        for axes in figure.axes:
            axes.set_ylabel(in_terms_of(score, axes.get_ylabel()))
    return [one for one in drawings if _shows_something(one.figure)]


def _shows_something(figure: Figure) -> bool:
    """Return whether a figure has a finite point: of runs without hosts, some have none."""
    points = [line.get_xydata() for axes in figure.axes for line in axes.lines]
    points += [dots.get_offsets() for axes in figure.axes for dots in axes.collections]
    return any(np.isfinite(np.ma.filled(np.ma.asarray(one, np.float64), np.nan)).all(axis=-1).any() for one in points)


def learning_curves(axes: Axes, runs: Sequence[Run], colours: Colours, *, floor: float = 0.0, bands: bool = True) -> None:
    """Draw the mean over blocks, and with `bands` its interval, for every update that all runs of an arm have recorded.

    Intervals are clipped to the possible scores, `floor` to 100 %.
    """
    for (arm, colour), style in zip(colours.items(), cycle(("-", "--", "-.", ":")), strict=False):  # equal curves stay visible
        found = [
            {record["update"]: value for record in records_of(run) if np.isfinite(value := record.get(CURVE, np.nan))}
            for run in runs
            if run.arm == arm
        ]
        updates = sorted(set[float]().union(*found).intersection(*found))
        if not updates:
            continue
        curves_BU = np.array([[curve[update] for update in updates] for curve in found])
        dot = "o" if len(updates) == 1 else None  # a line of one point cannot be seen
        axes.plot(updates, curves_BU.mean(axis=0), color=colour, linestyle=style, marker=dot, label=arm)
        if len(found) >= FEWEST_RUNS and bands:
            found_U = [mean_interval(column) for column in curves_BU.T]
            low, high = (
                [np.clip(end, floor, 100.0) for end in ends] for ends in zip(*((b.low, b.high) for b in found_U), strict=True)
            )
            axes.fill_between(updates, low, high, color=colour, alpha=0.15)
    axes.set_xlabel("update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylabel("committed accuracy [%]")
    _legend(axes)


def slopes(axes: Axes, values_BA: pd.DataFrame, spec: OutcomeSpec, colours: Colours, links: Links) -> None:
    """Draw one line per block across all arms, and the means of the arms."""
    arms = list(values_BA)
    axes.plot(range(len(arms)), values_BA.to_numpy().T, color="#999999", linewidth=0.8)
    for place, (arm, mean) in enumerate(values_BA.mean().items()):
        _dots(axes, [place] * len(values_BA), values_BA[arm], "#999999", links)
        axes.plot([place - 0.15, place + 0.15], [mean, mean], color=colours[str(arm)], linewidth=3)
    many = len(arms) > FEW
    axes.set_xticks(range(len(arms)), arms, rotation=30 if many else 0, ha="right" if many else "center")
    axes.set_ylabel(spec.label if spec.unit == "1" else f"{spec.label} [{spec.unit}]")


def _dots(axes: Axes, x: Any, y_B: Any, colour: ColorType, links: Links, **more: Any) -> None:
    """Draw one dot per block of an arm, each of which leads to the page of its run."""
    dots = axes.scatter(x, y_B, color=colour, s=18, zorder=3, **more)
    dots.set_urls([links.get((y_B.name, block)) for block in y_B.index])


def _legend(axes: Axes) -> None:
    """Put the legend beside the axes, where it hides no data."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def front(
    axes: Axes, parameters_BA: pd.DataFrame, accuracy_BA: pd.DataFrame, colours: Mapping[str, ColorType], links: Links
) -> None:
    """Draw accuracy against parameters, with the Pareto front of all runs but those of the A/A control."""
    for arm, colour in colours.items():
        _dots(axes, parameters_BA[arm], accuracy_BA[arm], colour, links, label=arm)
    arms = [arm for arm in parameters_BA if arm != AA_CONTROL]
    best = pareto(np.column_stack([parameters_BA[arms].to_numpy().ravel(), accuracy_BA[arms].to_numpy().ravel()]))
    axes.plot(*best.T, color="#888888", linewidth=1, drawstyle="steps-post")
    axes.set_xlabel("parameters of seeds")
    axes.set_ylabel("test accuracy [%]")
    _legend(axes)


def pareto(points_B2: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the Pareto-optimal points in cost (first column, lower is better) and gain (second column), sorted by cost."""
    finite = points_B2[np.isfinite(points_B2).all(axis=1)]
    ordered = finite[np.lexsort((-finite[:, 1], finite[:, 0]))]
    reached = np.maximum.accumulate(np.concatenate([[-np.inf], ordered[:-1, 1]])) if len(ordered) else np.zeros(0)
    return ordered[ordered[:, 1] > reached]
