"""Scores of finished runs: outcomes of their policies, and of baselines, on held-out hosts.

The hosts of a run are grown once; the outcomes are stored in its folder, in `scored_*.json`, with the digest of the checkpoint,
the code version and a digest of the file itself.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from joblib import Parallel, delayed

from esper.cli.search_path import options_in, own_options
from esper.cli.transfer import fitted, moved, slug
from esper.config import Config, ConfigError
from esper.evaluation.held_out import POLICIES, REPLAY, Evaluation
from esper.evaluation.outcomes import HELD_OUT, ONLINE
from esper.evaluation.per_host import PREFIX, HostSearch
from esper.files import fingerprint, write_whole
from esper.growth.objective import Objective
from esper.lab.launch import end_with_parent
from esper.lab.outcomes import BASELINES, GREEDY, SEARCHED, STATIC_NET, TRAINING, is_chosen
from esper.lab.runs import Run, records_of, regular
from esper.plugins import load_plugins, named_plugins
from esper.pool.devices import take_turn
from esper.pool.local import available_cores, limit_cores
from esper.task.kinds import condensed
from esper.text import counted, duration
from esper.training.config_io import flat, from_plain, to_plain
from esper.training.provenance import versions
from esper.training.run_folder import writing_reports

HostRows = dict[str, dict[str, list[Any]]]
"""Controller -> `instance`, the kind of each host, `seeds` of each host, and each outcome in `HELD_OUT` -> value of each host."""
RESCORE = "remove it, and the run is scored again"
"""What to do with a file of scores that cannot be used."""
Scores = dict[str, dict[str, float]]
"""Arm or baseline -> outcome -> mean over held-out hosts; outcomes that do not apply are left out."""
Told = tuple[str, type[Warning], str, int]
"""Warning of another process: message, category, file and line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """Settings for scoring the runs of an experiment."""

    hosts: int
    """Number of held-out hosts per run."""
    baselines: Sequence[str]
    """Other controllers that grow the hosts: members of `BASELINES`, agents that need no training, or searches per host."""
    arm: str
    """Arm whose hosts the baselines grow."""
    online: bool = False
    """If true, measure `ONLINE` as well."""
    overrides: Sequence[str] = ()
    """Evaluation overrides for all policies, such as task=mnist5k."""
    by: str = "return"
    """Criterion by which schedules, networks and searches are chosen: one of `esper.evaluation.per_host.OBJECTIVES`."""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Outcomes of every held-out host."""
        return (*HELD_OUT, ONLINE) if self.online else HELD_OUT

    def file(self, run: Run) -> Path:
        """Return the path of the outcomes of a run."""
        return scored_file(run, self.hosts, self.overrides)

    def overrides_of(self, run: Run) -> list[str]:
        """Return the overrides with which a run is evaluated, with the path of moved data unless the task is another one."""
        paths = () if any(one.startswith("task=") for one in self.overrides) else run.paths
        return [*paths, *self.overrides]

    def key(self, name: str) -> str:
        """Return the name of a controller in a file of scores. It tells the criterion of a choice, so that no other is reused; by
        return, it is the name alone, as in files of earlier versions, which had no other criterion."""
        return f"{name} by {self.by}" if is_chosen(name) and self.by != "return" else name

    def read(self, run: Run) -> dict[str, Any]:
        """Return what the file of a scored run holds, see `read_scores`, of baselines only those of this criterion."""
        found = read_scores(run, self.file(run))
        names = {self.key(name): name for name in self.baselines}
        rows = {names.get(key, key): row for key, row in found["rows"].items() if key in names or key not in self.baselines}
        choice = found["choice"] if self.by == "return" else (found["choice"] or {}).get(self.by)
        return found | {"rows": rows, "choice": choice}

    def scores(self, run: Run) -> Scores:
        """Return the scores of a finished run, and of the baselines if they grow its hosts."""
        scores = {run.arm: score(run, self.hosts, self.overrides, online=self.online)}
        if self.baselines and run.arm == self.arm:
            scores |= score_baselines(run, self)
        return scores


def score_all(
    runs: Sequence[Run], scoring: Scoring, *, workers: int = 1, log: Callable[[str], None] = lambda _: None
) -> Iterator[Scores]:
    """Yield the scores of finished runs, in their order.

    Args:
        runs: finished runs.
        scoring: settings.
        workers: number of processes, at least 1.
        log: receives a line per run.
    """
    workers = min(workers, len(runs))
    cores = max(1, available_cores() // workers) if workers > 1 else None
    new = [run for run in runs if not scoring.file(run).exists()]
    if new:
        log(
            f"scoring {counted(len(new), 'run')}: each policy grows {scoring.hosts} held-out hosts; scores are kept for next time"
        )
    grown, begun = 0, time.monotonic()
    parts = _Parts(plugins=named_plugins(), config_dir=own_options())
    asked = (delayed(_score)(scoring, run, cores, parts, index) for index, run in enumerate(runs))
    found: Any = Parallel(n_jobs=workers, return_as="generator")(asked)
    try:
        for index, (run, (scores, told)) in enumerate(zip(runs, found, strict=True)):
            for warning in told:
                warnings.warn_explicit(*warning)
            grown += run in new
            left = (time.monotonic() - begun) / grown * (len(new) - grown) if grown else 0.0
            text = f", about {duration(left)} left" if left else ""
            log(f"scored {index + 1} of {len(runs)}: {run.folder}{text}")
            yield scores
    except BrokenProcessPool as error:
        raise ConfigError(
            f"a scoring process was killed, most likely out of memory: set workers below {workers}; runs scored so far are kept"
        ) from error


class _Parts(NamedTuple):
    """What a process needs beside Esper itself, as the command has it."""

    plugins: list[str]
    config_dir: str | None


def _score(scoring: Scoring, run: Run, cores: int | None, parts: _Parts, number: int) -> tuple[Scores, list[Told]]:
    """Score a run. If `cores` is given, this is a new process: it first takes over the parts of the command, takes the GPU of the
    run's number, and limits itself to these cores; and it leaves its warnings to the command, which shows each once."""
    if cores is None:
        return scoring.scores(run), []
    with warnings.catch_warnings(record=True) as caught, options_in(parts.config_dir):
        load_plugins(parts.plugins)
        take_turn(number)
        limit_cores(cores)
        end_with_parent()
        scores = scoring.scores(run)
    return scores, [(str(one.message), one.category, one.filename, one.lineno) for one in caught]


