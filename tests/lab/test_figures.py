"""The figures of a report."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from esper.lab.arms import AA_CONTROL
from esper.lab.figures import CURVE, FEW, draw, front, learning_curves, page_links, pareto, slopes
from esper.lab.outcomes import OUTCOMES
from esper.lab.runs import Run


def test_the_front_holds_undominated_points() -> None:
    points = np.array([[3.0, 5.0], [1.0, 2.0], [2.0, 2.0], [1.0, 1.0], [4.0, 5.0], [0.5, np.nan], [5.0, 9.0]])
    assert pareto(points).tolist() == [[1, 2], [3, 5], [5, 9]]


@pytest.mark.parametrize("count", [2, 13])
def test_labels_do_not_overlap(count: int) -> None:
    arms = [f"without_part_{index}" for index in range(count)]
    cells = pd.DataFrame({arm: [float(block + place) for block in range(3)] for place, arm in enumerate(arms)})
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    slopes(axes, cells, OUTCOMES["accuracy"], dict.fromkeys(arms, (0.1, 0.5, 0.7)), {})
    canvas.draw()
    boxes = [label.get_window_extent(canvas.get_renderer()) for label in axes.get_xticklabels()]
    gap = min(second.x0 - first.x1 for first, second in pairwise(boxes))
    assert gap > 0 or all(label.get_rotation() == 30 for label in axes.get_xticklabels())


def test_learning_curves_have_bands_for_few_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "esper.lab.figures.records_of", lambda run: [{CURVE: run.seed + u, "update": u} for u in range(run.updates)]
    )
    arms = [f"part_{index}" for index in range(FEW + 1)]
    runs = [Run(arm=arm, block=seed, seed=seed, folder=Path(), updates=4 + seed) for arm in arms for seed in range(3)]
    few, many = Figure().subplots(), Figure().subplots()
    learning_curves(few, runs, dict.fromkeys(arms[:FEW], (0, 0, 0)))
    learning_curves(many, runs, dict.fromkeys(arms, (0, 0, 0)), bands=False)
    assert [line.get_label() for line in many.lines] == arms
    assert (len(few.lines), len(few.collections), len(many.collections)) == (FEW, FEW, 0)
    assert many.lines[0].get_ydata().tolist() == [1, 2, 3, 4]  # as far as all runs have come
    two = Figure().subplots()
    learning_curves(two, [run for run in runs if run.seed < 2], dict.fromkeys(arms[:2], (0, 0, 0)))
    assert (len(two.lines), len(two.collections)) == (2, 0), "two runs have no band"


def test_learning_curves_join_the_updates_that_all_runs_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs record every tenth update, and those of anomalies."""
    recorded = {0: [10, 20, 30], 1: [10, 13, 20], 2: [10, 15, 20, 30]}
    monkeypatch.setattr("esper.lab.figures.records_of", lambda run: [{CURVE: u, "update": u} for u in recorded[run.seed]])
    runs = [Run(arm="a", block=seed, seed=seed, folder=Path(), updates=30) for seed in recorded]
    axes = Figure().subplots()
    learning_curves(axes, runs, {"a": (0, 0, 0)})
    assert axes.lines[0].get_xydata().tolist() == [[10, 10], [20, 20]]


def heights(axes: Axes) -> tuple[float, float]:
    """Return the lowest and the highest point of a band."""
    found = axes.collections[0].get_paths()[0].vertices[:, 1]
    return found.min(), found.max()


def test_bands_end_at_the_bounds_of_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.lab.figures.records_of", lambda run: [{CURVE: 1.0 + 97 * (run.seed == 0), "update": 1}])
    runs = [Run(arm="a", block=seed, seed=seed, folder=Path(), updates=2) for seed in range(3)]
    axes = Figure().subplots()
    learning_curves(axes, runs, {"a": (0, 0, 0)})
    assert heights(axes) == (0, 100)
    outcomes = pd.DataFrame([{"arm": "a", "block": 0, "outcome": name, "value": 1.0} for name in ("accuracy", "parameters")])
    finished = [replace(run, update=2) for run in runs]
    learning, *_ = draw(finished, outcomes, OUTCOMES["accuracy"], "R2", -100.0, {})
    assert heights(learning.figure.axes[0]) == (-100, 100)


def test_the_control_is_not_in_the_front() -> None:
    parameters, accuracy = (
        pd.DataFrame({"a": [10.0, 20.0], AA_CONTROL: [5.0, 30.0]}),
        pd.DataFrame({"a": [1.0, 2.0], AA_CONTROL: [9.0, 9.0]}),
    )
    axes = Figure().subplots()
    front(axes, parameters, accuracy, {"a": (0, 0, 0), AA_CONTROL: (1, 0, 0)}, {})
    assert axes.lines[0].get_xydata().tolist() == [[10, 1], [20, 2]]


def test_equal_learning_curves_are_told_apart_at_whole_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.lab.figures.records_of", lambda _: [{CURVE: 50.0 + 10 * u, "update": 1 + u} for u in range(2)])
    runs = [Run(arm=arm, block=0, folder=Path(), updates=2) for arm in "abcd"]
    axes = Figure().subplots()
    learning_curves(axes, runs, dict.fromkeys("abcd", (0, 0, 0)))
    assert len({line.get_linestyle() for line in axes.lines}) == 4
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1, 2]


def test_dots_lead_to_the_pages_of_their_runs(tmp_path: Path) -> None:
    runs = [Run(arm=arm, block=block, folder=tmp_path / f"{arm} 1" / f"block-{block}") for arm in "ab" for block in range(2)]
    for run in runs[1:]:
        run.folder.mkdir(parents=True)
        (run.folder / "run.html").touch()
    links = page_links(runs, tmp_path)
    assert links == {("a", 1): "a%201/block-1/run.html", ("b", 0): "b%201/block-0/run.html", ("b", 1): "b%201/block-1/run.html"}
    outcomes = pd.DataFrame(
        [
            {"arm": arm, "controller": "policy", "block": block, "stratum": "", "outcome": name, "value": 50.0 + block}
            for arm in ("a", "b", "wait")
            for block in range(2)
            for name in ("accuracy", "parameters")
        ]
    )
    pages = [one.inline() for one in draw([], outcomes, OUTCOMES["accuracy"], "accuracy", 0.0, links)]
    assert len(pages) == 2, "nothing was recorded in training, so there is no learning curve"
    for page in pages:
        assert [page.count(f'href="{address}"') for address in links.values()] == [1] * 3
    assert all("run.html" not in one.inline() for one in draw([], outcomes, OUTCOMES["accuracy"], "accuracy", 0.0, {}))


def test_a_learning_curve_of_one_update_is_a_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.lab.figures.records_of", lambda run: [{CURVE: 50.0, "update": u} for u in range(run.updates)])
    for updates, marker in ((1, "o"), (2, "None")):
        axes = Figure().subplots()
        learning_curves(axes, [Run(arm="a", block=0, seed=0, folder=Path(), updates=updates)], {"a": (0, 0, 0)})
        assert axes.lines[0].get_marker() == marker
