"""The report of an experiment: one page that holds its tables and figures."""

# U updates, B blocks

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import numpy.typing as npt

from esper.config import ConfigError
from esper.lab.runs import Outcome, Run, records_of
from esper.stats.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = Mapping[str, Mapping[int, float]]
"""Arm -> block -> outcome."""
CURVE = "host/committed_accuracy"
# Twenty that can be told apart: ten, and the same ten paler.
COLOURS = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#ff7f0e", "#7f7f7f"),
    *("#aec7e8", "#ff9896", "#98df8a", "#c5b0d5", "#c49c94", "#f7b6d2", "#9edae5", "#dbdb8d", "#ffbb78", "#c7c7c7"),
)
FEW = 5
"""Names of so many arms fit side by side under a figure, and their bands into the same axes."""
COLUMNS, WIDE = 4, 11.0
"""Axes side by side where there are more, and the width of the figure then [inch]."""
PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  table { border-collapse: collapse; margin: 1rem 0; }
  td, th { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; }
  td:first-child, th:first-child { text-align: left; } .verdict { font-size: 1.2rem; } .void { color: #b00020; }
  pre { white-space: pre-wrap; background: #f6f6f6; padding: .7rem; }
  img { max-width: 100%; } figure { margin: 1.5rem 0; } figcaption { color: #555; } caption { text-align: left; color: #555; }
</style>
<h1>{{ title }}</h1>
{% for line in sentences %}
<p class="verdict{{ ' void' if line.startswith('void') }}">{{ line }}</p>
{% endfor %}
{% for table in tables %}
<table><caption>{{ table.caption }}</caption>
<tr>{% for cell in table.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% endfor %}
{% for figure in figures %}
<figure>
<img alt="{{ figure.caption }}" src="data:image/png;base64,{{ figure.image }}">
<figcaption>{{ figure.caption }}</figcaption>
</figure>
{% endfor %}
{% if plan %}
<h2>Planned before the first run</h2>
<pre>{{ plan[0] }}</pre>
<p>SHA-256 of the plan: {{ plan[1] }}</p>
{% else %}
<p>No plan was written down before the first run (plan=FILE): the outcome may have been chosen with the numbers in sight.</p>
{% endif %}
<p>{{ command }}</p>
</html>
""")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure of the report."""

    name: str
    """Of its file, where it gets one."""
    caption: str
    figure: "Figure"

    def image(self, kind: str) -> bytes:
        """As a file of this kind: png, pdf or svg."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format=kind, dpi=110)
        return buffer.getvalue()


def page(
    *,
    title: str,
    sentences: list[str],
    tables: list[dict[str, Any]],
    drawings: list[Drawing],
    command: str,
    plan: tuple[str, str] | None = None,
) -> str:
    """The report as HTML, with figures inside.

    Args:
        tables: each with `caption`, `head` and `rows`.
        command: what made it.
        plan: what was written down before the first run, and its fingerprint.
    """
    images = [{"image": base64.b64encode(one.image("png")).decode(), "caption": one.caption} for one in drawings]
    return PAGE.render(title=title, sentences=sentences, tables=tables, figures=images, command=command, plan=plan)


def draw(runs: list[Run], outcomes: Mapping[str, Cells], outcome: Outcome) -> list[Drawing]:
    """All figures of an experiment.

    Raises:
        ConfigError: matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: install the extra compare, or leave them out with plots=false") from error
    cells = outcomes[outcome.name]
    colours = {arm: COLOURS[index % len(COLOURS)] for index, arm in enumerate(cells)}
    drawings = [
        Drawing(name, caption, Figure(figsize=(7.0, 3.8), layout="constrained"))
        for name, caption in (
            ("learning", "Committed accuracy in training: mean over blocks, and its 95 % interval."),
            ("slopes", f"{outcome.name} of every block, joined: {outcome.what}."),
            ("profiles", f"Share of runs that reach a given {outcome.name}."),
            ("front", "Test accuracy against parameters: a dot a run; the line joins what nothing beats in both."),
        )
    ]
    learning, joined, shares, beside = (one.figure for one in drawings)
    learning_curves(learning, [run for run in runs if run.finished], colours)
    slopes(joined.subplots(), cells, outcome, colours)
    profiles(shares.subplots(), cells, outcome, colours)
    front(beside.subplots(), outcomes, colours)
    return drawings


def learning_curves(figure: "Figure", runs: list[Run], colours: Mapping[str, str]) -> None:
    """Mean and interval over blocks, update by update, as far as all runs of an arm have come.

    A few arms share their axes. The bands of many would cover each other: each gets axes of its own, beside the first arm.
    """
    curves: dict[str, npt.NDArray[np.float64]] = {}
    for arm in colours:
        lived = [[record[CURVE] for record in records_of(run) if CURVE in record] for run in runs if run.arm == arm]
        if lived and (length := min(map(len, lived))):
            curves[arm] = np.array([curve[:length] for curve in lived])
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


def slopes(axes: "Axes", cells: Cells, outcome: Outcome, colours: Mapping[str, str]) -> None:
    """A line a block across all arms, and their means."""
    arms = list(cells)
    for block in sorted({block for row in cells.values() for block in row}):
        axes.plot(range(len(arms)), [cells[arm].get(block, np.nan) for arm in arms], color="#999999", linewidth=0.8, marker=".")
    for place, arm in enumerate(arms):
        axes.plot([place - 0.15, place + 0.15], 2 * [_mean(cells[arm])], color=colours[arm], linewidth=3)
    many = len(arms) > FEW
    axes.set_xticks(range(len(arms)), arms, rotation=30 if many else 0, ha="right" if many else "center")
    axes.set_ylabel(f"{outcome.name} [{outcome.unit}]")


def _legend(axes: "Axes") -> None:
    """Beside the axes: inside, the names of many arms would hide what they did."""
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _mean(row: Mapping[int, float]) -> float:
    """Of the blocks that have a value; NaN where none has."""
    finite = [value for value in row.values() if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def profiles(axes: "Axes", cells: Cells, outcome: Outcome, colours: Mapping[str, str]) -> None:
    """Performance profiles: the share of runs beyond each value (Dolan, More 2002)."""
    for arm, row in cells.items():
        values = np.sort([value for value in row.values() if np.isfinite(value)])
        if len(values):
            steps = np.concatenate([[values[0]], values])
            axes.step(steps, np.linspace(1, 0, len(steps)), where="post", color=colours[arm], label=arm)
    axes.set_xlabel(f"{outcome.name} [{outcome.unit}]")
    axes.set_ylabel("share of runs beyond")
    _legend(axes)


def front(axes: "Axes", outcomes: Mapping[str, Cells], colours: Mapping[str, str]) -> None:
    """Accuracy against parameters, with the Pareto front of all runs."""
    points: list[tuple[float, float]] = []
    for arm, colour in colours.items():
        pairs = [(outcomes["parameters"][arm][block], value) for block, value in outcomes["accuracy"][arm].items()]
        points += pairs
        axes.scatter(*np.array(pairs).T, color=colour, label=arm, s=18)
    best = pareto(np.array(points))
    axes.plot(*best.T, color="#444444", linewidth=1, drawstyle="steps-post")
    axes.set_xlabel("parameters of seeds")
    axes.set_ylabel("test accuracy [pp]")
    _legend(axes)


def pareto(points_B2: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Points that no other beats in cost (first column, less is better) and gain (second), by cost."""
    finite = points_B2[np.isfinite(points_B2).all(axis=1)]
    ordered = finite[np.lexsort((-finite[:, 1], finite[:, 0]))]
    reached = np.maximum.accumulate(np.concatenate([[-np.inf], ordered[:-1, 1]])) if len(ordered) else np.zeros(0)
    return ordered[ordered[:, 1] > reached]
