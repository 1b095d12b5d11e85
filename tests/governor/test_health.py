"""The watchdog over whole histories, against a scalar implementation."""

import math
import statistics
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.governor.base import Cause
from esper.governor.health import GROWTH, SPREAD, Health, newborn, usual
from esper.governor.watchdog import StrictWatchdogConfig, WatchdogConfig
from esper.lifecycle.stages import Op

CHANCE = math.log(10)
NAN, INF = math.nan, math.inf
OPTIONS = [
    WatchdogConfig(),
    StrictWatchdogConfig(),
    WatchdogConfig(window=3, patience=1, recovery=1, max_falls=1, chance_share=0),
]


@dataclass
class Slow:
    """A scalar watchdog for one host, from the docstrings of the config, in float64."""

    config: WatchdogConfig
    losses: list[float]
    best: float = NAN
    odd: int = 0
    well: int = 0
    falls: int = 0
    retired: bool = False
    margins: list[float] = field(default_factory=list)
    """Relative distance of each comparison from its threshold."""

    def above(self, value: float, limit: float) -> bool:
        if math.isfinite(value) and math.isfinite(limit):
            self.margins.append(abs(value - limit) / (1 + abs(limit)))
        return value > limit

    def judge(self, train: float, loss: float) -> Cause:
        c = self.config
        if self.retired:
            return Cause.HEALTHY
        recent = self.losses[-c.window :]
        cause, odd = Cause.HEALTHY, False
        if not (math.isfinite(train) and math.isfinite(loss)):
            cause = Cause.NONFINITE
        elif self.above(loss, c.chance_multiple * CHANCE) and self.above(loss, c.best_multiple * self.best):
            cause = Cause.DIVERGENCE
        else:
            forgot = self.above(c.good_share * CHANCE, self.best) and self.above(c.chance_share * CHANCE, abs(loss - CHANCE))
            if len(recent) >= 3:
                middle = statistics.median(recent)
                spread = 1 / statistics.NormalDist().inv_cdf(0.75) * statistics.median(abs(one - middle) for one in recent)
                odd = self.above(loss, middle + c.deviations * max(spread, c.least_spread * CHANCE))
            odd = odd or forgot
            if odd and self.odd + 1 >= c.patience:
                cause, odd = Cause.LOBOTOMY if forgot else Cause.DECLINE, False
        self.odd = self.odd + 1 if odd else 0
        if cause:
            self.falls, self.well = self.falls + 1, 0
            self.retired = self.falls >= c.max_falls
        elif odd:
            self.well = 0
        else:
            self.losses.append(loss)
            self.best = min(self.best, loss)
            self.well += 1
            self.falls = 0 if self.well >= c.recovery else self.falls
        return cause


def step(governor, health, train, losses):
    train_N, loss_N = np.full(len(losses), train, np.float32), np.array(losses, np.float32)
    verdict = governor.judge(health, train_N, loss_N)
    return verdict, governor.after(health, verdict, loss_N)


some_loss = st.one_of(
    st.floats(0.125, 3.0, width=32),
    st.floats(2.0, 2.5, width=32),
    st.floats(0.125, 40.0, width=32),
    st.sampled_from([NAN, INF]),
)


@pytest.mark.parametrize("config", OPTIONS, ids=["watchdog", "strict", "short"])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_verdicts_match_a_scalar_implementation(config, data):
    hosts, epochs = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    row = st.lists(some_loss, min_size=hosts, max_size=hosts)
    first = data.draw(st.lists(st.floats(0.125, 6.0, width=32), min_size=hosts, max_size=hosts))
    governor = config.build(chance_loss=math.log(10))
    health, slow = governor.start(np.array(first, np.float32)), [Slow(config, [one], best=one) for one in first]
    for _ in range(epochs):
        losses, train = data.draw(row), data.draw(st.sampled_from([1.0, 1.0, 1.0, 1.0, NAN]))
        verdict, health = step(governor, health, train, losses)
        for host, (one, loss) in enumerate(zip(slow, losses, strict=True)):
            expected = one.judge(train, loss)
            if min(one.margins, default=1.0) < 1e-5:  # float32 may round it to the other side
                return
            assert verdict.cause_N[host] == expected
            assert verdict.suspect_N[host] == (one.odd > 0)
            seen = (health.suspect_N[host], health.falls_N[host], health.retired_N[host])
            assert seen == (one.odd, one.falls, one.retired)
            kept = health.loss_NW[host][~np.isnan(health.loss_NW[host])]
            assert kept.tolist() == pytest.approx(one.losses[: -config.window - 1 : -1])
            assert health.best_loss_N[host] == pytest.approx(one.best)


def test_the_spread_is_a_robust_standard_deviation():
    rng = np.random.default_rng(0)
    losses = rng.normal(2.0, 0.3, (50, 400)).astype(np.float32)
    middle, spread = usual(losses)
    assert middle.mean() == pytest.approx(2.0, abs=0.01)
    assert spread.mean() == pytest.approx(0.3, rel=0.03)
    losses[:, :20] = 1e4
    assert usual(losses)[1].mean() == pytest.approx(0.3, rel=0.1)
    assert pytest.approx(1 / statistics.NormalDist().inv_cdf(0.75), abs=1e-4) == SPREAD


