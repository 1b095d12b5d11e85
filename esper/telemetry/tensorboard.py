"""Writer of TensorBoard events."""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from esper.files import disk
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer, WriterConfig
from esper.telemetry.healthy import HEALTHY
from esper.telemetry.pictures import timeline, topology, values_of
from esper.telemetry.tags import PHASES, STAGES, in_terms_of, metric
from esper.telemetry.traces import Table, slots_of

HPARAM_METRICS = {
    "hparams/return": "policy/return",
    "hparams/committed_accuracy": "host/committed_accuracy",
    "hparams/parameters_grown": "host/parameters_grown",
    "hparams/host_epochs_per_second": "time/host_epochs_per_second",
}
"""Name of a result in the table of hyperparameters -> the metric whose last value it is."""


def _chart(*tags: str) -> list[Any]:
    return ["Multiline", [f"^{tag}$" for tag in tags]]


DASHBOARDS = {
    "Result": {
        "return": _chart("policy/return"),
        "accuracy with all seeds, and of what was kept": _chart("host/accuracy", "host/committed_accuracy"),
        "parameters in seeds": _chart("host/parameters_grown"),
    },
    "Growth": {
        "seeds per host": _chart("host/seeds_germinated", "host/seeds_fossilized", "host/seeds_pruned"),
        "slots by stage": _chart(*STAGES.values()),
        "operations": _chart("action/.*"),
        "Shapley values by blueprint": _chart("shapley/.*"),
    },
    "Learning health": {
        "explained variance": _chart("policy/explained_variance"),
        "entropy": _chart("policy/entropy"),
        "step of the update": _chart("policy/kl", "policy/clip_fraction"),
        "gradient norm": _chart("policy/grad_norm"),
        "reward hacking": _chart("audit/goodhart", "audit/ransomware", "audit/attribution_ratio"),
        "rollbacks": _chart("governor/rollbacks_.*"),
    },
    "Reward terms": {"all terms": _chart("reward/.*")},
    "Speed": {
        "host epochs per second": _chart("time/host_epochs_per_second"),
        "seconds of an update by phase": _chart(*PHASES),
    },
}
"""Charts of each dashboard on the page "Custom scalars", by regular expressions of tags."""


def dashboards(tags: Iterable[str], score: str = "accuracy") -> dict[str, dict[str, list[Any]]]:
    """Return the charts of each dashboard that show at least one of these tags, named in terms of the hosts' score."""
    there = list(tags)

    def shown(chart: list[Any]) -> bool:
        return any(re.match(pattern, tag) for pattern in chart[1] for tag in there)

    kept = {
        title: {in_terms_of(score, name): chart for name, chart in charts.items() if shown(chart)}
        for title, charts in DASHBOARDS.items()
    }
    return {title: charts for title, charts in kept.items() if charts}


def _described(tag: str, value: float, score: str) -> Any:
    """Return a scalar with its meaning and its values in a healthy run, which TensorBoard shows beside its chart."""
    from tensorboard.compat.proto import summary_pb2

    protocol = cast(Any, summary_pb2)
    row = metric(tag)
    unit = "unit of the loss" if tag == "host/loss" and score != "accuracy" else row.unit
    text = f"{row.meaning}{f' [{unit}]' if unit not in ('1', 'count') else ''}"
    text = in_terms_of(score, f"{text}\n\nHealthy: {HEALTHY[row.tag]}")
    plugin = protocol.SummaryMetadata.PluginData(plugin_name="scalars")
    about = protocol.SummaryMetadata(summary_description=text, plugin_data=plugin, data_class="DATA_CLASS_SCALAR")
    return protocol.Summary(value=[protocol.Summary.Value(tag=tag, simple_value=value, metadata=about)])


class _ExceptHook:
    """A `threading.excepthook` that prints no traceback for TensorBoard's thread if the disk is full: the next flush raises that
    error again."""

    def __init__(self) -> None:
        self.before = threading.excepthook

    def __call__(self, given: threading.ExceptHookArgs) -> None:
        if not (isinstance(given.exc_value, OSError) and type(given.thread).__module__.startswith("tensorboard.")):
            self.before(given)


