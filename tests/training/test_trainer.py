"""The trainer: a run learns and repeats itself, its details, twins, scripted agents, and several reward modes."""

import json
import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.agent.ppo.ppo import PPO
from esper.agent.scripted.base import Random, RandomConfig
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.env.actions import ActionError
from esper.measure.seed_log import seed_stats
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.config_io import from_plain
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.trainer import Trainer
from tests.training.small_run import collected, config, newest, same, untimed


def test_a_run_finishes_and_learns(whole):
    state = newest(whole)
    assert state["update"] == 3
    records = read_records(whole / "metrics.jsonl")
    assert [record["update"] for record in records] == [1, 2, 3]
    for record in records:
        assert record["policy/first_ratio_error"] < 1e-4
        assert np.isfinite(record["policy/return"])
        paid = sum(value for tag, value in record.items() if tag.startswith("reward/"))
        assert paid == pytest.approx(record["policy/return"], rel=1e-4)
        assert sum(value for tag, value in record.items() if tag.startswith("action/")) == pytest.approx(1)
        assert sum(value for tag, value in record.items() if tag.startswith("host/stage_")) == pytest.approx(3)
    newborn = Trainer(config(), whole.with_name("newborn")).agent
    assert isinstance(newborn, PPO)
    assert not same(state["agent"]["network"], newborn.state_dict()["network"])


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole, tmp_path):
    Trainer(config(), tmp_path / "aa_control").run()
    assert untimed(tmp_path / "aa_control") == untimed(whole)
    Trainer(config("seed=1", "updates=1"), tmp_path / "other").run()
    assert untimed(tmp_path / "other")[0] != untimed(whole)[0]


def details(folder):
    return [any(tag.startswith("policy/entropy_share") for tag in record) for record in untimed(folder)]


def test_a_healthy_run_writes_details_at_its_end_and_no_events(whole):
    assert details(whole) == [False, False, True]
    assert [record["policy/anomalies"] for record in untimed(whole)] == [0, 0, 0]
    assert not (whole / "events.jsonl").exists()


def test_an_anomaly_is_reported_once_with_details_even_across_a_resume(tmp_path):
    nervous = ["telemetry.anomalies.kl=1e-9", "telemetry.anomalies.min_steps=1"]
    Trainer(config("updates=1", *nervous), tmp_path).run()
    Trainer(config("updates=3", *nervous), tmp_path).run()
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["update"], event["kind"]) == (1, "kl_spike")
    assert details(tmp_path) == [True, True, True]
    Trainer(config("updates=3", "telemetry.anomalies.hold=1", *nervous), tmp_path / "whole").run()
    assert untimed(tmp_path / "whole") == untimed(tmp_path)
    assert [record["policy/anomalies"] for record in untimed(tmp_path)] == [1, 1, 1]


def test_twins_get_the_same_host_and_act_independently(tmp_path):
    trainer = Trainer(config("hosts=12", "agent.twins=4", "agent.wait_bias=-1"), tmp_path)
    rollout, episode = collected(trainer)
    groups = [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert [len(set(episode.instance[group])) for group in groups] == [1, 1, 1]
    assert len(set(episode.instance)) > 1
    for name, tensor in rollout.seen[0].tensors().items():  # potentials to rounding: kernels add up a row by its place
        assert all(torch.allclose(tensor[group].float(), tensor[group][:1].float(), atol=1e-5) for group in groups), name
    assert len(rollout.seen.features[0].unique(dim=0)) == 3, "groups differ"
    assert all(len(rollout.action_TNH[:, group].unique(dim=1)[0]) > 1 for group in groups)
    for rank, seed in enumerate(episode.log.seeds):
        seed.contribution = float(rank)
    seeds = [seed for seed in episode.log.seeds if seed.slot == 0]
    expected = seed_stats(seeds, 12, [host // 4 for host in range(12)]).contribution_error
    assert episode.metrics()[f"seeds_contribution_error/slot_{episode.slots[0]}"] == pytest.approx(expected)
    assert expected != pytest.approx(seed_stats(seeds, 12).contribution_error)


@pytest.mark.parametrize("agent", ["heuristic", "greedy_potential", "random", "wait", "periodic", "schedule"])
def test_controllers_that_do_not_learn(agent, tmp_path):
    plain = check(["hosts=2", "steps=4", "updates=1", "telemetry=quiet", f"agent={agent}"])
    Trainer(plain, tmp_path).run()
    assert "policy/kl" not in read_records(tmp_path / "metrics.jsonl")[0]


def test_the_best_policy_is_judged_by_its_search_and_never_by_what_is_no_number(tmp_path):
    trainer = Trainer(config(), tmp_path)
    trainer._judge(math.nan)
    assert trainer.best is None, "or nothing could be higher"
    trainer._judge(5.0)
    trainer._judge(4.0)
    assert trainer.best["return"] == 5.0
    trainer._judge(6.0, improved=0.0)  # by discounted return
    assert trainer.best["return"] == 5.0
    trainer._judge(4.0, improved=1.0)
    assert trainer.best["return"] == 4.0


def test_several_reward_modes_train_side_by_side_and_are_evaluated_by_one(tmp_path):
    """Two hosts are paid by each mode; returns are reported by mode, and an evaluation uses the mode of the run."""
    both = config("reward.per_host={shaped:2,sparse:2}", "updates=2", "agent.twins=1", "agent.baseline=critic")
    trainer = Trainer(both, tmp_path)
    trainer.run()
    last = read_records(tmp_path / "metrics.jsonl")[-1]
    assert last["policy/return"] == pytest.approx((last["mode/shaped"] + last["mode/sparse"]) / 2, rel=1e-5)
    assert last["mode/shaped"] != last["mode/sparse"]
    assert {"reward/attribution", "reward/terminal", "audit/shaped_ratio", "audit/seed_epochs"} <= set(last)
    assert trainer.env.reward.groups
    for split in (Split.HELD_OUT, Split.TRAINING):
        judged = build_env(both, split=split, hosts=6)
        assert not judged.reward.groups
        judged.close()
    assert from_plain(newest(tmp_path)["config"]) == both


class Shared(Random):
    """An agent whose hosts share a counter."""

    def act(self, *given, **more):
        return replace(super().act(*given, **more), state={"epochs": torch.zeros(1)})


class Silent(Random):
    """An agent that forgets to return its decision."""

    def act(self, *given, **more):
        super().act(*given, **more)


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        (Shared, r"Shared.act\(\) returns a state whose 'epochs' has the shape \(1,\): return a tensor"),
        (Silent, r"Silent.act\(\) returns a NoneType: return a Decision"),
    ],
)
def test_a_wrong_decision_is_refused(agent, sentence):
    with closing(build_env(check(["env=sandbox", "hosts=3", "agent=random"]), split=Split.TRAINING, hosts=3)) as env:
        env.reset(options={"episode": 0})
        with pytest.raises(ActionError, match=sentence):
            play(env, agent(RandomConfig(), env.layout))


def test_an_agent_that_returns_no_metrics_is_told(tmp_path, monkeypatch):
    trainer = Trainer(config("updates=1"), tmp_path)
    monkeypatch.setattr(trainer.learner, "learn", lambda progress: None)
    with pytest.raises(ConfigError, match=r"^PPO.learn\(\) returns a NoneType: return a dictionary of metrics, {} for none$"):
        trainer.run()