def test_a_good_host_that_stays_at_chance_is_a_lobotomy():
    governor = WatchdogConfig(patience=2).build(chance_loss=math.log(10))
    for best, loss, cause in [
        (1.0, CHANCE, Cause.LOBOTOMY),
        (1.0, 1.06 * CHANCE, Cause.LOBOTOMY),
        (1.0, 0.93 * CHANCE, Cause.HEALTHY),
        (1.0, 1.07 * CHANCE, Cause.HEALTHY),
        (1.4, CHANCE, Cause.HEALTHY),  # its best loss was never good
    ]:
        bounced, health = step(governor, governor.start(np.array([best], np.float32)), 1.0, [loss])
        assert bounced.suspect_N[0] == (cause == Cause.LOBOTOMY), (best, loss)
        assert bounced.cause_N[0] == Cause.HEALTHY, "one epoch at chance is no reason"
        stayed, _ = step(governor, health, 1.0, [loss])
        assert stayed.cause_N[0] == cause, (best, loss)
        recovered, _ = step(governor, health, 1.0, [best])
        assert recovered.cause_N[0] == Cause.HEALTHY
        assert not recovered.suspect_N[0]


def test_a_suspect_host_recovers_or_declines():
    governor = WatchdogConfig(patience=2).build(chance_loss=math.log(10))
    health = governor.start(np.array([0.5, 0.5], np.float32))
    for _ in range(4):
        _, health = step(governor, health, 1.0, [0.5, 0.5])
    limit = 0.5 + 6 * 0.1 * CHANCE
    verdict, health = step(governor, health, 1.0, [limit + 0.01, limit - 0.01])
    assert verdict.suspect_N.tolist() == [True, False]
    assert not verdict.rollback_N.any()
    assert np.nanmax(health.loss_NW, axis=1).tolist() == pytest.approx([0.5, limit - 0.01]), "suspect losses are not kept"
    dropped, _ = step(governor, health, 1.0, [0.6, 0.6])
    assert not (dropped.suspect_N | dropped.rollback_N).any()
    verdict, health = step(governor, health, 1.0, [limit + 0.01, 0.6])
    assert verdict.cause_N.tolist() == [Cause.DECLINE, Cause.HEALTHY]
    assert not verdict.suspect_N.any()


def test_rollbacks_end_with_retirement_unless_the_host_recovers():
    governor = WatchdogConfig(max_falls=3, recovery=2).build(chance_loss=math.log(10))
    health = governor.start(np.ones(3, np.float32))
    for losses in ([NAN, NAN, NAN], [NAN, 1.0, NAN], [1.0, NAN, 1.0], [NAN, 1.0, 1.0], [1.0, NAN, NAN]):
        verdict, health = step(governor, health, 1.0, losses)
    # one healthy epoch between two rollbacks is no recovery; two are
    assert health.retired_N.tolist() == [True, True, False]
    assert health.falls_N.tolist() == [3, 3, 1]
    verdict, health = step(governor, health, NAN, [NAN, INF, 1.0])
    assert verdict.cause_N.tolist() == [Cause.HEALTHY, Cause.HEALTHY, Cause.NONFINITE], "a retired host is not penalised again"
    assert health.retired_N.tolist() == [True, True, False]


def test_vetoes_of_suspect_and_retired_hosts():
    count = np.zeros(3, np.int64)
    health = newborn(np.ones(3, np.float32), 3)
    assert not health.veto_NO.any()
    health = Health(
        loss_NW=health.loss_NW,
        best_loss_N=health.best_loss_N,
        suspect_N=np.array([0, 2, 0]),
        well_N=count,
        falls_N=count,
        retired_N=np.array([False, False, True]),
    )
    allowed = [{op for op in Op if not veto[op]} for veto in health.veto_NO]
    assert allowed == [set(Op), set(Op) - set(GROWTH), {Op.WAIT}]


def test_hosts_non_finite_before_training_are_refused():
    with pytest.raises(FloatingPointError, match="hosts 1, 2 have a non-finite loss before any training"):
        WatchdogConfig().build(chance_loss=math.log(10)).start(np.array([1.0, NAN, INF], np.float32))


def test_strict_reacts_no_later_than_watchdog():
    """An immediate rollback of the watchdog is one of the strict watchdog too."""
    rng = np.random.default_rng(1)
    health = newborn(rng.uniform(0.1, 3.0, 4000).astype(np.float32), 20)
    losses = np.exp(rng.uniform(np.log(0.1), np.log(30), 4000)).astype(np.float32)
    usual_one, strict = (config.build(chance_loss=math.log(10)) for config in OPTIONS[:2])
    one, two = (governor.judge(health, np.ones_like(losses), losses) for governor in (usual_one, strict))
    assert not (one.rollback_N & ~two.rollback_N).any()
    assert (two.rollback_N & ~one.rollback_N).sum() > 100
