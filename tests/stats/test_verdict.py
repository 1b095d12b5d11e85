"""What is said of an experiment whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from esper.stats import paired
from esper.stats.calibration import MARGIN, NOISES, Setting, Tally, power_at_recommendation, simulate, tally
from esper.stats.paired import MIN_BLOCKS
from esper.stats.verdict import Conclusion, PairResult, compare_arms

BLOCKS = {
    "good": np.linspace(1, 2, 12) + 3,
    "plain": np.linspace(1, 2, 12) + 0.02 * np.sin(np.arange(12)),
    "same": np.linspace(1, 2, 12) + 0.02 * np.cos(np.arange(12)),
    "noisy": np.linspace(1, 2, 12) + 4 * np.sin(np.arange(12)),
}


def table(*arms: str, blocks: int = 12) -> pd.DataFrame:
    rows = [(arm, block, BLOCKS[arm][block], "") for arm in arms for block in range(blocks)]
    return pd.DataFrame(rows, columns=["arm", "block", "value", "stratum"])


def verdicts(results: list[PairResult]) -> list[Conclusion]:
    return [one.verdict for one in results]


def test_the_three_verdicts() -> None:
    told = compare_arms(table("plain", "good", "same", "noisy"), margin=0.5)
    words = {(one.difference.first, one.difference.second): one for one in told}
    assert words["plain", "good"].verdict is Conclusion.better
    assert words["plain", "good"].winner == "good"
    assert str(words["plain", "good"]) == "good is better than plain"
    assert words["plain", "same"].verdict is Conclusion.equivalent
    assert words["plain", "noisy"].verdict is Conclusion.undecided
    assert f"takes {words['plain', 'noisy'].needed} blocks" in str(words["plain", "noisy"])


def test_where_less_is_better_the_other_arm_wins() -> None:
    (told,) = compare_arms(table("plain", "good"), margin=0.5, higher_is_better=False)
    assert told.winner == "plain"


def test_a_difference_that_does_not_matter_is_none() -> None:
    (told,) = compare_arms(table("plain", "good"), margin=5)
    assert told.p_holm < 0.001
    assert told.verdict is Conclusion.equivalent


def test_few_blocks_give_no_verdict() -> None:
    (told,) = compare_arms(table("plain", "good", blocks=MIN_BLOCKS - 1), margin=0.5)
    assert told.verdict is Conclusion.too_few
    assert "no verdict" in str(told)
    assert verdicts(compare_arms(table("plain", "good", blocks=MIN_BLOCKS), margin=0.5)) == [Conclusion.better]


def test_a_pair_of_which_nothing_is_known_is_named_too() -> None:
    cells = table("plain", "good", "same")
    cells.loc[(cells.arm == "same") & (cells.block > 0), "value"] = np.nan
    told = compare_arms(cells, margin=0.5)
    assert [one.verdict for one in told] == [Conclusion.better, Conclusion.too_few, Conclusion.too_few]
    assert str(told[1]) == "no verdict on plain and same: 1 block is fewer than 10"
    assert told[1].needed is None
    assert told[0].p_holm == 3 * told[0].difference.p  # it counts among the pairs that were asked about


def test_how_many_blocks_it_takes_depends_on_the_number_of_pairs() -> None:
    (alone,) = compare_arms(table("plain", "noisy"), margin=0.5)
    among = compare_arms(table("plain", "noisy", "good", "same"), margin=0.5)[0]
    assert among.difference == alone.difference
    assert alone.needed is not None
    assert among.needed is not None
    assert among.needed > 1.3 * alone.needed


@pytest.mark.parametrize("verdict", [Conclusion.void, Conclusion.unfinished])
def test_a_verdict_can_be_withheld(verdict: Conclusion) -> None:
    told = compare_arms(table("plain", "good"), margin=0.5, withheld=verdict)
    assert verdicts(told) == [verdict]
    assert told[0].winner is None
    assert str(told[0]) == f"no verdict on plain and good: the experiment is {verdict.value}"


def test_blocks_that_lack_a_cell_are_left_out_pair_by_pair() -> None:
    cells = table("plain", "good", "same")
    cells.loc[(cells.arm == "same") & (cells.block == 5), "value"] = np.nan
    cells = cells[(cells.arm != "good") | (cells.block != 3)].sample(frac=1, random_state=0)
    cells = pd.concat([cells[cells.arm == arm] for arm in ("plain", "good", "same")])
    told = compare_arms(cells, margin=0.5)
    assert [one.difference.blocks for one in told] == [11, 11, 10]


def test_arms_that_share_no_blocks_are_compared_without_pairs() -> None:
    cells = table("plain", "good")
    cells.loc[cells.arm == "good", "block"] += 100
    told = compare_arms(cells, margin=0.5)
    assert not told[0].difference.paired
    assert told[0].winner == "good"


def test_all_pairs_are_corrected_together() -> None:
    told = compare_arms(table("plain", "good", "noisy"), margin=0.5)
    plain = [one.difference.p for one in told]
    assert [one.p_holm for one in told] == pytest.approx(multipletests(plain, method="holm")[1])
    assert any(one.p_holm > p for one, p in zip(told, plain, strict=True))


def test_the_same_table_gives_the_same_numbers() -> None:
    one, other = (compare_arms(table("plain", "noisy"), margin=0.5) for _ in range(2))
    assert one == other


# ---- experiments with a known truth; python -m esper.stats.calibration does this at length


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "RESAMPLES", 999)


@pytest.mark.usefixtures("quick")
def test_wrong_claims_are_rare_and_intervals_hold_the_truth() -> None:
    whole = Tally()
    for noise in NOISES:
        for effect in (0.0, MARGIN):
            whole.add(tally(Setting(noise=noise, effect=effect), experiments=25, seed=1))
    assert whole.experiments == 200
    assert whole.wrong <= 17  # with a chance of 5 % there would be more once in fifty times
    assert whole.coverage == pytest.approx(0.95, abs=0.03)


@pytest.mark.usefixtures("quick")
def test_a_method_that_errs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a correction for the number of pairs, and with hosts counted as runs, the tally says so."""
    monkeypatch.setattr("esper.stats.verdict._holm", lambda p_values: [p / 3 for p in p_values])
    assert tally(Setting(arms=4), experiments=60, seed=2).wrong > 12


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("arms", "most"), [(2, 17), (5, 24)])
def test_an_effect_is_found_with_the_blocks_that_are_asked_for(arms: int, most: float) -> None:
    power, blocks = power_at_recommendation(1.0, 0.7, arms=arms, experiments=60, seed=0)
    assert power > 0.75
    assert blocks < most


