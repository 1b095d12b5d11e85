"""Verdicts on all pairs of arms."""

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


def verdicts(results: list[PairResult]) -> list[Conclusion]:
    return [one.verdict for one in results]


def test_the_three_verdicts() -> None:
    found = compare_arms(table("plain", "good", "same", "noisy"), margin=0.5)
    by_pair = {(one.difference.first, one.difference.second): one for one in found}
    assert by_pair["plain", "good"].verdict is Conclusion.better
    assert by_pair["plain", "good"].winner == "good"
    assert str(by_pair["plain", "good"]).startswith("good is better than plain; ")
    assert by_pair["plain", "same"].verdict is Conclusion.equivalent
    assert by_pair["plain", "noisy"].verdict is Conclusion.undecided
    assert f"takes {by_pair['plain', 'noisy'].needed} new blocks" in str(by_pair["plain", "noisy"])


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
    assert "they share 9 of at least 10 blocks" in str(found)
    assert f"detecting a difference of 0.5 takes {found.needed} new blocks" in str(found)
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
    assert str(found[0]) == f"no verdict on plain and good: the comparison is {verdict.value}"


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
        f"no verdict on plain and good: they share {shared} of at least 10 blocks; run them on the same seeds, as sweep=ab does"
    )


def test_holm_matches_statsmodels() -> None:
    found = compare_arms(table("plain", "good", "noisy"), margin=0.5)
    plain = [one.difference.p for one in found]
    assert [one.p_holm for one in found] == pytest.approx(multipletests(plain, method="holm")[1])
    assert any(one.p_holm > p for one, p in zip(found, plain, strict=True))


def test_comparisons_are_deterministic() -> None:
    one, other = (compare_arms(table("plain", "noisy"), margin=0.5) for _ in range(2))
    assert one == other
