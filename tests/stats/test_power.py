"""Power and variance components, against simulated experiments whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from esper.stats import power
from esper.stats.verdict import Conclusion, compare_arms


def simulated_power(spread: float, effect: float, looks: list[int], levels: list[float], experiments: int = 4000) -> float:
    """Return the share of simulated experiments in which a t test on all blocks so far is significant at some look."""
    rng = np.random.default_rng(1)
    differences = rng.normal(effect, spread, (experiments, looks[-1]))
    p = np.array([stats.ttest_1samp(differences[:, :look], 0, axis=1).pvalue for look in looks])
    return float((p < np.array(levels)[:, None]).any(axis=0).mean())


@pytest.mark.parametrize(
    ("spread", "looks", "levels"),
    [
        (2.2, [12], [0.05]),
        (2.2, [12], [0.05 / 6]),
        (2.2, [41], [0.05]),
        (1.5, [12, 24], [0.003, 0.049]),
        (1.5, [2, 3], [0.1, 0.1]),
    ],
)
def test_power_is_that_of_simulated_experiments(spread: float, looks: list[int], levels: list[float]) -> None:
    found = power.detection_power(spread, 1.0, looks, levels)
    for count in range(1, len(looks) + 1):
        assert found[count - 1] == pytest.approx(simulated_power(spread, 1.0, looks[:count], levels[:count]), abs=0.025)


def test_power_at_the_needed_blocks_is_eighty_percent() -> None:
    for pairs in (1, 3):
        needed = power.PlannedTest(margin=1.0, looks=[12], pairs=pairs).blocks_needed(2.2)
        before, at = (power.PlannedTest(margin=1.0, looks=[count], pairs=pairs).powers(2.2)[0] for count in (needed - 1, needed))
        assert before < 0.8 <= at
    assert power.PlannedTest(margin=1.0, looks=[10]).powers(0.0) == [pytest.approx(1)]
    looked = power.PlannedTest(margin=1.0, looks=[12, 24])
    assert power.PlannedTest(margin=1.0, looks=[24]).blocks_needed(2.2) <= looked.blocks_needed(2.2) <= 44
    assert looked.powers(2.2, looked.blocks_needed(2.2) / 24)[-1] == pytest.approx(0.8, abs=0.02)
    assert power.PlannedTest(margin=3.0, looks=[2, 22, 24]).blocks_needed(2.4) == 10, "two looks fall on the same block"


def test_looks_that_cannot_reject_have_no_power() -> None:
    assert power.PlannedTest(margin=1.0, looks=[9]).powers(0.1) == [0.0]
    assert power.PlannedTest(margin=1.0, looks=[10], pairs=28).powers(0.1) == [0.0]  # p is at least 2 / 2^10
    first, second = power.PlannedTest(margin=1.0, looks=[10, 40]).powers(0.1)
    assert (first, second) == (0.0, 1.0)  # nor is a look after a quarter of the blocks spent enough


@pytest.mark.slow
def test_the_power_at_a_share_of_alpha_is_that_of_a_verdict_among_three_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holm's correction rejects at least what Bonferroni's does, and the sign-flip test has the power of the t test."""
    monkeypatch.setattr("esper.stats.sign_flip.HALVINGS", 1)  # no verdict reads the ends of an interval
    rng, found = np.random.default_rng(2), list[bool]()
    for _ in range(150):
        runs = rng.normal(0, 1.3 / np.sqrt(2), (3, 20)) + np.array([0.5, 0.5, -0.5])[:, None]
        cells = pd.DataFrame(
            [
                {"arm": arm, "block": block, "value": runs[index, block], "stratum": ""}
                for index, arm in enumerate("abc")
                for block in range(20)
            ]
        )
        pair = next(
            one for one in compare_arms(cells, margin=0.01) if (one.difference.first, one.difference.second) == ("a", "c")
        )
        found.append(pair.verdict is Conclusion.better)
    (expected,) = power.PlannedTest(margin=1.0, looks=[20], pairs=3).powers(1.3)
    assert expected - 0.08 < np.mean(found) < expected + 0.12


def test_variance_parts_are_those_simulated() -> None:
    rng = np.random.default_rng(3)
    runs = rng.normal(1.0, 1.5, (2, 400, 1)) + rng.normal(0, 8.0, (2, 400, 16))
    parts = power.variance_parts(list(runs))
    assert parts.runs == pytest.approx(1.5**2, rel=0.25)
    assert parts.hosts == pytest.approx(8**2 / 16, rel=0.05)
    assert parts.share == pytest.approx(4 / 6.25, abs=0.06)
    assert parts.spread(64) == pytest.approx(np.sqrt(1.5**2 + 1), rel=0.1)
    assert parts.spread(16) == pytest.approx(runs.mean(axis=2).std(axis=1).mean(), rel=0.02)


def test_runs_have_no_negative_variance() -> None:
    hosts = np.tile([-1.0, 1.0], (5, 4)) + np.arange(5)[:, None] * 0.01
    parts = power.variance_parts([hosts])
    assert parts.runs == 0
    assert parts.share == 1.0
    assert parts.spread(8) == pytest.approx(hosts.mean(axis=1).std(ddof=1))
    assert power.variance_parts([np.ones((3, 2))]).share == 0.0