def scored_file(run: Run, hosts: int, overrides: Sequence[str] = ()) -> Path:
    """Return the path of the outcomes of a run on this many held-out hosts."""
    parts = ["scored", f"{run.updates:06d}", str(hosts), "hosts", *filter(None, [slug(overrides)])]
    if parts[-1] != "_".join(overrides) and overrides:  # other overrides may look alike in a file name
        parts.append(fingerprint([*overrides])[:7])
    return run.folder / f"{'_'.join(parts)}.json"


def score(run: Run, hosts: int, overrides: Sequence[str] = (), *, online: bool = False) -> dict[str, float]:
    """Return the outcomes of a finished run by name; outcomes of training are left out with evaluation overrides."""
    scoring = Scoring(hosts=hosts, baselines=(), arm=run.arm, online=online, overrides=overrides)
    greedy = from_plain(run.saved).agent.greedy
    rows = _grown(run, scoring, POLICIES if greedy else POLICIES[:1])
    scores = {name: float(np.mean(rows["policy"][name])) for name in scoring.outcomes}
    own = rows["policy_greedy" if greedy else "policy"]
    scores |= {name: float(np.mean(own[outcome])) for name, outcome in GREEDY.items()}
    return scores if overrides else scores | training_scores(run)


def objective_of(run: Run, overrides: Sequence[str] = ()) -> Objective:
    """Return what the held-out hosts of a run learn, with these evaluation overrides.

    Raises:
        ConfigError: an override does not fit.
    """
    return _config(run, overrides).task.build_objective()


