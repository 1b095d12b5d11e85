"""Trends of metrics over a run, and the word for each."""

import json
import random
from pathlib import Path

import pytest

from esper.telemetry.trend import PLANTED, History, trend


def series(start: float, end: float, count: int = 50, noise: float = 1.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [start + (end - start) * u / (count - 1) + draw.gauss(0, noise) for u in range(count)]


@pytest.mark.parametrize(("end", "word"), [(60.0, "rising"), (50.0, "no clear trend"), (40.0, "falling")])
def test_a_trend_beyond_the_noise_has_a_direction(end: float, word: str) -> None:
    found = trend(series(50.0, end, seed=1))
    assert found.word == word
    assert found.count == 5
    assert found.mean == pytest.approx(end, abs=2.0)


def test_a_run_without_a_trend_is_rarely_called_one() -> None:
    words = [trend(series(50.0, 50.0, count=30, seed=seed)).word for seed in range(400)]
    # about 5 %, and more since the noise is estimated from 29 differences
    assert 0.85 < words.count("no clear trend") / 400 < 0.99


def test_the_error_of_the_mean_is_that_of_the_noise_alone() -> None:
    assert trend(series(0.0, 100.0, count=400, noise=3.0)).error == pytest.approx(3.0 / 40**0.5, rel=0.15)


def test_few_updates_have_no_trend() -> None:
    found = trend([1.0, 9.0, 20.0])
    assert found.text(" %") == "only 3 updates: first 1 %, last 20 %"


def test_updates_without_growth_are_the_reference() -> None:
    values, planted = series(50.0, 60.0), [1.0] * 50
    values[10], planted[10] = 80.0, 0.0
    found = trend(values, planted)
    assert (found.word, found.waiting, found.idle) == ("worse than never growing", 80.0, 1)
    assert found.text().endswith("never growing (1 update): 80")
    values[10] = 40.0
    assert trend(values, planted).word == "rising"


def test_a_resumed_run_knows_its_earlier_updates(tmp_path: Path) -> None:
    lines = [json.dumps({"update": u, "policy/return": float(u), PLANTED: 1.0}) for u in range(1, 31)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    history = History(tmp_path, resume_update=20)
    history.add(21, {"policy/return": 21.0, PLANTED: 0.0, "host/loss": float("inf")})
    assert history.updates == 21
    (found,) = history.trends().values()
    assert (found.first, found.last, found.word, found.waiting) == (1.0, 21.0, "rising", 21.0)
    assert History(tmp_path).trends() == {}, "a new run starts from nothing"
