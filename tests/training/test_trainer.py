"""The trainer: runs, stops on a signal, and resumes bit for bit after a kill."""

import json
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from esper.agent.ppo.ppo import PPO
from esper.checkpoint import DiskError, Notice, load
from esper.cli import command as cli
from esper.cli.overrides import check
from esper.config import CHECKPOINTS, ConfigError
from esper.lab.evaluation import Evaluation
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.train import main
from esper.training import provenance
from esper.training.config_io import difference, from_plain, resumed, to_plain
from esper.training.interrupt import Stopped
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer, build_env
from tests.forked import Forked

TINY = ["hosts=4", "steps=3", "updates=3", "telemetry=quiet", "agent.minibatches=2", "agent.hidden=8"]
SICK, FALLS = 2, 3
"""The host that becomes non-finite, and the step."""


def config(*overrides):
    return check([*TINY, *overrides])


def command(folder, *overrides):
    return ["esper.train", *TINY, f"hydra.run.dir={folder}", *overrides]


def untimed(folder):
    """Return the metrics of a run, without times."""
    records = read_records(Path(folder) / "metrics.jsonl")
    return [{tag: value for tag, value in record.items() if not tag.startswith("time/")} for record in records]


def same(a, b):
    """Return whether two nested states are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    Trainer(config(), folder).run()
    return folder


def newest(folder):
    return load(find_checkpoint(str(folder), "resume"))


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


def collected(trainer):
    """Return a rollout and the record of its episode."""
    silent = SimpleNamespace(step=lambda step, steps: None)
    episode = trainer.collect(silent, threading.Event())
    (rollout,) = trainer.buffer.rollouts()
    return rollout, episode


def test_a_rollback_within_an_episode_reaches_the_learner(tmp_path, monkeypatch):
    """The penalty and the end are on the step of the rollback, and the recurrent state is reset after it."""
    trainer = Trainer(config("hosts=8", "steps=6", "governor.penalty=1000"), tmp_path)
    step, act, acted = trainer.env.step, trainer.agent.act, []

    def spoiled(action):
        if len(acted) == FALLS + 1:
            trainer.env.pool.shards[0].network.host.flat.data[SICK, 3] = np.nan
        return step(action)

    def heard(observation, state, **given):
        acted.append((observation, given, act(observation, state, **given)))
        return acted[-1][-1]

    monkeypatch.setattr(trainer.env, "step", spoiled)
    monkeypatch.setattr(trainer.agent, "act", heard)
    rollout, episode = collected(trainer)
    falls_TN = np.zeros((6, 8), bool)
    falls_TN[FALLS, SICK] = True
    ends_TN, starts_TN = falls_TN.copy(), np.roll(falls_TN, 1, axis=0)
    ends_TN[-1] = starts_TN[0] = True
    assert (rollout.terminated_TN.numpy() == ends_TN).all()
    assert (rollout.is_init_TN.numpy() == starts_TN).all()
    assert ((rollout.reward_TN.numpy() < -900) == falls_TN).all()
    paid_N, healthy_N = rollout.reward_TN.sum(0).numpy(), np.arange(8) != SICK
    np.testing.assert_allclose(paid_N[healthy_N], episode.return_N[healthy_N], rtol=1e-5)
    assert paid_N[SICK] < episode.return_N[SICK] < -900  # the report leaves out the potential of the snapshot

    observation, given, decision = acted[FALLS + 1]
    anew = act(observation, trainer.agent.start(8), **(given | {"is_init": np.zeros(8, bool)}))
    as_anew = [(decision.state["h"][host] == anew.state["h"][host]).all().item() for host in range(8)]
    assert as_anew == [host == SICK for host in range(8)]
    assert decision.value[SICK] == anew.value[SICK]
    assert trainer.learn(episode)["policy/first_ratio_error"] < 1e-5


def test_forfeit_prefix_removes_the_rewards_before_a_rollback(tmp_path, monkeypatch):
    paid = []
    for forfeit in ("none", "prefix"):
        trainer = Trainer(config("hosts=8", "steps=6", "governor.penalty=1000", f"buffer.forfeit={forfeit}"), tmp_path / forfeit)
        step, taken = trainer.env.step, []

        def spoiled(action, trainer=trainer, step=step, taken=taken):
            taken.append(action)
            if len(taken) == FALLS + 1:
                trainer.env.pool.shards[0].network.host.flat.data[SICK, 3] = np.nan
            return step(action)

        monkeypatch.setattr(trainer.env, "step", spoiled)
        paid.append(collected(trainer)[0].reward_TN.numpy())
    kept, taken = paid
    expected = kept.copy()
    expected[:FALLS, SICK] = 0
    assert (taken == expected).all()
    assert (kept[:FALLS, SICK] != 0).any()


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


@pytest.mark.parametrize("agent", ["heuristic", "greedy_potential", "random", "wait", "periodic", "schedule"])
def test_controllers_that_do_not_learn(agent, tmp_path):
    plain = check(["hosts=2", "steps=3", "updates=1", "telemetry=quiet", f"agent={agent}"])
    Trainer(plain, tmp_path).run()
    assert "policy/kl" not in read_records(tmp_path / "metrics.jsonl")[0]


def test_a_killed_run_resumes_bit_for_bit(whole, tmp_path, monkeypatch):
    folder = tmp_path / "killed"
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    process = Forked(*command(folder), cwd=tmp_path)
    first = folder / CHECKPOINTS / "checkpoint_000001.pt"
    deadline = time.monotonic() + 60
    while not first.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)  # somewhere in the second or third update
    process.kill()
    process.wait()
    assert newest(folder)["update"] in (1, 2, 3)
    copied = shutil.copytree(folder, tmp_path / "copied")
    written = (folder / ".hydra/config.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["esper.train", f"resume={folder}", f"hydra.run.dir={copied}"])
    with pytest.raises(SystemExit):
        cli.run(main)
    monkeypatch.setattr(sys, "argv", ["esper.train", f"resume={folder}"])
    cli.run(main)
    assert (folder / ".hydra/config.yaml").read_text() == written
    assert [record["status"] for record in provenance.read(folder / provenance.FILE)] == ["running", "finished"]
    assert not (tmp_path / "multirun").exists()
    Trainer(config(), copied).run()
    for resumed_run in (folder, copied):
        assert same(newest(resumed_run)["agent"], newest(whole)["agent"])
        assert untimed(resumed_run) == untimed(whole)


def test_a_stopped_run_leaves_a_checkpoint_and_says_how_to_resume(tmp_path):
    folder = tmp_path / "stopped"
    process = Forked(*command(folder, "updates=1000"), cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (folder / CHECKPOINTS / "checkpoint_000000.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    *warned, _ = errors.splitlines()
    assert all("no seed can be fossilized" in line for line in warned)  # of so short an episode, and nothing else
    assert f"resume with: python -m esper.train resume={folder}" in errors
    assert newest(folder)["update"] < 1000


def test_a_stop_within_a_rollout_loses_that_rollout_only(tmp_path, monkeypatch):
    trainer = Trainer(config(), tmp_path)
    step, calls = trainer.env.step, iter(range(100))
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(action):
        if next(calls) == 4:  # the second step of the second rollout
            signal.raise_signal(signal.SIGINT)
        return step(action)

    monkeypatch.setattr(trainer.env, "step", interrupt)
    with pytest.raises(Stopped, match="update 2"):
        trainer.run()
    assert newest(tmp_path)["update"] == 1
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("at", ["prepare", "reset"])
def test_a_stop_between_two_updates_does_not_wait(tmp_path, monkeypatch, at):
    """Hosts may be trained before the first episode, and that may take minutes."""
    Trainer(config("updates=1"), tmp_path).run()
    trainer = Trainer(config("updates=3"), tmp_path)
    trainer.env.episode = -1

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the run went on")

    monkeypatch.setattr(trainer.env, at, interrupted)
    with pytest.raises(Stopped, match="between two updates"):
        trainer.run()
    assert newest(tmp_path)["update"] == 1


def test_a_longer_run_continues_a_shorter_one(tmp_path):
    Trainer(config("updates=1"), tmp_path).run()
    Trainer(config("updates=2"), tmp_path).run()
    assert newest(tmp_path)["update"] == 2
    assert [record["update"] for record in read_records(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_resumed_run_says_what_is_left_and_what_is_damaged(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "copied")
    damaged = folder / CHECKPOINTS / "checkpoint_000003.pt"
    damaged.write_bytes(damaged.read_bytes()[:-64] + b"0" * 64)
    for updates, epochs, warning in (
        (3, 12, f"{damaged} is damaged (its checksum differs); trying the previous checkpoint"),
        (2, 0, "the run has finished update 3: set updates above it to go on"),
    ):
        with pytest.warns(Notice) as said:
            Trainer(config(f"updates={updates}", "telemetry.writers=[jsonl,console]"), folder).run()
        title, size, *_ = capsys.readouterr().out.splitlines()
        assert ": 3 updates of 4 hosts x 3 epochs" in title
        assert size.startswith("4 hosts of 496 parameters, ")
        assert size.endswith(f"; {epochs} host epochs")
        assert [str(one.message) for one in said if one.category is Notice] == [warning]


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo_mlp"],
        ["agent.chunk=3", "agent.surrogate=per_head", "agent.wait_bias=-1"],
    ],
    ids=["mlp", "options"],
)
def test_other_learners_resume_bit_for_bit_and_are_evaluated(overrides, tmp_path):
    def run(folder, updates):
        asked = config(f"updates={updates}", "telemetry.detail_every=1", *overrides)
        Trainer(asked, tmp_path / folder).run()
        return newest(tmp_path / folder)["agent"]

    run("parts", 1)
    assert same(run("parts", 2), run("whole", 2))
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")
    assert all(record["policy/first_ratio_error"] < 1e-5 for record in untimed(tmp_path / "parts"))
    evaluation = Evaluation.load(str(tmp_path / "parts"), hosts=2)
    outcomes = evaluation.run(["policy", "policy_greedy"])
    assert all(np.isfinite(outcome.values["return"]).all() for outcome in outcomes.values())
    evaluation.env.close()


def test_a_policy_learned_in_chunks_is_evaluated_over_any_horizon(tmp_path):
    """A chunk divides the steps of training only."""
    Trainer(config("agent.chunk=3", "updates=1"), tmp_path).run()
    evaluation = Evaluation.load(str(tmp_path), hosts=2, overrides=["steps=4"])
    assert evaluation.config.agent == config("agent.chunk=3").agent
    assert evaluation.transfer.target == ("steps=4",)
    assert evaluation.run(["policy"]).keys() == {"policy", "wait"}
    evaluation.env.close()
    with pytest.raises(ConfigError, match=r"agent\.chunk=3 does not divide steps=4"):
        config("agent.chunk=3", "steps=4")


def test_a_folder_of_another_config_is_refused(whole):
    with pytest.raises(ConfigError, match=r"another reward\.rent"):
        Trainer(config("reward.rent=0.75"), whole).run()
    assert newest(whole)["update"] == 3


def test_a_full_disk_is_one_sentence_and_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    trainer = Trainer(config(), tmp_path)
    save, calls = trainer.checkpoints.save, iter(range(100))

    def full(state, update, **kwargs):
        if next(calls) == 2:
            monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        return save(state, update, **kwargs)

    monkeypatch.setattr(trainer.checkpoints, "save", full)
    with pytest.raises(DiskError, match="no space left"):
        trainer.run()
    monkeypatch.undo()
    assert newest(tmp_path)["update"] == 1


def test_a_config_comes_back_from_its_plain_form():
    asked = config("task.instances=healthy", "blueprint=[norm,conv_light]", "blueprint.conv_light.kernel=5", "reward=sparse")
    back = from_plain(to_plain(asked))
    assert back == asked
    assert difference(back, asked) is None
    assert difference(back, config()) is not None
    assert difference(config(), config("updates=9")) is None


def test_only_some_keys_may_change_when_a_run_is_resumed():
    saved = config("seed=7")
    continued = resumed(saved, config("updates=9", "resume=."), ["updates=9", "resume=."])
    assert (continued.seed, continued.updates) == (7, 9)
    for word in ("seed=3", "reward=sparse", "+task.x=1", "agent.clip=0.1"):
        with pytest.raises(ConfigError, match="cannot change when a run is resumed"):
            resumed(saved, config(), [word])


def test_a_plain_config_of_another_version_is_refused():
    plain = to_plain(config())
    plain["options"]["reward"] = "of_the_future"
    with pytest.raises(ConfigError, match=r"reward=of_the_future is not an option here.*start a new run"):
        from_plain(plain)
    plain["values"]["gates"]["of_the_future"] = 1
    plain["options"]["reward"] = "shaped"
    with pytest.raises(ConfigError, match="another version"):
        from_plain(plain)


def test_interpolations_in_a_saved_config_are_not_resolved(monkeypatch):
    monkeypatch.setenv("SECRET", "xyz")
    plain = to_plain(config())
    plain["values"]["task"]["split_seed"] = "${oc.env:SECRET}"
    with pytest.raises(ConfigError, match=r"has task\.split_seed=\$\{oc\.env:SECRET\}, and this program saves no interpolations"):
        from_plain(plain)


def test_a_folder_without_checkpoints_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        find_checkpoint(str(tmp_path), "resume")


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
