"""Tables and pages of the records in experiments/, for tests that recompute what pages tell."""

import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from esper.stats.sign_flip import sign_flip

ROOT = Path(__file__).parents[2]
DRIFT = ROOT / "docs" / "drift.md"
RESULTS = ROOT / "docs" / "results.md"
LOG = ROOT / "experiments" / "LOG.md"
README = (ROOT / "README.md").read_text()
ROUNDING = 0.051
"""Largest error of a number with one decimal."""
RESAMPLING = 0.06
"""Error of the ends of an interval from 9,999 of 32,768 sign patterns [points]."""


def page_of(path: Path) -> str:
    """Return the text of a page with every paragraph and item on one line, and rows of tables on lines of their own."""
    return re.sub(r"(?<=[^|\n])\n(?:  )?(?=[^\s|#*>-])", " ", path.read_text())


@cache  # each file is read once: no test changes a table
def values(record: str, outcome: str) -> pd.DataFrame:
    """Return an outcome of a record as a table of blocks by arms."""
    return pd.read_csv(ROOT / "experiments" / record / "comparison.csv").pivot(index="block", columns="arm", values=outcome)


def percent(share: tuple[float, float, float]) -> list[int]:
    """Return a share and its interval [%]."""
    return [round(100 * part) for part in share]


def shown(differences: pd.Series, unit: str = "") -> str:
    """Return the mean of paired differences, in a unit, and its interval as far as the closing bracket."""
    found = sign_flip(differences.dropna().to_numpy()).interval
    return f"{found.mean:.1f}{unit} ({found.low:.1f} to {found.high:.1f}"


def assert_interval(shown: str, differences: pd.Series) -> None:
    """Assert that a text such as `11.4 (10.1 to 12.7)` holds the mean of paired differences and its interval."""
    mean, low, high = (float(number) for number in re.findall(r"-?\d+\.\d+", shown))
    interval = sign_flip(differences.to_numpy()).interval
    assert mean == pytest.approx(interval.mean, abs=ROUNDING)
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=ROUNDING + RESAMPLING)
