"""Writer of TensorBoard events."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparam_summaries

from esper.checkpoint import disk
from esper.telemetry.anomalies import Anomaly
from esper.telemetry.base import Hparam, Rows, RunInfo, Writer, WriterConfig
from esper.telemetry.tags import STAGES


@dataclass(kw_only=True, slots=True)
class TensorBoardConfig(WriterConfig):
    """TensorBoard events in `tensorboard/` in the run's folder."""

    def build(self, run: RunInfo) -> "TensorBoardWriter":
        return TensorBoardWriter(run.folder / "tensorboard", resume_update=run.resume_update)


class TensorBoardWriter(Writer):
    """Writes scalars by tag, the hyperparameters of the run, and a chart of the stages."""

    def __init__(self, folder: Path, *, resume_update: int = 0) -> None:
        """Open an event file.

        Args:
            folder: folder of the event files, created if missing.
            resume_update: number of updates in the resumed state; TensorBoard drops later events.

        Raises:
            DiskError: writing failed.
        """
        self.folder = folder
        self._open = True
        self._hparams: dict[str, Hparam] = {}
        with disk(f"write TensorBoard events to {folder}"):
            self._writer = SummaryWriter(str(folder), purge_step=resume_update + 1)
            self._writer.add_custom_scalars({"host": {"slots by stage": ["Multiline", list(STAGES.values())]}})

    def start(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        self._hparams = dict(hparams)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        with disk(f"write TensorBoard events to {self.folder}"):
            self.folder.stat()  # an open file takes events even after its folder was removed
            for tag, value in metrics.items():
                self._writer.add_scalar(tag, value, update)
            # A resumed run cannot restore what was lost in memory; an update takes seconds, a flush far less.
            self._writer.flush()

    def anomaly(self, update: int, anomaly: Anomaly, *, first: bool) -> None:
        with disk(f"write TensorBoard events to {self.folder}"):
            self._writer.add_text(f"anomaly/{anomaly.key}", anomaly.sentence(), update)
            self._writer.flush()

    def finish(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Add the run to TensorBoard's table of hyperparameters.

        `SummaryWriter.add_hparams` would write each metric a second time, into a file of its own.
        """
        with disk(f"write TensorBoard events to {self.folder}"):
            for summary in hparam_summaries(self._hparams, dict(metrics)):
                cast(Any, self._writer)._get_file_writer().add_summary(summary)
            self._writer.flush()

    def close(self) -> None:
        if self._open:
            self._open = False
            with disk(f"write TensorBoard events to {self.folder}"):
                self._writer.close()