@pytest.mark.usefixtures("quick")
def test_pairs_save_runs() -> None:
    _, paired_blocks = power_at_recommendation(1.0, 0.6, experiments=30, seed=0)
    power, blocks = power_at_recommendation(1.0, 0.6, paired=False, experiments=30, seed=0)
    assert power > 0.6
    assert blocks > 1.5 * paired_blocks


@pytest.mark.parametrize("noise", NOISES)
def test_simulated_runs_are_as_they_are_said_to_be(noise: str) -> None:
    outcome = simulate(Setting(noise=noise, effect=1.0, correlation=0.5, blocks=40_000, arms=2), np.random.default_rng(0))
    fine = np.isfinite(outcome).all(axis=0)
    assert np.nanmean(outcome, axis=1) == pytest.approx([0, 1], abs=0.03)
    assert outcome[0][fine].std() == pytest.approx(1, abs=0.06)
    assert fine.mean() == pytest.approx(0.81 if noise == "failed" else 1, abs=0.01)
    if noise in ("normal", "heavy"):
        assert np.corrcoef(outcome)[0, 1] == pytest.approx(0.5, abs=0.03)
    if noise == "unequal":
        assert outcome[1].std() == pytest.approx(np.sqrt(0.5 + 4 * 0.5), abs=0.05)
