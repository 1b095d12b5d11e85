"""Timing of shard sizes: which sizes are tried, which one is taken, and that a run keeps it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from esper.config import ConfigError
from esper.fusion.precision import Precision
from esper.pool.local import ShardPool
from esper.text import counted
from esper.training import tune_shards
from esper.training.trainer import Trainer
from esper.training.tune_shards import tuned
from tests.forked import run_forked
from tests.pool.test_training_step import Recorder
from tests.training import small_run

TUNE = ["devices=[cpu]", "devices.cpu.tune=true"]


@pytest.mark.parametrize(
    ("times", "tried", "best"),
    [
        ({7: 4.0, 4: 3.0, 2: 2.0, 1: 1.0}, [7, 4, 2, 1], 1),
        ({7: 1.0, 4: 2.0, 2: 3.0, 1: 0.5}, [7, 4, 2], 7),  # two in a row are slower: the last one is never tried
        ({7: 3.0, 4: 4.0, 2: 2.0, 1: 9.0}, [7, 4, 2, 1], 2),
    ],
)
def test_sizes_are_halved_until_two_are_slower(monkeypatch, times, tried, best):
    monkeypatch.setattr(tune_shards, "_round", lambda env, name, size: times[size])
    config = small_run.config(*TUNE, "hosts=7", "agent.twins=1", "agent.baseline=critic", "agent.minibatches=1")
    outcome = tuned(config)
    assert list(outcome.seconds["cpu"]) == tried
    assert (outcome.config.devices["cpu"].members_per_shard, outcome.config.devices["cpu"].tune) == (best, False)
    (line,) = outcome.lines()
    assert line.startswith(f"cpu: {counted(best, 'host')} per shard")
    assert line.endswith(f"devices.cpu.members_per_shard={best}")
    assert outcome.config.hosts == 7
    assert config.devices["cpu"].tune


def test_what_is_found_on_the_machine_leaves_the_names_of_presets():
    config = small_run.config("task=mnist5k_drift", "slots=all", "steps=20", "devices.auto.precision=auto")
    found = tuned(config).config
    assert found.devices["auto"].precision is not Precision.auto
    assert [found.choice(group) for group in ("task", "slots", "host")] == ["mnist5k_drift", "all", config.choice("host")]
    assert found.title() == config.title()


def test_a_round_trains_hosts_of_which_every_second_has_a_seed(monkeypatch):
    seen = []

    def train(pool, time, samples):
        seen.append(((len(pool._views), samples), pool._roles.learns.any(axis=1), len(pool.shards)))

    monkeypatch.setattr("esper.pool.local.ShardPool.train", train)
    tuned(small_run.config(*TUNE, "task.batch_size=16"))
    assert len(seen) == 3 * (1 + tune_shards.ROUNDS)
    assert {shape for shape, _, _ in seen} == {(4, 4 * 16)}
    assert all(np.array_equal(learns_N, [True, False, True, False]) for _, learns_N, _ in seen)
    assert [shards for _, _, shards in seen[:: 1 + tune_shards.ROUNDS]] == [1, 2, 4]


def test_on_a_gpu_the_warm_up_captures_a_graph_and_timed_rounds_replay_it(monkeypatch):
    """On a CPU, a stand-in repeats the work itself."""
    lanes, train, seen = [], ShardPool.train, []

    def lane(device, *, graphs):
        lanes.append(Recorder())
        return lanes[-1]

    def counted(pool, time, samples):
        before = [(one.captures, one.replays) for one in pool._lanes]
        found = train(pool, time, samples)
        after = [(one.captures, one.replays) for one in pool._lanes]
        seen.append({(now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before, strict=True)})
        return found

    monkeypatch.setattr("esper.pool.local.Lane", lane)
    monkeypatch.setattr(ShardPool, "train", counted)
    monkeypatch.setattr(tune_shards, "find_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(tune_shards, "find_precision", lambda name, precision: precision)
    tuned(small_run.config(*TUNE, "task.batch_size=8", "task.epoch_samples=256", "hosts=2"))
    assert seen == 2 * [{(1, 6)}, *tune_shards.ROUNDS * [{(0, 7)}]]  # of 8 batches; the last one is never replayed


def test_without_tune_nothing_is_timed(monkeypatch):
    monkeypatch.setattr(tune_shards, "_timed", lambda *_: pytest.fail("timed"))
    config = small_run.config()
    assert tuned(config).config is config
    assert tuned(config).lines() == []


@pytest.mark.slow
def test_a_run_says_what_it_found_and_keeps_it(tmp_path):
    seen = ["telemetry=full", "telemetry.writers=[console]", "telemetry.page_hosts=0"]
    done = run_forked(*small_run.command(tmp_path / "run", *TUNE, *seen), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((tmp_path / "run" / "run.json").read_text())
    times = {int(size): taken for size, taken in record["tuned"]["cpu"].items()}
    best = min(times, key=times.__getitem__)
    assert f"repeat with devices.cpu.members_per_shard={best}" in done.stdout
    kept = small_run.newest(tmp_path / "run")["config"]["values"]["devices"]["cpu"]
    assert (kept["members_per_shard"], kept["tune"]) == (best, False)
    again = run_forked("esper.train", f"resume={tmp_path / 'run'}", "updates=4", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())[1]["tuned"] == {}


def test_the_same_command_takes_the_sizes_of_its_unfinished_run(tmp_path, monkeypatch):
    """Timing again could find another size, which the run would refuse."""
    monkeypatch.setattr(tune_shards, "_timed", lambda *_: {2: 0.1, 1: 0.2})
    Trainer(small_run.config(*TUNE, "updates=1"), tmp_path).run()
    monkeypatch.setattr(tune_shards, "_timed", lambda *_: {2: 0.2, 1: 0.1})
    again = Trainer(small_run.config(*TUNE, "updates=2"), tmp_path)
    again.run()
    assert again.config.devices["cpu"].members_per_shard == 2
    assert again.update == 2


def test_a_run_keeps_the_precision_that_auto_chose(monkeypatch):
    config = small_run.config("devices=[cpu]", "devices.cpu.precision=auto")
    assert tuned(config).config.devices["cpu"].precision is Precision.fp32
    monkeypatch.setattr(tune_shards, "find_precision", lambda name, precision: Precision.bf16)
    assert tuned(config).config.devices["cpu"].precision is Precision.bf16


def test_an_environment_from_outside_without_hosts_is_refused(monkeypatch):
    monkeypatch.setattr(tune_shards, "build_env", lambda *_, **__: SimpleNamespace(close=lambda: None))
    with pytest.raises(ConfigError, match=r"devices\.cpu\.tune=true times hosts in training, and env=growth trains none"):
        tuned(small_run.config(*TUNE))