_excepthook = _ExceptHook()


@dataclass(kw_only=True, slots=True)
class TensorBoardConfig(WriterConfig):
    """TensorBoard events in `tensorboard/` in the run's folder."""

    def build(self, run: RunInfo) -> "TensorBoardWriter":
        return TensorBoardWriter(run.folder / "tensorboard", resume_update=run.resume_update, score=run.score)


class TensorBoardWriter(Writer):
    """Writes scalars by tag, five dashboards of them, the hyperparameters of the run with its results, a card that describes the
    run, and of each trace pictures and histograms."""

    def __init__(self, folder: Path, *, resume_update: int = 0, score: str = "accuracy") -> None:
        """Open an event file.

        Args:
            folder: folder of the event files, created if missing.
            resume_update: number of updates in the resumed state; TensorBoard drops later events.
            score: name of the hosts' score.

        Raises:
            DiskError: writing failed.
        """
        from torch.utils.tensorboard import SummaryWriter  # late: runs without this writer do not need it

        self.folder, self._score = folder, score
        self._open = True
        self._hparams: dict[str, Hparam] = {}
        self._described = set[str]()
        """Metrics whose description was written, with their first value."""
        with disk(f"write TensorBoard events to {folder}"):
            self._writer = SummaryWriter(str(folder), purge_step=resume_update + 1)
        if threading.excepthook is not _excepthook:
            _excepthook.before = threading.excepthook
            threading.excepthook = _excepthook

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        self._hparams = dict(hparams)
        rows = "\n".join(f"| {key} | {str(value).replace('|', chr(92) + '|')} |" for key, value in hparams.items())
        with disk(f"write TensorBoard events to {self.folder}"):
            self._writer.add_text("run", f"**{title}**\n\n| key | value |\n|---|---|\n{rows}")

    def expect(self, tags: Sequence[str]) -> None:
        with disk(f"write TensorBoard events to {self.folder}"):
            self._writer.add_custom_scalars(dashboards(tags, self._score))  # TensorBoard takes the first layout alone

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        with disk(f"write TensorBoard events to {self.folder}"):
            self.folder.stat()  # an open file takes events even after its folder was removed
            for tag, value in metrics.items():
                if tag in self._described:
                    self._writer.add_scalar(tag, value, update)
                else:
                    self._described.add(tag)
                    cast(Any, self._writer)._get_file_writer().add_summary(_described(tag, value, self._score), update)
            # A resumed run cannot restore what was lost in memory; an update takes seconds, a flush far less.
            self._writer.flush()

    def trace(self, update: int, table: Table) -> None:
        if not slots_of(table):
            return
        with disk(f"write TensorBoard events to {self.folder}"):
            for name, picture in (("timeline", timeline(table)), ("topology", topology(table))):
                self._writer.add_image(f"growth/{name}", picture, update, dataformats="HWC")
            for tag, values in values_of(table).items():
                self._writer.add_histogram(tag, values, update)
            self._writer.flush()

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        with disk(f"write TensorBoard events to {self.folder}"):
            self._writer.add_text(f"anomaly/{anomaly.key}", anomaly.sentence(), update)
            self._writer.flush()

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Add the run to TensorBoard's table of hyperparameters, with the results in `HPARAM_METRICS` as its metrics.

        `SummaryWriter.add_hparams` would write each metric a second time, into a file of its own.
        """
        from torch.utils.tensorboard.summary import hparams as hparam_summaries

        with disk(f"write TensorBoard events to {self.folder}"):
            results = {name: metrics[tag] for name, tag in HPARAM_METRICS.items() if tag in metrics}
            for summary in hparam_summaries(self._hparams, results):
                cast(Any, self._writer)._get_file_writer().add_summary(summary)
            for name, value in results.items():
                self._writer.add_scalar(name, value)
            self._writer.flush()

    def close(self) -> None:
        if self._open:
            self._open = False
            with disk(f"write TensorBoard events to {self.folder}"):
                self._writer.close()
