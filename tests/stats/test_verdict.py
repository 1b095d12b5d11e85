"""Verdicts on all pairs of arms."""

import re

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

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


def grown(blocks: int = 30, gain: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """Return an experiment of two arms with normal differences."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.standard_normal(blocks), rng.standard_normal(blocks) + gain])
    arms, index = np.repeat(["plain", "good"], blocks), np.tile(np.arange(blocks), 2)
    return pd.DataFrame({"arm": arms, "block": index, "value": values, "stratum": ""})


def verdicts(results: list[PairResult]) -> list[Conclusion]:
    return [one.verdict for one in results]


def test_the_three_verdicts() -> None:
    found = compare_arms(table("plain", "good", "same", "noisy"), margin=0.5)
    by_pair = {(one.difference.first, one.difference.second): one for one in found}
    assert by_pair["plain", "good"].verdict is Conclusion.better
    assert by_pair["plain", "good"].winner == "good"
    assert str(by_pair["plain", "good"]).startswith("good is better than plain by ")
    assert by_pair["plain", "same"].verdict is Conclusion.equivalent
    assert by_pair["plain", "noisy"].verdict is Conclusion.undecided
    assert f"a new experiment takes {by_pair['plain', 'noisy'].needed} blocks to detect" in str(by_pair["plain", "noisy"])


def test_lower_can_be_better() -> None:
    (found,) = compare_arms(table("plain", "good"), margin=0.5, higher_is_better=False)
    assert found.winner == "plain"


def test_a_significant_difference_within_the_margin_is_equivalence() -> None:
    (found,) = compare_arms(table("plain", "good"), margin=5)
    assert found.p_holm < 0.001
    assert found.verdict is Conclusion.equivalent


def test_few_blocks_give_no_verdict() -> None:
    (found,) = compare_arms(table("plain", "good", blocks=MIN_BLOCKS - 1), margin=0.5)
    assert found.verdict is Conclusion.too_few
    assert "they share 9 of the 10 blocks needed" in str(found)
    assert f"a new experiment takes {found.needed} blocks to detect a difference of 0.5 with a power of 80 %" in str(found)
    assert verdicts(compare_arms(table("plain", "good", blocks=MIN_BLOCKS), margin=0.5)) == [Conclusion.better]


def test_a_pair_without_shared_blocks_counts_in_the_correction() -> None:
    cells = table("plain", "good", "same")
    cells.loc[(cells.arm == "same") & (cells.block > 0), "value"] = np.nan
    found = compare_arms(cells, margin=0.5, final=True)
    assert verdicts(found) == [Conclusion.better, Conclusion.too_few, Conclusion.too_few]
    assert found[0].p_holm == 3 * found[0].difference.p


def test_more_pairs_need_more_blocks() -> None:
    (alone,) = compare_arms(table("plain", "noisy"), margin=0.5)
    among = compare_arms(table("plain", "noisy", "good", "same"), margin=0.5)[0]
    assert among.difference == alone.difference
    assert alone.needed is not None
    assert among.needed is not None
    assert among.needed > 1.3 * alone.needed


@pytest.mark.parametrize("verdict", [Conclusion.exploratory, Conclusion.unfinished])
def test_verdicts_can_be_withheld(verdict: Conclusion) -> None:
    found = compare_arms(table("plain", "good"), margin=0.5, withheld=verdict)
    assert verdicts(found) == [verdict]
    assert found[0].winner is None
    reasons = {
        Conclusion.exploratory: ": the comparison is exploratory",
        Conclusion.unfinished: " yet: runs of other arms are missing",
    }
    assert str(found[0]) == f"no verdict on plain and good{reasons[verdict]}"


def test_missing_cells_are_left_out_pair_by_pair() -> None:
    cells = table("plain", "good", "same")
    cells.loc[(cells.arm == "same") & (cells.block == 5), "value"] = np.nan
    cells = cells[(cells.arm != "good") | (cells.block != 3)].sample(frac=1, random_state=0)
    cells = pd.concat([cells[cells.arm == arm] for arm in ("plain", "good", "same")])
    found = compare_arms(cells, margin=0.5)
    assert [one.difference.blocks for one in found] == [11, 11, 10]


@pytest.mark.parametrize("shared", [0, 1])
def test_arms_on_different_seeds_get_no_verdict_but_a_remedy(shared: int) -> None:
    cells = table("plain", "good")
    cells.loc[(cells.arm == "good") & (cells.block >= shared), "block"] += 100
    (found,) = compare_arms(cells, margin=0.5)
    assert found.verdict is Conclusion.too_few
    assert found.needed is None
    assert str(found) == (
        f"no verdict on plain and good: they share {shared} of the 10 blocks needed; run them from the same random seeds, as "
        "sweep=ab does"
    )


def test_holm_matches_statsmodels() -> None:
    found = compare_arms(table("plain", "good", "noisy"), margin=0.5)
    plain = [one.difference.p for one in found]
    assert [one.p_holm for one in found] == pytest.approx(multipletests(plain, method="holm")[1])
    assert any(one.p_holm > p for one, p in zip(found, plain, strict=True))


def test_a_plan_of_one_look_gives_the_same_numbers_as_none() -> None:
    assert compare_arms(grown(12), margin=0.5, looks=[12]) == compare_arms(grown(12), margin=0.5)


def test_blocks_between_looks_do_not_enter_the_verdict() -> None:
    cells = grown(30, gain=0.3, seed=1)
    later = cells.assign(value=cells["value"].where(cells["block"] < 27))  # three blocks are still running
    (early,) = compare_arms(cells[cells["block"] < 20], margin=0.5, looks=[20, 30])
    (waiting,) = compare_arms(later, margin=0.5, looks=[20, 30])
    assert early == waiting
    assert waiting.look == 20
    assert str(waiting) == "undecided between plain and good: the next look is at 30 blocks"
    (done,) = compare_arms(cells, margin=0.5, looks=[20, 30])
    assert done.look == 30
    assert "a new experiment takes" in str(done)


def test_there_is_no_verdict_before_the_first_look() -> None:
    cells = grown(30, gain=5)
    (found,) = compare_arms(cells[cells["block"] < 19], margin=0.5, looks=[20, 30])
    assert (found.verdict, found.look) == (Conclusion.unfinished, None)
    assert found.difference.p < 0.001
    assert str(found) == "no verdict on plain and good yet: 19 of 20 blocks are finished"
    lacking = cells.assign(value=cells["value"].where((cells["arm"] != "good") | (cells["block"] != 3)))
    (found,) = compare_arms(lacking, margin=0.5, looks=[20, 30])
    assert str(found) == "no verdict on plain and good yet: runs are missing (29 of 30 blocks are finished)"


def test_sentences_name_the_unit() -> None:
    (better,) = compare_arms(table("plain", "good"), margin=0.5, unit="pp")
    (same,) = compare_arms(table("plain", "same"), margin=0.5, unit="pp")
    (noisy,) = compare_arms(table("plain", "noisy"), margin=0.5, unit="pp")
    assert str(better).startswith("good is better than plain by 3.0")
    assert " pp (" in str(better)
    assert str(same).startswith("plain and same differ by less than 0.5 pp")
    assert "a difference of 0.5 pp with" in str(noisy)


@pytest.mark.parametrize(
    ("scale", "margin", "sentences"),
    [
        (1e-3, 5e-4, (r"better than plain by 0\.0030 \(0\.00\d\d to 0\.00\d\d\)", r"differ by less than 0\.0005$")),
        (1e9, 5e8, (r"better than plain by 2\.9\d\dG \(2\.9\d\dG to 3\.0\d\dG\)", r"differ by less than 500M$")),
    ],
)
def test_sentences_have_digits_for_small_and_large_outcomes(scale: float, margin: float, sentences: tuple[str, str]) -> None:
    cells = table("plain", "good", "same")
    cells["value"] *= scale
    found = {(one.difference.first, one.difference.second): one for one in compare_arms(cells, margin=margin)}
    for pair, sentence in zip((("plain", "good"), ("plain", "same")), sentences, strict=True):
        assert re.search(sentence, str(found[pair]).partition("; collapsed")[0])


def test_the_first_look_that_decides_stands() -> None:
    cells = grown(30, gain=5)
    cells.loc[(cells["arm"] == "good") & (cells["block"] >= 20), "value"] -= 15
    (found,) = compare_arms(cells, margin=0.5, looks=[20, 30])
    assert (found.winner, found.look) == ("good", 20)
    assert compare_arms(cells, margin=0.5)[0].verdict is Conclusion.withheld


def test_a_look_after_a_third_of_many_blocks_can_decide() -> None:
    """Its level is far below 1 / 10,000, which a sample of sign patterns would not reach."""
    cells = grown(20, gain=40.0)
    (found,) = compare_arms(cells, margin=0.5, looks=[20, 60])
    assert (found.winner, found.look) == ("good", 20)
    assert found.difference.p < 1e-5


def test_early_looks_ask_for_more() -> None:
    cells = grown(20, gain=1, seed=2)
    (alone,) = compare_arms(cells, margin=0.5)
    (early,) = compare_arms(cells, margin=0.5, looks=[20, 40])
    assert alone.winner == "good"
    assert early.verdict is Conclusion.undecided
    assert early.p_holm > alone.p_holm == alone.difference.p == early.difference.p
    assert early.difference.confidence > 0.99 > alone.difference.confidence == 0.95
    assert early.difference.mean.half_width > alone.difference.mean.half_width


def test_early_looks_ask_for_more_of_equivalence_too() -> None:
    cells = grown(20, gain=0.3, seed=5)
    assert compare_arms(cells, margin=0.5)[0].verdict is Conclusion.equivalent
    assert compare_arms(cells, margin=0.5, looks=[20, 40])[0].verdict is Conclusion.undecided


def test_missing_runs_leave_only_verdicts_that_survive_them() -> None:
    cells = grown(30, gain=3)
    cells.loc[(cells["arm"] == "good") & (cells["block"] == 7), "value"] = np.nan

    def found(bounds: tuple[float, float] | None) -> PairResult:
        return compare_arms(cells, margin=0.5, final=True, bounds=bounds)[0]

    assert compare_arms(cells, margin=0.5, bounds=(-10, 10))[0].verdict is Conclusion.unfinished
    assert found((-10, 10)).winner == "good"
    assert found((-200, 200)).verdict is Conclusion.withheld
    assert str(found(None)) == "no verdict on plain and good: 1 run is missing (the outcome has no worst value)"
    assert compare_arms(cells, margin=0.5)[0].warnings == ("1 run is missing",), "more runs may come"
    narrow, wide = found((-10, 10)).difference, found((-200, 200)).difference
    assert narrow.mean.mean == wide.mean.mean
    assert wide.mean.low < narrow.mean.low < narrow.mean.mean < narrow.mean.high < wide.mean.high
    imputed = [cells.fillna({"value": value}) for value in (-10, 0, 10)]  # whatever the run would have shown
    likely = [compare_arms(one, margin=0.5)[0].difference for one in imputed]
    assert all(one.p <= narrow.p for one in likely)
    assert min(one.mean.low for one in likely) == pytest.approx(narrow.mean.low)


def test_missing_runs_that_could_decide_either_way_decide_nothing() -> None:
    cells = grown(20, gain=0)
    cells.loc[(cells["arm"] == "good") & (cells["block"] < 10), "value"] = np.nan
    (found,) = compare_arms(cells, margin=0.5, final=True, bounds=(-100, 100))
    assert found.verdict is Conclusion.withheld
    assert found.difference.p == 1


def test_collapsed_runs_leave_the_mean_and_withhold_equivalence() -> None:
    cells = table("plain", "same")
    assert compare_arms(cells, margin=0.5)[0].verdict is Conclusion.equivalent
    cells.loc[(cells.arm == "same") & (cells.block == 4), "value"] -= 50
    (found,) = compare_arms(cells, margin=0.5)
    assert found.difference.blocks == 11
    assert found.p_equivalence_holm < 0.001
    assert [one.collapsed for one in found.collapses] == [0, 1]
    assert str(found) == "no verdict on plain and same: same collapsed in 1 of 12 runs (block 4)"


def test_three_differences_without_an_interval_need_no_care() -> None:
    values = {"plain": [0.0, 0.0, 9.0], "good": [0.0, 0.0, 0.0]}
    rows = [(arm, block, value) for arm, row in values.items() for block, value in enumerate(row)]
    cells = pd.DataFrame(rows, columns=["arm", "block", "value"]).assign(stratum="")
    (found,) = compare_arms(cells, margin=0.5, higher_is_better=False)
    assert found.verdict is Conclusion.too_few
    assert found.warnings == ()


def test_costs_do_not_collapse() -> None:
    cells = table("plain", "good")
    cells.loc[(cells.arm == "plain") & (cells.block == 4), "value"] -= 50
    cells.loc[(cells.arm == "good") & (cells.block == 5), "value"] += 50
    (gain,) = compare_arms(cells, margin=0.5)
    (cost,) = compare_arms(cells.assign(value=-cells["value"]), margin=0.5, higher_is_better=False)
    assert (gain.difference.blocks, gain.difference.collapsed) == (11, 1)
    assert (cost.difference.blocks, cost.difference.collapsed, cost.warnings) == (12, 0, ("the differences are not normal",))
    assert cost.difference.mean.mean == pytest.approx(3 + 100 / 12, abs=0.1)
    (few,) = compare_arms(cells[cells["block"] < 10], margin=0.5)
    assert "they share 9 of the 10 blocks needed, and 1 more with a collapsed run" in str(few)
    (fewer,) = compare_arms(cells[cells["block"] < 9], margin=0.5)
    assert "they share 9 of the 10 blocks needed; " in str(fewer), "nine runs show no collapse"


@pytest.mark.parametrize("down", ["plain", "good"])
def test_an_arm_that_collapses_more_often_is_not_better(down: str) -> None:
    cells = table("plain", "good")
    cells.loc[(cells.arm == down) & (cells.block == 4), "value"] -= 50
    (found,) = compare_arms(cells, margin=0.5)
    assert found.verdict is (Conclusion.better if down == "plain" else Conclusion.withheld)
    assert found.warnings == (f"{down} collapsed in 1 of 12 runs (block 4)",)
    if down == "plain":
        mean = found.difference.mean
        by = f"{-mean.mean:.2f} ({-mean.high:.2f} to {-mean.low:.2f})"
        expected = f"good is better than plain by {by}; collapsed runs: plain 1 of 12 (at most 34 %), good 0 of 12 (at most 22 %)"
        assert str(found) == expected


def test_an_outlier_withholds_equivalence() -> None:
    cells = table("plain", "same", "good")
    cells.loc[(cells.arm == "same") & (cells.block == 4), "value"] += 2
    same, _, better = compare_arms(cells, margin=1)[0], None, compare_arms(cells, margin=1)[2]
    assert same.p_equivalence_holm < 0.01
    assert same.verdict is Conclusion.withheld
    assert same.warnings == ("the differences are not normal",)
    assert better.winner == "good"


@pytest.mark.parametrize("hidden", [0, 4])
def test_an_arm_is_not_better_if_collapsed_runs_are_hidden_among_the_others(hidden: int) -> None:
    cells = table("plain", "good")
    cells.loc[(cells.arm == "plain") & (cells.block == 0), "value"] -= 50
    cells.loc[(cells.arm == "plain") & (cells.block > 11 - hidden), "value"] -= 1
    (found,) = compare_arms(cells, margin=0.5)
    assert [one.collapsed for one in found.collapses] == [1, 0]
    assert found.p_holm < 0.01
    assert found.verdict is (Conclusion.withheld if hidden else Conclusion.better)
    if hidden:
        assert (
            str(found)
            == "no verdict on plain and good: plain collapsed in 1 of 12 runs (block 0); the differences are not normal"
        )
