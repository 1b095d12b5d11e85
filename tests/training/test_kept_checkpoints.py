"""Which checkpoints a run keeps, the bytes of a resumed run, and states with a right digest and wrong entries."""

from pathlib import Path

import pytest

from esper.checkpoint import CheckpointError, Checkpoints, load, load_run
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.training.resume import find_checkpoint
from esper.training.run_folder import CHECKPOINTS
from esper.training.trainer import Trainer

TINY = ["hosts=4", "steps=3", "updates=4", "telemetry=quiet", "agent.minibatches=2", "agent.hidden=8", "env=sandbox"]
CLOCK = ("run.json", "times.jsonl")
"""Files of a run that depend on the clock and on the number of processes."""


def config(*overrides: str):
    return check([*TINY, *overrides])


def test_the_newest_and_the_best_are_kept_and_resumed_files_have_the_same_bytes(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    Trainer(config("checkpoints.keep=1"), whole).run()
    stopped = Trainer(config("checkpoints.keep=1"), parts)
    collect = stopped.collect

    def interrupted(*arguments):
        if stopped.update == 2:
            raise KeyboardInterrupt
        return collect(*arguments)

    stopped.collect = interrupted
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    Trainer(config("checkpoints.keep=1"), parts).run()
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    different = [str(path) for path in files if (whole / path).read_bytes() != (parts / path).read_bytes()]
    assert sorted(different) == sorted(CLOCK)
    best = load(find_checkpoint(str(whole), "checkpoint"))["best"]["update"]
    assert {path.name for path in Checkpoints(whole / CHECKPOINTS).paths()} == {
        f"checkpoint_{update:06d}.pt" for update in (best, 4)
    }
    assert load(find_checkpoint(f"{whole}/best", "checkpoint"))["update"] == best
    called_best = whole.rename(tmp_path / "best")
    assert [load(find_checkpoint(f"{called_best}{part}", "checkpoint"))["update"] for part in ("", "/best")] == [4, best]
    called_best.rename(whole)


def test_a_bandit_has_no_best_checkpoint(tmp_path: Path) -> None:
    for explores in ("0.5", "0.0"):
        settings = ["task=digits", "hosts=2", "steps=2", "updates=1", "telemetry=quiet", "agent=bandit", "task.epoch_samples=128"]
        Trainer(check([*settings, f"agent.exploration={explores}"]), tmp_path / explores).run()
        refused = f"names the best checkpoint, but agent=bandit explores in .*: write checkpoint=.*/{explores}, for the newest"
        with pytest.raises(ConfigError, match=refused):
            find_checkpoint(f"{tmp_path}/{explores}/best", "checkpoint")


FORGED: list[tuple[str, object]] = [("agent", None), ("config", {}), ("update", "3"), ("watch", 3), ("buffer", [])]
FORGED += [("agent", {"names": 3}), ("hparams", None)]


def test_a_forged_state_is_refused_in_one_sentence(tmp_path: Path) -> None:
    Trainer(config("updates=1"), tmp_path).run()
    state = load_run(find_checkpoint(str(tmp_path), "resume"))
    for entry, value in FORGED:
        Checkpoints(tmp_path / CHECKPOINTS).save(state | {entry: value}, 1)
        with pytest.raises(CheckpointError, match="holds a state that does not fit"):
            Trainer(config("updates=1"), tmp_path).restore()


def test_a_large_file_that_is_no_checkpoint_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_000001.pt"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # reading it would exhaust the memory
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load(path)
