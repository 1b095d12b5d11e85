"""The share of a gap that a policy closes, as the records of studies state it."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from gap import RIVALS, closed  # a script of the records, not of the package


def table(noise: float, blocks: int = 15, **means: float) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame({arm: mean + noise * rng.standard_normal(blocks) for arm, mean in means.items()})


def test_the_share_is_measured_from_the_best_rival() -> None:
    exact = table(0.0, fixed=50, bandit=58, react=60, ppo=66, oracle=70)
    assert closed(exact, "ppo", RIVALS, "oracle") == pytest.approx((0.6, 0.6, 0.6))
    assert closed(exact, "bandit", RIVALS, "oracle")[0] == pytest.approx(-0.2)


def test_the_interval_covers_the_share() -> None:
    share, low, high = closed(table(1.0, fixed=50, bandit=60, react=60, ppo=66, oracle=70), "ppo", RIVALS, "oracle")
    assert low < share < high
    assert low < 0.6 < high
    assert 0.05 < high - low < 0.4


def test_the_interval_covers_the_share_as_often_as_it_says() -> None:
    """Percentiles of a bootstrap over blocks cover 0.88 here."""
    rng, truth, covered = np.random.default_rng(5), {"fixed": 60.0, "bandit": 62.5, "react": 62.7, "ppo": 66.9, "oracle": 71.9}, 0
    share = (truth["ppo"] - truth["react"]) / (truth["oracle"] - truth["react"])
    for _ in range(400):
        noise = rng.standard_normal((10, 1)) + rng.standard_normal((10, 5)) * [5, 2, 2.5, 1, 1]
        _, low, high = closed(pd.DataFrame(np.array([*truth.values()]) + noise, columns=[*truth]), "ppo", RIVALS, "oracle")
        covered += low <= share <= high
    assert 0.93 <= covered / 400 <= 0.98


def test_without_a_gap_there_is_no_share() -> None:
    assert np.isnan(closed(table(0.0, fixed=70, bandit=60, react=60, ppo=66, oracle=70), "ppo", RIVALS, "oracle")).all()
