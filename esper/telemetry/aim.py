"""Writer to Aim."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from esper.telemetry.base import Hparam, Rows, RunInfo
from esper.telemetry.tracker import Tracker, TrackerConfig, markdown

REMOTE = "aim://"


@dataclass(kw_only=True, slots=True)
class AimConfig(TrackerConfig):
    """A run of Aim: parameters, metrics by update, and as artifacts the config, `run.html` and exported networks."""

    library: ClassVar[str] = "aim"

    repo: str = ""
    """Folder that holds `.aim`, created if missing, or a server as in aim://host:53800. If empty, the current folder."""
    experiment: str = ""
    """Experiment of the run. If empty, the name of its sweep, or `esper`."""
    tags: list[str] = field(default_factory=lambda: list[str]())
    """Tags of the run."""
    artifacts_uri: str = ""
    """Where files are stored, as in file:///data/files or s3://bucket. If empty, `.aim_artifacts` in the folder of the
    repository; a server then takes no files."""

    def connect(self, run: RunInfo) -> "AimTracker":
        repo = self.repo if not self.repo or self.repo.startswith(REMOTE) else str(Path(self.repo).absolute())
        place = {"repo": repo, "artifacts_uri": self.artifacts_uri}
        return AimTracker(run, place, self.name, experiment=self.experiment or run.sweep or "esper", tags=self.tags)


def _alone(repo: str) -> AbstractContextManager[object]:
    """Return a lock on a repository on disk: opening a run fails while another run is being closed."""
    return nullcontext() if repo.startswith(REMOTE) else FileLock(Path(repo) / ".aim.lock")


class AimTracker(Tracker):
    """Writes through a run that records neither the console nor the machine."""

    library = "aim"

    def __init__(self, run: RunInfo, place: dict[str, str], name: str, *, experiment: str, tags: list[str]) -> None:
        super().__init__(run, place, name)
        self._experiment, self._tags = experiment, tags
        self._run: Any = None

    def resume(self, id: str | None) -> str:
        import aim

        logging.getLogger("aim").setLevel(logging.ERROR)  # it reports every lock and thread
        repo = self.place["repo"] = self.place["repo"] or str(Path.cwd())
        with _alone(repo):
            self._run = aim.Run(
                id,
                repo=repo if repo.startswith(REMOTE) else aim.Repo.from_path(repo, init=True),
                system_tracking_interval=None,
                capture_terminal_logs=False,
                log_system_params=False,
                force_resume=id is not None,  # a killed run leaves its lock; ours already says that nobody else writes
            )
        uri = self.place["artifacts_uri"]
        if not uri and not repo.startswith(REMOTE):
            uri = self.place["artifacts_uri"] = (Path(repo) / ".aim_artifacts").as_uri()
        if uri:
            self._run.set_artifacts_uri(uri)
        return str(self._run.hash)

    def describe(self, title: str, hparams: Mapping[str, Hparam]) -> None:
        self._run.description = title
        self._run.name, self._run.experiment = self.name, self._experiment
        for tag in set(self._tags) - set(self._run.tags):
            self._run.add_tag(tag)
        self._run["hparams"] = dict(hparams)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self._run.track(value, name=tag, step=update)  # a second value of a step replaces the first

    def summarise(self, rows: Rows, metrics: Mapping[str, float]) -> None:
        self._run["summary"] = {name: str(text) for name, text in rows}
        self._run.description = markdown(self.title, rows)

    def keep(self, path: Path, name: str) -> None:
        if self.place["artifacts_uri"]:
            self._run.log_artifact(str(path), name, block=True)

    def end(self, *, finished: bool) -> None:
        with _alone(self.place["repo"]):
            self._run.close()
