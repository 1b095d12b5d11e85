"""Latency: paired timings on a simulated clock, noise, and a round trip through a checkpoint."""

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import Host, SlotSpec
from esper.measure import latency
from esper.measure.costs import Price
from esper.measure.latency import BATCH, PAIRS, WARM_UP, measure_latency
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.dense import LoraConfig

US = 1e-6 * BATCH


class Clock:
    """A simulated clock: time passes in `spend` only, with jitter, and much faster in the first calls."""

    def __init__(self, jitter):
        self.now, self.calls, self.jitter, self.rng = 0.0, 0, jitter, np.random.default_rng(0)

    def perf_counter(self):
        return self.now

    def spend(self, seconds):
        self.calls += 1
        self.now += seconds + self.jitter * self.rng.standard_normal() + (1.0 if self.calls <= 2 * WARM_UP else 0.0)


class Delay(nn.Module):
    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x):
        self.clock.spend(self.seconds)
        return x


def slow(clock, seconds, *, layouts=(Layout.VECTORS,)):
    """Return a blueprint whose branch takes this long."""

    class Slow(BlueprintConfig):
        def branch(self, slot):
            return Delay(clock, seconds)

    Slow.layouts = layouts
    return Slow()


def measured(jitter=0.0, added=(5 * US, 0.0)):
    clock = Clock(jitter)
    slots = [SlotSpec("r0c0", 4, Layout.VECTORS), SlotSpec("r0c1", 4, Layout.VECTORS), SlotSpec("r0c2", 4, Layout.VECTORS)]
    host = Host([Delay(clock, US), Delay(clock, 2 * US), Delay(clock, 4 * US), nn.Identity()], slots)
    blueprints = [slow(clock, added[0]), slow(clock, added[1]), slow(clock, 1.0, layouts=(Layout.IMAGES,))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "time", clock)
        used = np.array([True, False, True])
        return measure_latency(host, blueprints, used, torch.randn(3, 4), torch.device("cpu")), clock


def test_latency_of_a_seed_is_the_time_it_adds_and_unusable_seeds_are_nan():
    found, clock = measured()
    assert found.host == pytest.approx(7e-6)
    nan = np.nan
    np.testing.assert_allclose(found.seed_KS, [[5e-6, nan, 5e-6], [0, nan, 0], [nan] * 3], atol=1e-12)
    np.testing.assert_allclose(found.gate_S, [0, nan, 0], atol=1e-12)
    host_runs = 2 * (WARM_UP + PAIRS) * (1 + 2 * 3)  # a bare host; a gate and two seeds in two slots, with and without
    assert clock.calls == 3 * host_runs + 2 * 2 * (WARM_UP + PAIRS)


def test_warm_up_is_discarded(monkeypatch):
    clock = Clock(0.0)
    host = Host([Delay(clock, US), nn.Identity()], [SlotSpec("r0c0", 4, Layout.VECTORS)])
    monkeypatch.setattr(latency, "time", clock)
    monkeypatch.setattr(latency, "PAIRS", 1)
    found = measure_latency(host, [], np.array([False]), torch.randn(3, 4), torch.device("cpu"))
    assert clock.calls == 2 * (WARM_UP + 1)
    assert found.host == pytest.approx(1e-6)


def test_noise_averages_out_and_negative_latencies_become_zero():
    found, _ = measured(jitter=0.5 * US, added=(5 * US, -3 * US))
    error = 1.25 * 0.5e-6 * 7**0.5 / PAIRS**0.5  # a pair differs by the jitter of seven calls
    assert found.seed_KS[0, [0, 2]] == pytest.approx([5e-6] * 2, abs=4 * error)
    assert found.seed_KS[0, 0] != 5e-6
    assert found.seed_KS[1, [0, 2]].tolist() == [0.0, 0.0]


def test_latency_survives_a_checkpoint():
    found, _ = measured(jitter=0.1 * US)
    state = found.state_dict()
    restored = Price.from_state(state)
    np.testing.assert_array_equal(restored.seed_KS, found.seed_KS)
    np.testing.assert_array_equal(restored.gate_S, found.gate_S)
    assert restored.host == found.host
    assert {type(value) for value in state.values()} == {float, list}


def test_measuring_restores_threads_and_the_random_stream():
    host = Host([nn.Linear(4, 4), nn.Linear(4, 2)], [SlotSpec("r0c0", 4, Layout.VECTORS)])
    samples = torch.randn(3, 4)
    threads, stream = torch.get_num_threads(), torch.get_rng_state()
    found = measure_latency(host, [LoraConfig()], np.array([True]), samples, torch.device("cpu"))
    assert torch.equal(stream, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert found.host > 0
    assert np.isfinite(found.seed_KS).all()
