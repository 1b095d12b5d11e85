"""The trace of an episode against the transitions that it was made from, and its files."""

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.actions import Head, Op
from esper.files import FileError
from esper.lifecycle.stages import Stage
from esper.page.seeds import log_of
from esper.task.instances import Split
from esper.telemetry.traces import Table, read_trace, trace_of_evaluation, trace_of_update, traced_updates, write_trace
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.trace import Trace, _plain  # pyright: ignore[reportPrivateUsage]
from esper.training.trainer import Trainer
from tests.training.small_run import TINY

RANDOM = [
    "hosts=4",
    "steps=14",
    "task.epoch_samples=128",
    "task.valid_samples=50",
    "telemetry=quiet",
    "agent=random",
    "slots=all",
]


def traced(*overrides: str) -> tuple[Table, list[Transition], Any]:
    """Return the trace of an episode of a random controller, its transitions and its record."""
    steps: list[Transition] = []
    env = build_env(check([*RANDOM, *overrides]), split=Split.TRAINING)
    trace = Trace(env.layout)

    def record(step: Transition) -> None:
        steps.append(step)
        trace.add(step)

    with closing(env):
        env.reset()
        episode = play(env, env_agent(env, overrides), record=record)
    return trace.table(episode), steps, episode


def env_agent(env: Any, overrides: tuple[str, ...]) -> Any:
    return check([*RANDOM, *overrides]).agent.build(env.layout, seed=0)


def test_counts_are_exact_and_measurements_have_a_few_digits() -> None:
    assert [_plain(value) for value in (1234567.0, 0.1234567, math.inf, math.nan, 7)] == [1234567, 0.12346, math.inf, None, 7]


@pytest.fixture(scope="module")
def trace() -> tuple[Table, list[Transition], Any]:
    return traced()


def test_rows_are_hosts_by_epochs_and_hold_what_was_decided_measured_and_paid(trace) -> None:
    table, steps, episode = trace
    frame = pd.DataFrame(table)
    assert len(frame) == 4 * 14
    for (host, epoch), one in frame.set_index(["host", "epoch"]).iterrows():
        step = steps[epoch - 1]
        action = step.decision.action[host]
        assert one["op"] == Op(action[Head.OP]).name.lower()
        assert one["reward"] == pytest.approx(step.reward_N[host], rel=1e-4, abs=1e-4)
        paid = [value for name, value in one.items() if str(name).startswith("reward_")]
        assert sum(paid) == pytest.approx(step.reward_N[host], abs=1e-3)
        assert one["accuracy"] == pytest.approx(step.signals.accuracy_N[host], rel=1e-4)
        stage = Stage(step.signals.after.stage[host, 0])
        assert one["r0c0.stage"] == stage.name.lower()
        assert pd.isna(one["r0c0.blueprint"]) == (stage in (Stage.DORMANT, Stage.PRUNED, Stage.EMBARGOED))
    ends = frame[frame["epoch"] == 14]
    assert ends["return"].to_numpy() == pytest.approx(episode.return_N, rel=1e-4)
    assert ends["parameters_kept"].tolist() == episode.kept_params_N.tolist()
    assert frame[frame["epoch"] < 14][["return", "r0c0.kept"]].isna().all(axis=None)
    names = [*episode.blueprints, None]
    kept = [[names[rank] for rank in episode.kept_NS[:, slot]] for slot in range(3)]
    assert [table[f"r0c{slot}.kept"][13::14] for slot in range(3)] == kept


def test_potential_is_the_one_that_the_controller_saw(trace) -> None:
    table, steps, _ = trace
    known = steps[0].signals.potential_before_NSK[:, 1, 2]
    columns = [name for name in table if name.startswith("r0c1.potential_")]
    assert np.array(table[columns[2]][::14]) == pytest.approx(known, rel=1e-4)
    assert (steps[0].observation.slots != steps[1].observation.slots).any()


def test_events_of_the_world_stand_in_the_epoch_in_which_they_start(tmp_path: Path) -> None:
    pretrained = ["task.pretrain=1", "task.pretrain_pool=2", f"task.pretrain_folder={tmp_path}"]
    table, _, episode = traced("task=digits_arrivals", *pretrained, "steps=20", "slots=one", "hosts=3")
    frame = pd.DataFrame(table)
    starts = {
        (host, event.start + 1, event.kind) for host, one in enumerate(episode.timetable) for event in one if event.start < 20
    }
    assert starts
    seen = frame[frame["events"].notna()]
    found = {
        (host, epoch, name) for host, epoch, names in seen[["host", "epoch", "events"]].to_numpy() for name in names.split(", ")
    }
    assert {one for one in found if not one[2].endswith(" ends")} == starts


