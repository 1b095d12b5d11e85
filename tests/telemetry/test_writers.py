"""Writers: records are read back by our reader and by TensorBoard's, also after a kill, a resume and a full disk."""

import errno
import io
import json
import math
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from esper.files import DiskError, FileError
from esper.notices import UserNotice
from esper.telemetry.base import Writer
from esper.telemetry.healthy import HEALTHY
from esper.telemetry.jsonl import JsonlWriter, changed_update, read_records
from esper.telemetry.pictures import COLOURS, timeline, values_of
from esper.telemetry.tags import METRICS, tags_of
from esper.telemetry.tensorboard import DASHBOARDS, TensorBoardWriter, _described, dashboards

ACCURACY, LOSS, KL = "host/accuracy", "host/loss", "policy/kl"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def write(writer: Writer, *records: tuple[int, dict[str, float]]) -> None:
    for update, metrics in records:
        writer.write(update, metrics)
    writer.close()


# ---- JSON lines


def test_a_text_in_place_of_a_number_and_half_written_costs_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "host/loss": "abc"}\n')
    with pytest.raises(FileError, match="holds a value that is not a number: fix it, or move the file away"):
        read_records(path)
    path.unlink()
    writer = JsonlWriter(tmp_path)
    writer.costs({"host": {"flops": 1}})
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DiskError, match="free some space"):
        writer.costs({"host": {"flops": 2}})
    assert json.loads((tmp_path / "costs.json").read_text()) == {"host": {"flops": 1}}


def test_jsonl_round_trip(path: Path) -> None:
    write(JsonlWriter(path.parent), (1, {ACCURACY: 0.1 + 0.2, LOSS: 0}), (2, {"reward/rent": -1e-300}))
    assert read_records(path) == [{"update": 1, ACCURACY: 0.1 + 0.2, LOSS: 0.0}, {"update": 2, "reward/rent": -1e-300}]


def test_jsonl_is_strict_json_even_with_an_infinite_loss(path: Path) -> None:
    write(JsonlWriter(path.parent), (1, {LOSS: math.inf, "policy/return": -math.inf}))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    assert read_records(path) == [{"update": 1, LOSS: math.inf, "policy/return": -math.inf}]


def test_jsonl_is_on_disk_after_each_record(path: Path) -> None:
    writer = JsonlWriter(path.parent)
    writer.write(1, {ACCURACY: 1.0})
    assert len(read_records(path)) == 1
    writer.close()
    writer.close()


@pytest.mark.parametrize("resume_update", [0, 2, 4, 9])
def test_jsonl_resume_drops_later_updates(path: Path, resume_update: int) -> None:
    write(JsonlWriter(path.parent), *((update, {ACCURACY: 1.0}) for update in range(1, 5)))
    write(JsonlWriter(path.parent, resume_update=resume_update), (resume_update + 1, {ACCURACY: 2.0}))
    kept = list(range(1, min(4, resume_update) + 1))
    assert [record["update"] for record in read_records(path)] == [*kept, resume_update + 1]
    assert read_records(path)[-1][ACCURACY] == 2.0


@pytest.mark.parametrize(("old", "new"), [("3.5", "4.5"), ('{"update": 3, "host/accuracy": 3.5}\n', "")])
def test_a_changed_line_is_found_up_to_the_newest_checkpoint(path: Path, old: str, new: str) -> None:
    write(JsonlWriter(path.parent), *((update, {ACCURACY: update + 0.5, "time/update_seconds": 1.0}) for update in range(1, 5)))
    times = read_records(path.with_name("times.jsonl"))
    assert changed_update(path, times, 4) is None
    path.write_text(path.read_text().replace(old, new))
    assert [changed_update(path, times, updates) for updates in (2, 3, 4)] == [None, 3, 3]
    earlier = [{"update": record["update"]} for record in times]
    assert changed_update(path, earlier, 4) is None, "an earlier version wrote no checksums"


def test_jsonl_drops_an_incomplete_last_line(path: Path) -> None:
    write(JsonlWriter(path.parent), (1, {ACCURACY: 1.0}), (2, {ACCURACY: 2.0}))
    path.write_bytes(path.read_bytes()[:-5])
    assert [record["update"] for record in read_records(path)] == [1]
    write(JsonlWriter(path.parent, resume_update=2), (3, {ACCURACY: 3.0}))
    assert [record["update"] for record in read_records(path)] == [1, 3]


