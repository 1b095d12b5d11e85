"""What is said of an experiment whose truth is known."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from esper.stats import paired
from esper.stats.calibration import MARGIN, NOISES, Setting, Tally, power_at_recommendation, runs, try_out
from esper.stats.experiment import Comparison, compare
from esper.stats.paired import LEAST_BLOCKS
from esper.stats.verdict import Verdict

BLOCKS = {
    "good": np.linspace(1, 2, 12) + 3,
    "plain": np.linspace(1, 2, 12) + 0.02 * np.sin(np.arange(12)),
    "same": np.linspace(1, 2, 12) + 0.02 * np.cos(np.arange(12)),
    "noisy": np.linspace(1, 2, 12) + 4 * np.sin(np.arange(12)),
}


def table(*arms: str, blocks: int = 12) -> dict[str, dict[int, float]]:
    return {arm: dict(enumerate(BLOCKS[arm][:blocks].tolist())) for arm in arms}


def verdicts(told: Comparison) -> list[Verdict]:
    return [one.verdict for one in told.judgements]


def test_the_three_verdicts() -> None:
    told = compare(table("plain", "good", "same", "noisy"), margin=0.5)
    words = {(one.difference.first, one.difference.second): one for one in told.judgements}
    assert words["plain", "good"].verdict is Verdict.better
    assert words["plain", "good"].winner == "good"
    assert str(words["plain", "good"]) == "good is better than plain"
    assert words["plain", "same"].verdict is Verdict.equivalent
    assert words["plain", "noisy"].verdict is Verdict.undecided
    assert f"takes {words['plain', 'noisy'].needed} blocks" in str(words["plain", "noisy"])
    assert told.missing == ()


def test_where_less_is_better_the_other_arm_wins() -> None:
    (told,) = compare(table("plain", "good"), margin=0.5, higher_is_better=False).judgements
    assert told.winner == "plain"


def test_a_difference_that_does_not_matter_is_none() -> None:
    (told,) = compare(table("plain", "good"), margin=5).judgements
    assert told.p_holm < 0.001
    assert told.verdict is Verdict.equivalent


def test_few_blocks_give_no_verdict() -> None:
    (told,) = compare(table("plain", "good", blocks=LEAST_BLOCKS - 1), margin=0.5).judgements
    assert told.verdict is Verdict.too_few
    assert "no verdict" in str(told)
    assert verdicts(compare(table("plain", "good", blocks=LEAST_BLOCKS), margin=0.5)) == [Verdict.better]


def test_a_pair_of_which_nothing_is_known_is_named_too() -> None:
    cells = table("plain", "good", "same")
    cells["same"] = {0: 1.0} | dict.fromkeys(range(1, 12), float("nan"))
    told = compare(cells, margin=0.5).judgements
    assert [one.verdict for one in told] == [Verdict.better, Verdict.too_few, Verdict.too_few]
    assert str(told[1]) == "no verdict on plain and same: 1 block is fewer than 10"
    assert told[1].needed is None
    assert told[0].p_holm == 3 * told[0].difference.p  # it counts among the pairs that were asked about


def test_how_many_blocks_it_takes_depends_on_the_number_of_pairs() -> None:
    (alone,) = compare(table("plain", "noisy"), margin=0.5).judgements
    among = compare(table("plain", "noisy", "good", "same"), margin=0.5).judgements[0]
    assert among.difference == alone.difference
    assert alone.needed is not None
    assert among.needed is not None
    assert among.needed > 1.3 * alone.needed


@pytest.mark.parametrize("verdict", [Verdict.void, Verdict.unfinished])
def test_a_verdict_can_be_withheld(verdict: Verdict) -> None:
    told = compare(table("plain", "good"), margin=0.5, withheld=verdict)
    assert verdicts(told) == [verdict]
    assert told.judgements[0].winner is None
    assert str(told.judgements[0]) == f"no verdict on plain and good: the experiment is {verdict.value}"


def test_missing_cells_are_named_and_the_rest_is_paired() -> None:
    cells = table("plain", "good", "same")
    del cells["good"][3]
    cells["same"][5] = float("nan")
    told = compare(cells, margin=0.5)
    assert told.missing == (("good", 3), ("same", 5))
    assert [one.difference.count for one in told.judgements] == [11, 11, 10]


def test_arms_that_share_no_blocks_are_compared_without_pairs() -> None:
    cells = table("plain", "good")
    cells["good"] = {block + 100: value for block, value in cells["good"].items()}
    told = compare(cells, margin=0.5)
    assert told.missing == ()
    assert not told.judgements[0].difference.paired
    assert told.judgements[0].winner == "good"


def test_all_pairs_are_corrected_together() -> None:
    told = compare(table("plain", "good", "noisy"), margin=0.5)
    plain = [one.difference.p for one in told.judgements]
    assert [one.p_holm for one in told.judgements] == pytest.approx(multipletests(plain, method="holm")[1])
    assert any(one.p_holm > p for one, p in zip(told.judgements, plain, strict=True))


def test_the_same_table_gives_the_same_numbers() -> None:
    one, other = (compare(table("plain", "noisy"), margin=0.5) for _ in range(2))
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
            whole.add(try_out(Setting(noise=noise, effect=effect), experiments=25, seed=1))
    assert whole.experiments == 200
    assert whole.wrong <= 17  # with a chance of 5 % there would be more once in fifty times
    assert whole.coverage == pytest.approx(0.95, abs=0.03)


@pytest.mark.usefixtures("quick")
def test_a_method_that_errs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a correction for the number of pairs, and with hosts counted as runs, the tally says so."""
    monkeypatch.setattr("esper.stats.verdict._holm", lambda p_values: [p / 3 for p in p_values])
    assert try_out(Setting(arms=4), experiments=60, seed=2).wrong > 12


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
    outcome = runs(Setting(noise=noise, effect=1.0, correlation=0.5, blocks=40_000, arms=2), np.random.default_rng(0))
    fine = np.isfinite(outcome).all(axis=0)
    assert np.nanmean(outcome, axis=1) == pytest.approx([0, 1], abs=0.03)
    assert outcome[0][fine].std() == pytest.approx(1, abs=0.06)
    assert fine.mean() == pytest.approx(0.81 if noise == "failed" else 1, abs=0.01)
    if noise in ("normal", "heavy"):
        assert np.corrcoef(outcome)[0, 1] == pytest.approx(0.5, abs=0.03)
    if noise == "unequal":
        assert outcome[1].std() == pytest.approx(np.sqrt(0.5 + 4 * 0.5), abs=0.05)
