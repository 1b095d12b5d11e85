"""Resuming: bit for bit after a kill, what is said about it, and which folders are refused."""

import shutil
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from esper.checkpoint import CheckpointNotFoundError, digest_of, retry_if_removed
from esper.cli import command as cli
from esper.config import ConfigError
from esper.evaluation.held_out import Evaluation
from esper.notices import UserNotice
from esper.train import main
from esper.training import provenance, resume
from esper.training.resume import find_checkpoint, no_checkpoint
from esper.training.run_folder import CHECKPOINTS
from esper.training.trainer import Trainer
from tests.forked import Forked
from tests.training.small_run import command, config, newest, same, untimed


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


def test_the_newest_checkpoint_is_looked_for_again_if_it_is_removed_before_it_is_read(whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "copied")
    first, load = find_checkpoint(str(folder), "checkpoint"), resume.load_run_and_digest
    later = first.with_name("checkpoint_000009.pt")

    def load_while_training(path):
        if first.exists():
            first.rename(later)
        return load(path)

    monkeypatch.setattr(resume, "load_run_and_digest", load_while_training)
    found, state, digest = resume.load_found(str(folder), "checkpoint")
    assert found == later
    assert same(state["agent"], newest(whole)["agent"])
    assert digest == digest_of(later)
    monkeypatch.setattr(resume, "load_run", lambda path: load_while_training(path)[0])
    later.rename(first)
    assert resume.load_newest(folder) is not None
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint"):
        retry_if_removed(lambda: load(first))


def test_a_run_on_streamed_data_resumes_to_the_numbers_of_resident_data(whole, tmp_path):
    Trainer(config("devices.auto.resident=false"), tmp_path).run()
    find_checkpoint(str(tmp_path), "resume").unlink()  # and again from the second update on
    Trainer(config("devices.auto.resident=false"), tmp_path).run()
    assert untimed(tmp_path) == untimed(whole)
    assert same(newest(tmp_path)["agent"], newest(whole)["agent"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_a_resumed_run_says_what_is_left_and_what_is_damaged(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "copied")
    damaged = folder / CHECKPOINTS / "checkpoint_000003.pt"
    damaged.write_bytes(damaged.read_bytes()[:-64] + b"0" * 64)
    for updates, epochs, warning in (
        (3, 12, f"{damaged} is damaged (its checksum differs); trying the previous checkpoint"),
        (2, 0, "the run had finished update 3 before, so nothing is trained: set updates above 3 to train more"),
    ):
        with pytest.warns(UserNotice) as said:
            worked = Trainer(config(f"updates={updates}", "telemetry.writers=[jsonl,console]"), folder).run()
        shown = capsys.readouterr().out.splitlines()
        assert worked == bool(shown) == bool(epochs)
        if worked:
            assert ": 3 updates of 4 hosts x 3 epochs" in shown[0]
            assert shown[1] == f"folder: {folder}"
            assert shown[2].startswith("4 hosts of 496 parameters, ")
            assert shown[2].endswith(f"; {epochs} host epochs")
        assert [str(one.message) for one in said if one.category is UserNotice] == [warning]


def test_a_finished_run_is_left_alone(whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "copied")
    (folder / "run.html").write_text("as it was")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    more = ["telemetry.writers=[jsonl,tensorboard]", "telemetry.page_hosts=2"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["esper.train", f"resume={folder}", *more])
    cli.run(main)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo_mlp"],
        ["agent.chunk=3", "agent.surrogate=per_head", "agent.wait_bias=-1"],
        ["optimiser=adamw", "optimiser.schedule=one_cycle", "optimiser.seeds.warmup_batches=3", "optimiser.micro_batches=2"],
        ["devices.auto.precision=bf16"],
        ["devices=[cpu]", "devices.cpu.precision=fp16"],
    ],
    ids=["mlp", "options", "optimiser", "bf16", "fp16"],
)
def test_other_learners_resume_bit_for_bit_and_are_evaluated(overrides, tmp_path):
    def run(folder, updates):
        few = ["task.epoch_samples=256", "task.valid_samples=100", "telemetry.detail_every=1"]
        asked = config(f"updates={updates}", *few, *overrides)
        Trainer(asked, tmp_path / folder).run()
        state = newest(tmp_path / folder)
        assert state["update"] == updates
        return state["agent"]

    fp16 = "devices.cpu.precision=fp16" in overrides
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if fp16 else "error", UserNotice)  # fp16 is slow on a CPU
        whole = run("whole", 2)
    for row in untimed(tmp_path / "whole"):
        assert ("host/loss_scale" in row) == ("governor/overflows" in row) == fp16
        if fp16:
            assert 1 <= row["host/loss_scale"] <= 4096
            assert row["governor/overflows"] >= 0
            assert row["governor/rollbacks_nonfinite"] == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    find_checkpoint(str(tmp_path / "parts"), "resume").unlink()  # as if killed in its second update
    assert same(run("parts", 2), whole)
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


def test_a_refused_command_leaves_how_the_run_was_started(whole, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(whole, tmp_path / "copied")
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra/config.yaml").write_text("as it was")
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", command(folder, "seed=5"))
    with pytest.raises(SystemExit) as ended:
        cli.run(main)
    assert ended.value.code == 2
    assert "holds a run with other settings (seed=" in capsys.readouterr().err
    assert [path.read_text() for path in (folder / ".hydra").iterdir()] == ["as it was"]


def test_a_folder_of_another_config_is_refused(whole):
    with pytest.raises(ConfigError, match=r"other settings \(reward\.rent="):
        Trainer(config("reward.rent=0.75"), whole).run()
    assert newest(whole)["update"] == 3


def test_a_folder_without_checkpoints_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        find_checkpoint(str(tmp_path), "resume")


def test_a_missing_folder_is_told_of_runs_and_policies_beside_it(tmp_path: Path) -> None:
    for name in ("run_1/checkpoints", "run_00", "rum_0"):
        (tmp_path / name).mkdir(parents=True)
    assert no_checkpoint(tmp_path / "run_0").endswith(f"did you mean {tmp_path / 'run_1'}?"), "run_00 is no run"
    (tmp_path / "rum_0" / "policy.pt").touch()
    assert no_checkpoint(tmp_path / "rum").endswith(f"did you mean {tmp_path / 'rum_0'}?")
    assert no_checkpoint(tmp_path / "nothing").endswith("that esper.train printed"), "the same parent is no likeness"
