"""Costs recorded by a run, measured latency across resumes, and telemetry without side effects."""

import json
import math

import numpy as np
import pytest

from esper.checkpoint import load
from esper.cli.overrides import check
from esper.evaluate import main
from esper.evaluation.held_out import Evaluation
from esper.measure.costs import Price
from esper.telemetry.jsonl import read_records
from esper.text import si
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer
from tests.training.small_run import config, newest, same, untimed

WAIT = ["hosts=2", "steps=3", "agent=wait", "telemetry=quiet", "task.epoch_samples=256", "task.valid_samples=40"]
TIMED = "reward.rent_unit=latency"


def latency_of(env, host):
    zero_KS = np.zeros(env.costs.params.seed_KS.shape)
    return Price(host=host, seed_KS=zero_KS, gate_S=zero_KS[0])


def test_a_run_records_the_costs_of_hosts_and_seeds(tmp_path):
    trainer = Trainer(check([*WAIT, "updates=1"]), tmp_path)
    trainer.run()
    (record,) = read_records(tmp_path / "metrics.jsonl")
    host, params = trainer.env.costs.flops.forward.host, trainer.env.host_params
    assert record["host/training_flops"] == 3 * 256 * 3 * host
    assert record["host/measuring_flops"] == 4 * 40 * host
    assert (record["host/flops_committed"], record["host/parameters_committed"]) == (host, params)
    assert "host/latency_committed" not in record
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert costs["host"] == {"params": params, "flops": host, "latency": None}
    assert set(costs["seeds"]) == set(trainer.env.layout.blueprint_names)


def test_latency_is_measured_once_and_reused(tmp_path, monkeypatch):
    trainer = Trainer(check([*WAIT, "updates=1", TIMED]), tmp_path)
    monkeypatch.setattr("esper.pool.local.measure_latency", lambda *_: latency_of(trainer.env, 2.5e-5))
    trainer.run()
    monkeypatch.setattr("esper.pool.local.measure_latency", lambda *_: pytest.fail("measured again"))
    assert load(find_checkpoint(str(tmp_path), "resume"))["env"]["latency"]["host"] == 2.5e-5
    longer = Trainer(check([*WAIT, "updates=2", TIMED]), tmp_path)
    longer.run()
    assert [record["host/latency_committed"] for record in read_records(tmp_path / "metrics.jsonl")] == [2.5e-5] * 2
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert costs["host"]["latency"] == 2.5e-5
    evaluation = Evaluation.load(str(tmp_path), hosts=2)
    evaluation.env.reset()
    assert evaluation.env.costs.latency.host == 2.5e-5
    with pytest.raises(BaseException, match="measured again"):  # other hosts, other numbers
        Evaluation.load(str(tmp_path), hosts=2, overrides=["host.base_channels=3"]).env.reset()


def test_an_evaluation_shows_flops_and_writes_them_by_host(tmp_path, capsys):
    trainer = Trainer(check([*WAIT, "updates=1"]), tmp_path)
    trainer.run()
    main([f"checkpoint={tmp_path}", "hosts=2", "controllers=[policy]", "details=true"])
    host = trainer.env.costs.flops.forward.host
    shown = capsys.readouterr().out
    assert "FLOPs" in shown
    assert " 7.07k " in shown
    assert " 16.3M" in shown
    assert (host, 3 * 256 * 3 * host) == (7072, 16293888)
    kept = json.loads((tmp_path / "evaluation_000001_2_hosts_episode0.json").read_text())
    assert kept["hosts"]["wait"]["flops"] == [host] * 2
    assert kept["rows"][0]["training_flops"] == 3 * 256 * 3 * host


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (7072, "7.07k"),
        (1.629e7, "16.3M"),
        (2e9, "2G"),
        (3e12, "3T"),
        (4e15, "4P"),
        (4e19, "40E"),
    ],
)
def test_large_numbers_are_si(value, shown):
    assert si(value) == shown


# ---- telemetry changes nothing


def test_telemetry_does_not_change_the_weights(tmp_path):
    """All records, with every detail and anomaly, against none."""
    loud = ["telemetry=full", "telemetry.detail_every=1", "telemetry.anomalies.kl=1e-9", "telemetry.anomalies.min_steps=1"]
    still = ["telemetry=quiet", "telemetry.writers=[]"]
    runs = {}
    for name, words in (("loud", loud), ("still", still)):
        trainer = Trainer(config("updates=2", *words), tmp_path / name)
        trainer.run()
        hosts = [row.clone() for shard in trainer.env.pool.shards for row in shard.network.rows().values()]
        runs[name] = newest(tmp_path / name)["agent"], hosts
    assert (tmp_path / "loud" / "events.jsonl").exists()
    assert (tmp_path / "loud" / "tensorboard").exists()
    assert {path.name for path in (tmp_path / "still").iterdir()} == {"checkpoints", "run.json", ".lock"}
    assert same(*(run[0] for run in runs.values()))
    assert same(*(run[1] for run in runs.values()))
    assert any("policy/entropy_share_op" in record for record in untimed(tmp_path / "loud"))
    assert not any(math.isnan(value) for record in untimed(tmp_path / "loud") for value in record.values())
