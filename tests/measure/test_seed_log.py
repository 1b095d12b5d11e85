"""The log follows every seed: planted, kept, removed and lost in a rollback."""

import numpy as np
import pytest

from esper.lifecycle.stages import EMPTY
from esper.measure.seed_log import Seed, SeedLog, SlotsAfter, grouped, seed_stats

NAN = float("nan")


def log(*epochs: tuple[int, bool, float, bool]) -> list[Seed]:
    """Return the seeds of a host with one slot: blueprint, whether it is kept, contribution, whether the host is rolled back."""
    found = SeedLog()
    for epoch, (blueprint, kept, contribution, rolled_back) in enumerate(epochs, start=1):
        found.add(
            epoch,
            SlotsAfter(
                blueprint_NS=np.array([[blueprint]]),
                kept_NS=np.array([[kept]]),
                contribution_NS=np.array([[contribution]], np.float32),
                contribution_error_NS=np.array([[0.5]], np.float32),
                rolled_back_N=np.array([rolled_back]),
            ),
        )
    return found.seeds


VACANT = (EMPTY, False, NAN, False)
LOST = (EMPTY, False, NAN, True)


def test_a_seed_is_followed_to_its_end() -> None:
    (kept,) = log(VACANT, (2, False, NAN, False), (2, False, 3.0, False), (2, True, NAN, False), (2, True, 4.0, False))
    assert kept == Seed(0, 0, 2, planted=2, epochs=4, fate="kept", contribution=4.0, contribution_error=0.5)
    first, second = log((1, False, -2.0, False), VACANT, (1, False, NAN, False))
    assert (first.fate, first.epochs, first.contribution) == ("removed", 1, -2.0)
    assert (second.fate, second.planted, np.isnan(second.contribution)) == ("live", 3, True)


def test_what_is_measured_in_an_epoch_that_is_rolled_back_does_not_count() -> None:
    (seed,) = log((1, True, 2.0, False), (1, True, 9.0, True), (1, True, 3.0, False))
    assert (seed.fate, seed.epochs, seed.contribution) == ("kept", 2, 3.0)


def test_a_rollback_takes_a_seed() -> None:
    (lost,) = log((1, False, 2.0, False), LOST, VACANT)
    assert (lost.fate, lost.epochs) == ("rolled_back", 1)
    for fate in (False, True):  # live, and fossilized after the snapshot
        first, second = log((1, fate, 2.0, False), (1, True, 2.0, True), (1, False, 2.5, False))
        assert (first.fate, first.epochs, second.fate, second.planted) == ("rolled_back", 1, "live", 3), "the same blueprint"
    broken, again = log((1, False, NAN, True), (1, False, NAN, True))
    assert (broken.fate, broken.planted, broken.epochs, again.planted) == ("rolled_back", 1, 0, 2), "it breaks its host at once"
    fossil, next_one = log((1, True, 2.0, False), (1, True, 2.0, True), (2, False, NAN, True), VACANT)
    assert (fossil.fate, next_one.fate, next_one.blueprint) == ("rolled_back", "rolled_back", 2)
    for between in ((VACANT,), (VACANT, LOST)):
        first, second = log((1, False, 2.0, False), *between, (1, False, 2.5, False))
        assert (first.fate, first.epochs, second.fate, second.epochs) == ("removed", 1, "live", 1), "another seed"


def test_statistics_of_a_group() -> None:
    seeds = [
        Seed(0, 0, 0, planted=1, epochs=6, fate="kept", contribution=4.0),
        Seed(1, 0, 0, planted=1, epochs=2, fate="removed", contribution=-1.0),
        Seed(1, 0, 0, planted=4, epochs=3, fate="live", contribution=2.0),
        Seed(2, 0, 0, planted=4, epochs=1, fate="rolled_back"),
    ]
    found = seed_stats(seeds, 8)
    assert (found.planted, found.kept, found.removed, found.rolled_back) == (0.5, 0.125, 0.125, 0.125)
    assert (found.churn, found.epochs, found.contribution, found.contribution_removed) == (0.5, 3.0, 3.0, -1.0)
    assert found.contribution_error == pytest.approx(1.0)
    nothing = seed_stats([], 8)
    assert nothing.planted == 0
    assert np.isnan([nothing.churn, nothing.epochs, nothing.contribution, nothing.contribution_error]).all()


def test_hosts_of_one_origin_are_one_sample() -> None:
    rng = np.random.default_rng(0)
    value_GH = rng.normal(0, 1, (6, 1)) + rng.normal(0, 3, (6, 4))
    seeds = [Seed(host, 0, 0, planted=1, contribution=float(value)) for host, value in enumerate(value_GH.ravel())]
    own = [seed_stats(seeds, 24, origins).contribution_error for origins in (None, [host // 4 for host in range(24)], [0] * 24)]
    assert own[0] == pytest.approx(value_GH.std(ddof=1) / np.sqrt(24))
    assert own[1] == pytest.approx(value_GH.mean(1).std(ddof=1) / np.sqrt(6))
    assert np.isnan(own[2])
    several = [*seeds, *seeds]  # two seeds of a host, which are no two samples
    assert seed_stats(several, 24).contribution_error == pytest.approx(own[0])
    (found,) = grouped(seeds, ["conv"], [], ["x"] * 24, [host // 4 for host in range(24)]).values()
    assert found.contribution_error == own[1]


def test_groups_divide_by_the_hosts_that_could_have_had_the_seed() -> None:
    seeds = [Seed(0, 1, 0, planted=1), Seed(1, 0, 1, planted=1), Seed(1, 1, 1, planted=2)]
    found = grouped(seeds, ["conv", "norm"], ["early", "late"], ["x", "y", "y", "y"])
    assert found["blueprint", "norm"].planted == 0.5
    assert found["slot", "late"].planted == 0.5
    assert found["kind", "x"].planted == 1
    assert found["kind", "y"].planted == pytest.approx(2 / 3)
    assert not any(group == "kind" for group, _ in grouped(seeds, ["conv", "norm"], ["early", "late"], ["x"] * 4))
