"""Telemetry as the trainer uses it."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from esper.files import DiskError
from esper.telemetry.anomalies import Anomaly, Findings
from esper.telemetry.base import Rows, RunInfo, Writer, WriterConfig
from esper.telemetry.config import QuietConfig, Telemetry, TelemetryConfig
from esper.telemetry.healthy import HEALTHY
from esper.telemetry.jsonl import read_records
from esper.telemetry.tags import UnknownTagError, metric
from esper.telemetry.writers import WRITERS

FILES = ["jsonl", "tensorboard"]
ACCURACY, DETAIL = "host/accuracy", "policy/entropy_op"
DECISIONS = ({"id": "1/0/0"}, {"id": "1/0/1"})
SPIKE = Anomaly(kind="kl_spike", tag="policy/kl_of_target", value=math.inf, threshold=3.0, meaning="it jumped", remedy="lower it")


def build(config: TelemetryConfig, folder: Path, total: int = 10, resume: int = 0) -> tuple[Telemetry, io.StringIO]:
    file = io.StringIO()
    with redirect_stdout(file):
        return config.build(RunInfo(folder=folder, resume_update=resume, total_updates=total)), file


def run(config: TelemetryConfig, folder: Path, total: int = 10, resume: int = 0) -> str:
    telemetry, file = build(config, folder, total, resume)
    with closing(telemetry):
        telemetry.start("shaped", {"seed": 0})
        for update in range(resume + 1, total + 1):
            telemetry.step(1, 2)
            telemetry.update(update, {ACCURACY: float(update), "policy/kl": None, "host/loss": math.nan}, None, lambda: DECISIONS)
        telemetry.finish([("accuracy", "10 pp")])
    return file.getvalue()


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["every", "detail_every"])
def test_every_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"telemetry\.{name} must be at least 1, got 0"):
        TelemetryConfig(**{name: 0})


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (TelemetryConfig(), {"metrics.jsonl", "times.jsonl", "tensorboard", "decisions.jsonl"}),
        (QuietConfig(), {"metrics.jsonl", "times.jsonl"}),
        (TelemetryConfig(writers=["jsonl", "console"]), {"metrics.jsonl", "times.jsonl", "decisions.jsonl"}),
        (
            TelemetryConfig(writers=["console", "tensorboard", "jsonl"], decisions=False),
            {"metrics.jsonl", "times.jsonl", "tensorboard"},
        ),
    ],
)
def test_each_writer_writes_its_files(tmp_path: Path, config: TelemetryConfig, files: set[str]) -> None:
    shown = run(config, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == files
    assert bool(shown) == ("console" in config.writers)


@pytest.mark.parametrize(("every", "written"), [(1, list(range(1, 11))), (4, [4, 8, 10]), (50, [10])])
def test_every_kth_update_and_the_last_are_written(tmp_path: Path, every: int, written: list[int]) -> None:
    run(TelemetryConfig(every=every, writers=FILES), tmp_path)
    assert read_records(tmp_path / "metrics.jsonl") == [{"update": update, ACCURACY: update} for update in written]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars(ACCURACY)] == written
    assert events.Tags()["scalars"] == [ACCURACY]
    about = events.SummaryMetadata(ACCURACY).summary_description
    assert about == f"{metric(ACCURACY).meaning} [%]\n\nHealthy: {HEALTHY[ACCURACY]}"


@pytest.mark.parametrize(
    ("every", "detail_every", "alarmed", "written", "detailed"),
    [
        (1, 4, set(), set(range(1, 11)), {4, 8, 10}),
        (3, 2, set(), {3, 6, 9, 10}, {6, 10}),
        (3, 2, {4, 5, 6}, {3, 4, 5, 6, 9, 10}, {4, 5, 6, 10}),
        (1, 1, set(), set(range(1, 11)), set(range(1, 11))),
    ],
)
def test_details_are_written_at_intervals_and_after_an_anomaly(
    tmp_path: Path, every: int, detail_every: int, alarmed: set[int], written: set[int], detailed: set[int]
) -> None:
    telemetry, _ = build(TelemetryConfig(every=every, detail_every=detail_every, writers=FILES), tmp_path)
    with closing(telemetry):
        for update in range(1, 11):
            telemetry.update(update, {ACCURACY: 1.0, DETAIL: 0.5}, Findings(detailed=update in alarmed))
    records = read_records(tmp_path / "metrics.jsonl")
    assert {record["update"] for record in records} == written
    assert {record["update"] for record in records if DETAIL in record} == detailed
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {event.step for event in events.Scalars(DETAIL)} == detailed


def test_an_anomaly_is_written_when_it_begins_and_shown_once(tmp_path: Path) -> None:
    telemetry, file = build(TelemetryConfig(), tmp_path, total=1000)
    with closing(telemetry):
        telemetry.update(1, {ACCURACY: 1.0})
        telemetry.update(2, {ACCURACY: 1.0}, Findings(present=(SPIKE,), new=(SPIKE,), first=(SPIKE,), detailed=True))
        telemetry.update(3, {ACCURACY: 1.0}, Findings(present=(SPIKE,), detailed=True))
        telemetry.update(40, {ACCURACY: 1.0}, Findings(present=(SPIKE,), new=(SPIKE,), detailed=True))
    assert file.getvalue().splitlines()[1:] == ["warning: update 2/1000: kl spike: it jumped; lower it"], (
        "after the time that is left"
    )
    events = events_of(tmp_path)
    assert [(event["update"], event["event"], event["kind"]) for event in events] == [
        (2, "anomaly", "kl_spike"),
        (40, "anomaly", "kl_spike"),
    ]
    assert float(events[0]["value"]) == math.inf
    texts = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tensors("anomaly/kl_spike_kl_of_target/text_summary")
    assert [text.step for text in texts] == [2, 40]
    assert texts[0].tensor_proto.string_val == [b"kl spike: it jumped; lower it"]


def test_events_after_the_resumed_state_are_dropped(tmp_path: Path) -> None:
    config = QuietConfig()
    telemetry, _ = build(config, tmp_path)
    with closing(telemetry):
        for update in (2, 5):
            telemetry.update(update, {ACCURACY: 1.0}, Findings(new=(SPIKE,)))
    telemetry, _ = build(config, tmp_path, resume=3)
    telemetry.close()
    assert [event["update"] for event in events_of(tmp_path)] == [2]


def test_without_anomalies_there_is_no_events_file(tmp_path: Path) -> None:
    run(QuietConfig(), tmp_path)
    assert not (tmp_path / "events.jsonl").exists()


def test_a_resumed_run_has_the_records_of_an_uninterrupted_one(tmp_path: Path) -> None:
    config = TelemetryConfig(writers=FILES)
    telemetry, _ = build(config, tmp_path)
    with closing(telemetry):
        for update in range(1, 8):
            telemetry.update(update, {ACCURACY: float(update)})
    run(config, tmp_path, resume=5)
    run(config, tmp_path / "whole")
    assert (tmp_path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    both = [EventAccumulator(str(folder / "tensorboard")).Reload() for folder in (tmp_path, tmp_path / "whole")]
    points = [[(event.step, event.value) for event in events.Scalars(ACCURACY)] for events in both]
    assert points[0] == points[1]


def test_an_unknown_tag_is_refused_without_writers(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="leaves jsonl out"):
        config = TelemetryConfig(writers=[])
    telemetry, _ = build(config, tmp_path)
    with closing(telemetry), pytest.raises(UnknownTagError):
        telemetry.update(1, {"host/acuracy": 1.0})


def test_an_error_in_the_run_closes_all_writers(tmp_path: Path) -> None:
    telemetry, _ = build(TelemetryConfig(), tmp_path)

    def fail() -> None:
        with closing(telemetry):
            telemetry.update(1, {ACCURACY: 1.0})
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert len(read_records(tmp_path / "metrics.jsonl")) == 1
    assert telemetry._writers[1]._open is False  # pyright: ignore[reportAttributeAccessIssue]


def test_open_writers_are_closed_if_the_next_fails_to_open(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "tensorboard").write_text("a file where a folder should be")
    with pytest.raises(DiskError, match="cannot write TensorBoard events"):
        build(TelemetryConfig(), tmp_path)
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


def test_unmeasured_metrics_are_missing_in_every_record(tmp_path: Path) -> None:
    """Neither None nor NaN becomes a number, a zero or the text nan, in files or on the console."""
    telemetry, file = build(TelemetryConfig(), tmp_path)
    unmeasured = {"policy/return": None, "host/parameters_grown": math.nan, "host/loss": math.nan, "host/latency_committed": None}
    with closing(telemetry):
        telemetry.start("shaped", {"seed": 0})
        telemetry.costs({"host": {"flops": 7, "latency": None}})
        telemetry.update(1, {ACCURACY: 0.0, **unmeasured})
        telemetry.finish(())
    assert [set(record) for record in read_records(tmp_path / "metrics.jsonl")] == [{"update", ACCURACY}]
    assert '"latency": null' in (tmp_path / "costs.json").read_text()
    curves = EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    assert curves.Tags()["scalars"] == [ACCURACY]
    shown = file.getvalue()
    assert "accuracy 0 %" in shown
    assert not any(word in shown for word in ("return", "parameters", "nan", "None"))


def test_non_finite_costs_are_refused(tmp_path: Path) -> None:
    telemetry, _ = build(QuietConfig(), tmp_path)
    with closing(telemetry), pytest.raises(ValueError, match="not JSON compliant"):
        telemetry.costs({"latency": math.nan})


def test_without_writers_nothing_is_written_and_a_warning_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"no metrics\.jsonl, which esper\.compare and sweep=tune need"):
        config = QuietConfig(writers=[])
    telemetry, _ = build(config, tmp_path / "none")
    with closing(telemetry):
        telemetry.costs({"latency": None})
        telemetry.update(10, {ACCURACY: 1.0}, Findings(new=(SPIKE,)))
        telemetry.finish(())
    assert not (tmp_path / "none").exists()


@dataclass(kw_only=True, slots=True)
class NotesConfig(WriterConfig):
    """A writer that records its calls."""

    kept: list[str] = field(default_factory=lambda: list[str]())
    """Names of the calls."""

    def build(self, run: RunInfo) -> Writer:
        return Notes(self.kept)


class Notes(Writer):
    def __init__(self, kept: list[str]) -> None:
        self.kept = kept

    def expect(self, tags: Sequence[str]) -> None:
        self.kept.append(f"expect {', '.join(tags)}")

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        self.kept.append(f"write {update}")

    def show(self, update: int, metrics: Mapping[str, float]) -> None:
        self.kept.append(f"show {update}")

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        self.kept.append(f"finish {metrics[ACCURACY]:g}")


def test_a_registered_writer_takes_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, "notes", NotesConfig)
    kept: list[str] = []
    run(TelemetryConfig(writers=["jsonl", {"notes": {"kept": kept}}], every=2, decisions=False), tmp_path, total=3)
    assert kept[0] == f"expect {ACCURACY}, policy/kl, host/loss", "once, with those that were not measured"
    assert kept[1:-1] == ["show 1", "write 2", "show 2", "write 3", "show 3"]
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "times.jsonl"}
    again: list[str] = []  # a run that was killed before its end has nothing left to train
    run(TelemetryConfig(writers=[{"notes": {"kept": again}}], every=2, decisions=False), tmp_path, total=3, resume=3)
    assert (kept[-1], again) == ("finish 3", ["finish 3"])


def test_the_times_of_a_resumed_run_are_those_of_all_its_updates(tmp_path: Path) -> None:
    config = TelemetryConfig(writers=["jsonl", "console"])
    phases = ["time/train_seconds", "time/update_seconds"]
    for resume, total, seconds in ((0, 2, (3.0, 1.0)), (2, 4, (1.0, 3.0))):
        telemetry, file = build(config, tmp_path, total, resume)
        with closing(telemetry):
            for update in range(resume + 1, total + 1):
                telemetry.update(update, dict(zip(phases, seconds, strict=True)))
            telemetry.finish()
    assert "training 50 %" in file.getvalue()
    assert "learning 50 %" in file.getvalue()
