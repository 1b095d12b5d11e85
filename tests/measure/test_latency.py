"""Latency: paired timings on a clock of the test's own, noise below zero, and a way into checkpoints and back."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import Host, SlotSpec
from esper.measure import latency
from esper.measure.latency import BATCH, PAIRS, WARM_UP, Latency, measure_latency
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.plain import NoopConfig

US = 1e-6 * BATCH


class Clock:
    """Time passes where somebody takes it, with a little jitter, and far more so at first."""

    def __init__(self, jitter):
        self.now, self.calls, self.jitter, self.rng = 0.0, 0, jitter, np.random.default_rng(0)

    def perf_counter(self):
        return self.now

    def take(self, seconds):
        self.calls += 1
        self.now += seconds + self.jitter * self.rng.standard_normal() + (1.0 if self.calls <= 2 * WARM_UP else 0.0)


class Takes(nn.Module):
    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x):
        self.clock.take(self.seconds)
        return x


def slow(clock, seconds, *, layouts=(Layout.VECTORS,)):
    """A blueprint whose branch takes so long, wherever it grows."""

    class Slow(BlueprintConfig):
        def branch(self, slot):
            return Takes(clock, seconds)

    Slow.layouts = layouts
    return Slow()


def measured(jitter=0.0, added=(5 * US, 0.0)):
    clock = Clock(jitter)
    slots = [SlotSpec("r0c0", 4, Layout.VECTORS), SlotSpec("r0c1", 4, Layout.VECTORS), SlotSpec("r0c2", 4, Layout.VECTORS)]
    host = Host([Takes(clock, US), Takes(clock, 2 * US), Takes(clock, 4 * US), nn.Identity()], slots)
    blueprints = [slow(clock, added[0]), slow(clock, added[1]), slow(clock, 1.0, layouts=(Layout.IMAGES,)), NoopConfig()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "time", clock)
        used = np.array([True, False, True])
        return measure_latency(host, blueprints, used, torch.randn(3, 4), torch.device("cpu")), clock


def test_a_seed_costs_what_it_adds_and_what_cannot_be_there_is_unknown():
    found, clock = measured()
    assert found.host == pytest.approx(7e-6)
    nan = np.nan
    np.testing.assert_allclose(found.seed_KS, [[5e-6, nan, 5e-6], [0, nan, 0], [nan] * 3, [nan] * 3], atol=1e-12)
    np.testing.assert_allclose(found.gate_S, [0, nan, 0], atol=1e-12)
    np.testing.assert_allclose(found.seed_error_KS[0], [0, nan, 0], atol=1e-12)
    assert found.device == "cpu"
    host_runs = 2 * (WARM_UP + PAIRS) * (1 + 2 * 3)  # bare twice, then a gate and two seeds in two slots, each with and without
    assert clock.calls == 3 * host_runs + 2 * 2 * (WARM_UP + PAIRS)


def test_the_warm_up_is_thrown_away(monkeypatch):
    """Each module is slow at first, as long as the warm-up lasts; a single pair is kept."""
    clock = Clock(0.0)
    host = Host([Takes(clock, US), nn.Identity()], [SlotSpec("r0c0", 4, Layout.VECTORS)])
    monkeypatch.setattr(latency, "time", clock)
    monkeypatch.setattr(latency, "PAIRS", 1)
    found = measure_latency(host, [], np.array([False]), torch.randn(3, 4), torch.device("cpu"))
    assert clock.calls == 2 * (WARM_UP + 1)
    assert found.host == pytest.approx(1e-6)


def test_noise_averages_out_and_its_size_is_told():
    found, _ = measured(jitter=0.5 * US)
    error = found.seed_error_KS[0, 0]
    # A pair differs by the jitter of seven calls.
    assert error == pytest.approx(1.25 * 0.5e-6 * 7**0.5 / PAIRS**0.5, rel=0.5)
    assert abs(found.seed_KS[0, 0] - 5e-6) < 4 * error


def test_less_than_nothing_is_noise_that_costs_nothing_and_stays_on_record():
    found, _ = measured(added=(5 * US, -0.5 * US))
    assert found.seed_KS[1, 0] == pytest.approx(-0.5e-6)
    assert found.price.seed_KS[1, 0] == 0.0
    assert found.price.seed_KS[0, 0] == found.seed_KS[0, 0]
    assert np.isnan(found.price.seed_KS[2, 0])
    assert found.table(["a", "b", "c", "noop"], ["x", "y", "z"])["seeds"]["b"]["x"]["median"] == pytest.approx(-0.5e-6)


def test_it_comes_back_from_plain_numbers_and_shows_no_nan():
    found, _ = measured(jitter=0.1 * US)
    back = Latency.from_state(found.state_dict())
    np.testing.assert_array_equal(back.seed_KS, found.seed_KS)
    assert back.host == found.host
    assert back.state_dict().keys() == found.state_dict().keys()
    table = found.table(["a", "b", "c", "noop"], ["x", "y", "z"])
    assert list(table["seeds"]["a"]) == ["x", "z"]
    assert table["seeds"]["c"] == {}
    json.dumps(table, allow_nan=False)


def test_measuring_leaves_threads_and_the_random_stream_as_they_were():
    threads, stream = torch.get_num_threads(), torch.get_rng_state()
    clock_free = Host([nn.Linear(4, 4), nn.Linear(4, 2)], [SlotSpec("r0c0", 4, Layout.VECTORS)])
    stream = torch.get_rng_state()
    from esper.seeds.blueprints.dense import LoraConfig

    found = measure_latency(
        clock_free, [LoraConfig()], np.array([True]), torch.randn(3, 4, generator=torch.Generator()), torch.device("cpu")
    )
    assert torch.equal(stream, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert found.host > 0
    assert np.isfinite(found.seed_KS).all()