def test_a_trace_survives_its_file_and_equal_tables_give_equal_bytes(trace, tmp_path: Path) -> None:
    table = trace[0]
    path = trace_of_update(tmp_path, 3)
    write_trace(path, table)
    first = path.read_bytes()
    write_trace(path, table)
    assert path.read_bytes() == first
    assert traced_updates(tmp_path) == {3: path}
    read = read_trace(path)
    assert read.keys() == table.keys()
    assert read["reward"] == pytest.approx(table["reward"])
    assert read["op"] == table["op"]
    names = ["1", "nan", *table["slot"][2:]]  # names of slots are free
    write_trace(path, table | {"slot": names})
    assert read_trace(path)["slot"] == names
    write_trace(path, table)
    assert pd.read_csv(path)["r0c0.stage"].tolist() == table["r0c0.stage"]


@pytest.mark.parametrize(
    ("damage", "sentence"), [(b"", "is damaged"), (b"no gzip", "is damaged"), (None, "is a trace of another version")]
)
def test_a_damaged_trace_is_named(trace, tmp_path: Path, damage: bytes | None, sentence: str) -> None:
    held_out = trace_of_evaluation(tmp_path, 1, 99, "policy")
    write_trace(held_out, trace[0])
    with pytest.raises(FileError, match="since it lacks epochs or hosts: remove it"):
        read_trace(held_out)
    path = trace_of_update(tmp_path, 1)
    for epoch in (None, "x", math.inf, 0):
        write_trace(path, trace[0] | {"epoch": [epoch, *trace[0]["epoch"][1:]]})
        with pytest.raises(FileError, match=r"update_000001\.csv\.gz is damaged"):
            read_trace(path)
    write_trace(path, trace[0] | {"version": [99] * len(trace[0]["version"])})
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(FileError, match=rf"update_000001\.csv\.gz {sentence}"):
        read_trace(path)


def test_a_resumed_run_has_the_traces_of_an_uninterrupted_one(tmp_path: Path) -> None:
    overrides = [*TINY, "telemetry.trace=true", "telemetry.detail_every=2", "task.epoch_samples=256", "task.valid_samples=100"]
    Trainer(check([*overrides, "updates=4"]), tmp_path / "whole").run()
    Trainer(check([*overrides, "updates=1"]), tmp_path / "resumed").run()
    write_trace(trace_of_update(tmp_path / "resumed", 2), {"version": [1]})  # of an update that a kill undid
    Trainer(check([*overrides, "updates=4"]), tmp_path / "resumed").run()
    whole, resumed = traced_updates(tmp_path / "whole"), traced_updates(tmp_path / "resumed")
    assert list(whole) == list(resumed) == [1, 2, 4]
    assert all(whole[update].read_bytes() == resumed[update].read_bytes() for update in whole)


@pytest.mark.parametrize("more", [(), ("optimiser.learning_rate=2", "governor.patience=1")], ids=["healthy", "rolled_back"])
def test_the_seeds_of_a_trace_are_those_that_were_counted_in_training(more: tuple[str, ...]) -> None:
    table, _, episode = traced(*more)
    logged, found = episode.log.seeds, log_of(table, list(episode.blueprints)).seeds
    assert len(logged) > 10
    for one, other in zip(logged, found, strict=True):
        numbers = [(seed.contribution, seed.contribution_error) for seed in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-4, nan_ok=True)
        assert [replace(seed, contribution=0, contribution_error=0) for seed in (one, other)] == [
            replace(one, contribution=0, contribution_error=0)
        ] * 2
    metrics = episode.metrics()
    assert any(cause is not None for cause in table["rolled_back"]) == bool(more)
    if not more:
        assert len(logged) / 4 == metrics["host/seeds_germinated"]
        assert sum(seed.fate == "removed" for seed in logged) / 4 == metrics["host/seeds_pruned"]
    kept = [(seed.host, seed.slot) for seed in logged if seed.fate == "kept"]
    assert sorted(kept) == sorted(map(tuple, np.argwhere(episode.kept_NS >= 0).tolist()))
    by_slot = sum(value for tag, value in metrics.items() if tag.startswith("seeds_planted/slot_"))
    assert by_slot == pytest.approx(len(logged) / 4)
    norms = [
        [float(norm) for host, norm in zip(table["host"], table["gradient_norm"], strict=True) if host == one and norm]
        for one in range(4)
    ]
    means = [np.mean(np.array(one)[np.isfinite(one)]) for one in norms]
    assert metrics["host/gradient_norm"] == pytest.approx(np.mean(means), rel=1e-4)
    assert metrics["host/gradient_norm_max"] == pytest.approx(max(means), rel=1e-4)