@pytest.mark.parametrize("line", ["no json", "[1]", "{}", '{"update": null}'])
def test_jsonl_refuses_a_line_that_is_no_record(path: Path, line: str) -> None:
    path.parent.mkdir()
    text = line + '\n{"update": 2}\n'
    path.write_text(text)
    with pytest.raises(ValueError, match=r"line 1 of .*metrics\.jsonl is not a record"):
        JsonlWriter(path.parent, resume_update=5)
    assert path.read_text() == text


# ---- TensorBoard


def test_tensorboard_round_trip(tmp_path: Path) -> None:
    write(TensorBoardWriter(tmp_path), (1, {ACCURACY: 0.5, LOSS: 2.0}), (3, {ACCURACY: 0.25, "shapley/conv": 1.0}))
    assert scalars(tmp_path, ACCURACY) == [(1, 0.5), (3, 0.25)]
    assert scalars(tmp_path, LOSS) == [(1, 2.0)]
    about = events(tmp_path).SummaryMetadata("shapley/conv").summary_description
    assert about.endswith(f"Healthy: {HEALTHY['shapley/*']}")


def test_tensorboard_is_on_disk_after_each_record(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.write(1, {ACCURACY: 1.0})
    assert scalars(tmp_path, ACCURACY) == [(1, 1.0)]
    writer.close()
    writer.close()


@pytest.mark.parametrize("resume_update", [0, 2])
def test_tensorboard_resume_shows_no_update_twice(tmp_path: Path, resume_update: int) -> None:
    write(TensorBoardWriter(tmp_path), *((update, {ACCURACY: 1.0}) for update in range(1, 5)))
    (first,) = tmp_path.rglob("*tfevents*")  # event files are read in the order of their names, which hold a second
    first.rename(first.with_name(first.name.replace("tfevents.", "tfevents.0")))
    write(TensorBoardWriter(tmp_path, resume_update=resume_update), (resume_update + 1, {ACCURACY: 2.0}))
    kept = [(update, 1.0) for update in range(1, resume_update + 1)]
    assert scalars(tmp_path, ACCURACY) == [*kept, (resume_update + 1, 2.0)]


def test_tensorboard_hparams_come_once_and_metrics_are_not_doubled(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.start("shaped", {"reward": "shaped", "seed": 3, "lr": 0.1})
    writer.write(1, {ACCURACY: 0.5})
    writer.finish((), {ACCURACY: 0.5})
    writer.close()
    assert len(list(tmp_path.rglob("*tfevents*"))) == 1
    assert scalars(tmp_path, ACCURACY) == [(1, 0.5)]
    metadata = events(tmp_path).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(metadata).session_start_info
    assert start.hparams["reward"].string_value == "shaped"
    assert start.hparams["seed"].number_value == 3


def test_results_of_a_run_are_metrics_of_its_hyperparameters(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.start("shaped", {"agent.lr": 0.1})
    writer.finish((), {"policy/return": 61.5, "host/loss": 1.0})
    writer.close()
    assert scalars(tmp_path, "hparams/return") == [(0, 61.5)]
    assert "hparams/loss" not in events(tmp_path).Tags()["scalars"]
    assert "agent.lr" in events(tmp_path).Tensors("run/text_summary")[0].tensor_proto.string_val[0].decode()


def test_every_chart_of_the_dashboards_finds_a_metric(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.expect([ACCURACY, "policy/kl"])
    write(writer, (1, {ACCURACY: 1.0}), (2, {"host/parameters_grown": 3.0}))
    layout = events(tmp_path).Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"parameters in seeds" not in layout, "a chart without metrics would stay empty"
    assert b"accuracy with all seeds" in layout
    assert b"step of the update" in layout, "it was not measured in the first update"
    tags = [tag for row in METRICS for tag in tags_of(row)]
    patterns = [pattern for charts in DASHBOARDS.values() for _, chart in charts.values() for pattern in chart]
    assert len(DASHBOARDS) == 5
    assert [pattern for pattern in patterns if not any(re.match(pattern, tag) for tag in tags)] == []


def test_scores_that_are_no_accuracy_are_named() -> None:
    named = [name for charts in dashboards([ACCURACY], "R2").values() for name in charts]
    assert named == ["R2 with all seeds, and of what was kept"]
    texts = [_described(tag, 1.0, "R2").value[0].metadata.summary_description for tag in (ACCURACY, LOSS)]
    assert texts[0].startswith("Validation R2 at the end of the episode")
    assert "[unit of the loss]" in texts[1]


def test_a_trace_becomes_pictures_and_histograms(tmp_path: Path) -> None:
    table = {"epoch": [1.0, 2.0], "op": ["germinate", "wait"], "s0.stage": ["blending", "fossilized"], "s0.alpha": [0.5, 1.0]}
    table |= {"s0.blueprint": ["conv", "conv"], "s0.contribution": [None, 4.0]}
    writer = TensorBoardWriter(tmp_path)
    writer.trace(7, table)
    writer.trace(8, {"epoch": [1.0], "op": ["wait"]})  # a table without hosts has no pictures
    writer.close()
    tags = events(tmp_path).Tags()
    assert sorted(tags["images"]) == ["growth/timeline", "growth/topology"]
    assert sorted(tags["histograms"]) == ["growth/alpha", "growth/contribution", "growth/epoch_of_planting"]
    assert [one.step for one in events(tmp_path).Images("growth/timeline")] == [7]
    picture = timeline(table)
    colours = {tuple(int(COLOURS[stage][i : i + 2], 16) for i in (1, 3, 5)) for stage in ("blending", "fossilized")}
    assert picture.shape[1] >= 300, "the legend is as wide"
    refused = {"epoch": [1.0, 2.0], "op": ["germinate", "germinate"], "refused": [1.0, 0.0]}
    assert values_of(refused)["growth/epoch_of_planting"].tolist() == [2.0]
    assert colours <= {tuple(colour) for colour in picture[34:, 74:].reshape(-1, 3).tolist()}


# ---- both


@pytest.mark.parametrize("kind", [JsonlWriter, TensorBoardWriter])
def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError) as error:
        kind(tmp_path / "file" / "out")
    assert str(tmp_path / "file" / "out") in str(error.value)
    assert "choose a folder whose path has no file in it" in str(error.value)


def test_a_record_that_does_not_fit_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JsonlWriter(path.parent)
    writer.write(1, {ACCURACY: 1.0})

    class Full(io.FileIO):
        """A file that takes ten bytes, then no more."""

        room = 10

        def write(self, data: Any) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= (taken := super().write(data[: self.room]))
            return taken

    monkeypatch.setattr(Path, "open", lambda path, *_, **__: Full(path, "a"))
    with pytest.raises(DiskError, match=r"cannot write metrics to .*: no space left on device; free some space"):
        writer.write(2, {ACCURACY: 2.0})
    monkeypatch.undo()
    assert path.read_text() == '{"update": 1, "host/accuracy": 1.0}\n'
    writer.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs Linux and root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system may not be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("kind", [JsonlWriter, TensorBoardWriter])
def test_a_full_disk(small_disk: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)  # TensorBoard writes in a thread of its own
    writer = kind(small_disk / "out")

    def fill() -> None:
        for update in range(1, 5000):
            writer.write(update, {ACCURACY: 1.0, LOSS: 2.0})

    with pytest.raises(DiskError) as error:
        fill()
    assert str(small_disk / "out") in str(error.value)
    assert "no space left on device; free some space" in str(error.value)
    assert not printed
    other = threading.Thread(target=lambda: 1 / 0)
    other.start()
    other.join()
    assert len(printed) == 1, "errors of other threads are printed"
    if kind is JsonlWriter:
        writer.close()
        assert (small_disk / "out" / "metrics.jsonl").read_bytes().endswith(b"}\n")
    else:
        with pytest.raises(DiskError):  # nor can the rest in memory
            writer.close()


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", '{"update": "1"}', '{"a": 1}', "\x00\x00", "[" * 100_000, "null", '{"update": 0}'],
    ids=lambda line: line[:12],
)
@pytest.mark.parametrize("name", ["metrics", "decisions", "events"])
def test_a_damaged_line_is_one_sentence(name: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_text(f'{{"update": 1}}\n{line}\n')
    with pytest.raises(FileError, match=rf"line 2 of {path} is not a record: fix the line, or move the file away"):
        JsonlWriter(tmp_path, resume_update=1)
    assert path.read_text().count("\n") == 2, "nothing was removed"


def test_metrics_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "a": {}}\n')
    with pytest.raises(FileError, match="holds a value that is not a number"):
        read_records(tmp_path / "metrics.jsonl")


def test_lost_records_are_warned_of(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path)
    for update in (1, 2):
        writer.write(update, {ACCURACY: 1.0, "time/rollout_seconds": 1.0})
    metrics = tmp_path / "metrics.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JsonlWriter(tmp_path, resume_update=2)
    metrics.write_bytes(metrics.read_bytes()[:-5])
    with pytest.warns(UserNotice, match=r"metrics.jsonl ends with update 1, but times.jsonl with update 2: records were lost"):
        JsonlWriter(tmp_path, resume_update=2)
