"""Writer to MLflow."""

import logging
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from esper.telemetry.base import Hparam, Rows, RunInfo
from esper.telemetry.tracker import Tracker, TrackerConfig, markdown

EVERY_UPDATE = "time/save_seconds"
"""A metric that every update has."""
BATCH = 1000
"""Most metrics that MLflow takes at once."""


@dataclass(kw_only=True, slots=True)
class MlflowConfig(TrackerConfig):
    """A run of MLflow: parameters, metrics by update, and as artifacts the config, `run.html` and exported networks."""

    library: ClassVar[str] = "mlflow"

    tracking_uri: str = ""
    """Where MLflow keeps runs, such as http://localhost:5000 or sqlite:////data/mlflow.db. If empty, the environment variable
    MLFLOW_TRACKING_URI, or else `mlflow.db` in the current folder."""
    experiment: str = "esper"
    """Experiment that holds the run, created if missing."""
    tags: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    """Tags of the run, as in {team:vision}. The runs of a sweep also have its name, as the tag `sweep`."""

    def connect(self, run: RunInfo) -> "MlflowTracker":
        place = {"tracking_uri": _absolute(self.tracking_uri), "experiment": self.experiment}
        return MlflowTracker(run, place, self.name, self.tags)


def _absolute(uri: str) -> str:
    """Return a URI whose path does not depend on the current folder."""
    kind, slashes, path = uri.partition(":///")
    if kind == "sqlite" and slashes and not path.startswith("/"):
        return f"sqlite:///{Path(path).absolute()}"
    return uri if not uri or "://" in uri or uri in ("databricks", "uc") else str(Path(uri).absolute())


def _alone(uri: str) -> AbstractContextManager[object]:
    """Return a lock on a database in a file: MLflow lets two runs that start at once both create its tables, and one fails."""
    path = uri.removeprefix("sqlite:///")
    return nullcontext() if path == uri else FileLock(f"{path}.lock")


class MlflowTracker(Tracker):
    """Writes through a client of its own, so that MLflow's global state stays as it is."""

    library = "mlflow"

    def __init__(self, run: RunInfo, place: dict[str, str], name: str, tags: Mapping[str, str]) -> None:
        super().__init__(run, place, name)
        self._tags = {key: str(value) for key, value in tags.items()} | ({"sweep": run.sweep} if run.sweep else {})
        self._client: Any = None
        self._id = ""

    def resume(self, id: str | None) -> str:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would report the use of MLflow to its makers
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # a machine without git needs no page about it
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # MLflow's 7 take minutes; a failure is retried later
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        import mlflow
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it reports every table of a new database
        uri = self.place["tracking_uri"] or _absolute(mlflow.get_tracking_uri())
        self.place["tracking_uri"] = uri
        with _alone(uri):
            self._client = MlflowClient(tracking_uri=uri)
            experiment = self._experiment()
        if id is None:
            id = str(self._client.create_run(experiment, run_name=self.name, tags=self._tags).info.run_id)
        else:
            self._client.update_run(id, status="RUNNING", name=self.name)
        self._id = id
        return id

    def _experiment(self) -> str:
        """Return the identity of the experiment, created if missing."""
        name = self.place["experiment"]
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except Exception:  # another run of the sweep may have created it in between
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def last_update(self) -> int:
        return max((point.step for point in self._client.get_metric_history(self._id, EVERY_UPDATE)), default=0)

    def describe(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        from mlflow.entities import Param, RunTag

        known = self._client.get_run(self._id).data.params  # MLflow refuses to change those, such as updates after a resume
        params = [Param(key, str(value)) for key, value in hparams.items() if key not in known]
        tags = self._tags | {"mlflow.note.content": title}
        self._client.log_batch(self._id, params=params, tags=[RunTag(*tag) for tag in tags.items()])

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        points = [Metric(tag, value, now, update) for tag, value in metrics.items()]
        for first in range(0, len(points), BATCH):
            self._client.log_batch(self._id, metrics=points[first : first + BATCH])

    def summarise(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        """Set the text that MLflow shows as the description of the run; it shows the last values of metrics by itself."""
        self._client.set_tag(self._id, "mlflow.note.content", markdown(self.title, rows))

    def keep(self, path: Path, name: str) -> None:
        folder = str(Path(name).parent)
        self._client.log_artifact(self._id, str(path), "" if folder == "." else folder)

    def end(self, *, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")