def scored_config(run: Run, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of the config with which the held-out hosts of a run are grown, by dotted key.

    Raises:
        ConfigError: an override does not fit.
    """
    return flat(to_plain(_config(run, overrides)))


def _config(run: Run, overrides: Sequence[str]) -> Config:
    config = from_plain(run.saved)
    return fitted(config, list(overrides)) if overrides else config


def score_baselines(run: Run, scoring: Scoring) -> Scores:
    """Return the outcomes of the baselines on the held-out hosts of a run."""
    rows = _grown(run, scoring, scoring.baselines)
    found = {name: rows[scoring.key(name)] for name in scoring.baselines}
    measured = dict(zip(scoring.outcomes, scoring.outcomes, strict=True)) | GREEDY
    return {name: {key: float(np.mean(row[outcome])) for key, outcome in measured.items()} for name, row in found.items()}


def _grown(run: Run, scoring: Scoring, names: Sequence[str]) -> HostRows:
    """Return outcomes of controllers on the held-out hosts of a run, host by host; grow only those not in the file.

    Raises:
        ConfigError: the file is damaged or holds scores on other data, or a policy does not fit the hosts.
    """
    path = scoring.file(run)
    stored = _stored(run, path)
    rows: HostRows = stored["rows"]
    missing = [name for name in names if any(outcome not in rows.get(scoring.key(name), {}) for outcome in scoring.outcomes)]
    if not missing:
        return rows
    controllers = ["policy", REPLAY] if "static" in missing else []  # a replay needs the topologies of the policy
    searches = [name for name in missing if name.startswith(PREFIX)]
    controllers += [name for name in missing if name not in (*BASELINES, *searches)]
    if run.paths:
        moved(from_plain(run.saved), run.paths, run.data)
    evaluation = Evaluation.load(str(run.folder), hosts=scoring.hosts, online=scoring.online, overrides=scoring.overrides_of(run))
    data = str(evaluation.env.hparams().get("data", ""))
    if stored.get("data", data) != data:
        evaluation.env.close()
        raise ConfigError(f"{path} holds scores on other data (fingerprint {stored['data']}, now {data}): {RESCORE}")
    latency = evaluation.measure(stored.get("latency"))
    outcomes = evaluation.grow_all(controllers)
    if searches:
        hosts = HostSearch(evaluation, by=scoring.by)
        outcomes |= {name: hosts.run(name) for name in searches}
    choice: dict[str, Any] = {}
    if set(missing) & set(SEARCHED):
        chosen = evaluation.choose(by=scoring.by)
        choice |= asdict(chosen)
        outcomes |= dict(zip(SEARCHED, evaluation.grow_schedules(chosen), strict=True))
    if STATIC_NET in missing:
        chosen = evaluation.choose(static=True, by=scoring.by)
        choice[STATIC_NET] = asdict(chosen)
        outcomes[STATIC_NET] = evaluation.grow_static(chosen)
    evaluation.env.close()
    grown = {
        name: {"instance": outcome.instance, **outcome.lists()} | ({"seeds": outcome.seeds} if outcome.seeds else {})
        for name, outcome in outcomes.items()
    }
    with writing_reports(run.folder):
        scored: dict[str, Any] = {**_stored(run, path), "checkpoint": run.digest}
        scored |= {} if scored["rows"] else {"data": data}  # of rows of earlier versions, nobody knows on which data they are
        scored |= {"latency": latency} if latency else {}
        scored["choice"] = _with_choice(scored["choice"] or {}, choice, scoring.by) or None
        new = {"static" if name == REPLAY else scoring.key(name): values for name, values in grown.items()}
        scored["rows"] |= new
        scored["esper"] |= dict.fromkeys(new, versions())
        write_whole(path, json.dumps({**scored, "sha256": fingerprint(scored)}) + "\n")
    return scored["rows"]


def _with_choice(known: dict[str, Any], new: dict[str, Any], by: str) -> dict[str, Any]:
    """Return the choices in a file of scores with new ones: those by return beside those by another criterion, under its name."""
    if by == "return" or not new:
        return {**known, **new}
    return {**known, by: {**known.get(by, {}), **new}}


def _stored(run: Run, path: Path) -> dict[str, Any]:
    """Return the content of a file of scores, to which another comparison may have added, or of an empty one."""
    return read_scores(run, path) if path.exists() else {"choice": None, "rows": {}, "esper": {}}


def read_scores(run: Run, path: Path) -> dict[str, Any]:
    """Return the content of a file of scores: `rows`, as `HostRows`, by `Scoring.key`; `choice` of baselines chosen on other
    hosts, if by accuracy under `validation`; `checkpoint`; `esper`, the code version by controller; `data`, the fingerprint of
    the data, empty if hosts have none, and missing in files of earlier versions; and `latency`, if the reward needs it.

    Raises:
        ConfigError: the file is damaged, was edited, or holds the scores of another checkpoint.
    """
    found = _read(path)
    if not isinstance(found, dict) or {*found} - {"latency", "data"} != {"checkpoint", "esper", "choice", "rows", "sha256"}:
        raise ConfigError(f"{path} is damaged, or of an earlier version: {RESCORE}")
    scored = {name: value for name, value in cast(dict[str, Any], found).items() if name != "sha256"}
    if fingerprint(scored) != found["sha256"]:
        raise ConfigError(f"{path} was edited after scoring: {RESCORE}")
    if scored["checkpoint"] != run.digest:
        raise ConfigError(f"{path} holds the scores of another checkpoint than the newest in {run.folder}: {RESCORE}")
    if "source" in scored["esper"]:  # files of earlier versions have one for all controllers
        scored["esper"] = dict.fromkeys(scored["rows"], scored["esper"])
    return scored


def unseen_kinds(runs: Sequence[Run], scoring: Scoring) -> list[str]:
    """Return a warning if an oracle was not chosen on the kinds of all hosts.

    Args:
        runs: finished runs, scored with these settings.
        scoring: settings.
    """
    if "oracle" not in scoring.baselines:
        return []
    own = [run for run in runs if run.arm == scoring.arm]
    files = [scoring.read(run) for run in own]
    pairs = [(kind, one["choice"]["for_kind"]) for one in files for kind in one["rows"]["oracle"]["instance"]]
    unseen = sum(kind not in known and condensed(kind) not in known for kind, known in pairs)  # older files have kinds in full
    where = f"{unseen} of the {scoring.hosts * len(own)} hosts of the oracle are of kinds that it was not chosen on"
    return [f"{where}, and get the best overall schedule"] if unseen else []


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {RESCORE}") from error


def training_scores(run: Run) -> dict[str, float]:
    """Return the outcomes that are measured in training: means over `regular` records."""
    records = regular(records_of(run), int(run.config["telemetry.every"]), run.updates)
    accuracy = [record["host/committed_accuracy"] for record in records if "host/committed_accuracy" in record]
    rollbacks = sum(value for record in records for tag, value in record.items() if tag.startswith("governor/rollbacks"))
    learned = float(np.nanmean(accuracy)) if np.isfinite(accuracy).any() else float("nan")
    values = (learned, rollbacks / float(run.config["hosts"]) / len(records))
    return dict(zip(TRAINING, values, strict=True))
