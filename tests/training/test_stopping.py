"""Runs that end early, by a stop request or a full disk: the checkpoint that they leave."""

import os
import signal
import sys
import time
import warnings

import pytest

from esper.cli import command as cli
from esper.env.growth_env import GrowthEnv
from esper.files import DiskError
from esper.train import main
from esper.training.interrupt import Stopped
from esper.training.run_folder import CHECKPOINTS
from esper.training.trainer import Trainer
from tests.forked import Forked
from tests.training.small_run import command, config, newest


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


def test_a_stop_while_a_checkpoint_is_read_is_no_fault_of_the_file(tmp_path, monkeypatch):
    Trainer(config("updates=1"), tmp_path).run()
    trainer = Trainer(config("updates=3"), tmp_path)
    monkeypatch.setattr("torch.load", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Stopped, match="between two updates"):
        trainer.run()


def test_a_stop_before_the_first_checkpoint_does_not_promise_to_resume(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(GrowthEnv, "prepare", lambda *_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", command(tmp_path / "run"))
    with pytest.raises(SystemExit) as ended:
        cli.run(main)
    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "esper: stopped between two updates; nothing was saved yet: repeat the command"
    )


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
