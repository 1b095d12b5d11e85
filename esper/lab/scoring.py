"""What finished runs reach on fresh hosts, and others who grow the same hosts; grown once, and kept beside the run."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from esper.checkpoint import write_whole
from esper.cli.command import warn_plainly
from esper.cli.transfer import slug
from esper.config import ConfigError, register
from esper.env.shard_pool import available_cores, limit_cores
from esper.lab.evaluation import STATIC, Choice, EvaluateConfig, Evaluation, Outcome
from esper.lab.runs import OUTCOMES, RIVALS, Run, records_of

Rows = dict[str, dict[str, list[float]]]
"""Controller -> outcome -> value of each fresh host."""
FRESH = ("accuracy", "validation", "return", "parameters", "flops", "training_flops")
"""Outcomes that are measured on fresh hosts."""
LIVED = ("learning", "catastrophes")
"""Outcomes that training itself wrote down."""
SEARCHED = RIVALS[1:]
"""Rivals that are chosen on other hosts."""
Reached = dict[str, dict[str, float]]
"""Arm or rival -> outcome -> mean over the fresh hosts; NaN where one does not apply."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judging:
    """How the runs of an experiment are judged."""

    hosts: int
    """Fresh hosts for each."""
    rivals: Sequence[str]
    """Who else grows them: of `RIVALS`, or agents that need no training."""
    rivals_of: str
    """Arm whose hosts the rivals grow."""
    kept: Path
    """Folder in which is written down which schedules were chosen, so that all runs of an experiment are met by the same."""
    world: Sequence[str] = ()
    """Words of esper.train that move all policies to another world, as task=mnist5k does."""

    def reached(self, run: Run) -> Reached:
        """What a finished run reached, and the rivals where they grow its hosts."""
        told = {run.arm: judge(run, self.hosts, self.world)}
        if self.rivals and run.arm == self.rivals_of:
            told |= judge_rivals(run, self)
        return told

    def chooses(self, run: Run) -> bool:
        """Whether judging this run would choose the schedules for all others."""
        searched = run.arm == self.rivals_of and bool(set(self.rivals) & set(SEARCHED))
        return searched and not self.choice_file().exists()

    def choice_file(self) -> Path:
        """Where is written down which schedules were chosen."""
        return self.kept / _named("schedules", self.hosts, self.world)


def judge_all(
    runs: Sequence[Run], judging: Judging, *, workers: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Reached]:
    """What each of some finished runs reached, in their order.

    Args:
        workers: processes that judge side by side, at least 1.
        tell: is told which run is being judged, or with several workers which has been.
    """
    if workers == 1:
        for index, run in enumerate(runs):
            tell(f"judging {index + 1} of {len(runs)}: {run.folder}")
            yield judging.reached(run)
        return
    # All wait for the run that chooses the schedules: those who began without would choose their own.
    if (chooser := next(filter(judging.chooses, runs), None)) is not None:
        tell(f"judging first, since it chooses the schedules: {chooser.folder}")
        judging.reached(chooser)
    cores = max(1, available_cores() // workers)
    side_by_side = Parallel(n_jobs=workers, return_as="generator")
    found: Any = side_by_side(delayed(_reached_elsewhere)(judging, run, cores) for run in runs)
    try:
        for index, (run, reached) in enumerate(zip(runs, found, strict=True)):
            tell(f"judged {index + 1} of {len(runs)}: {run.folder}")
            yield reached
    except BrokenProcessPool as error:
        raise ConfigError(
            f"a process that judged was killed, most likely for memory: set workers below {workers}; what was judged is kept"
        ) from error


def _reached_elsewhere(judging: Judging, run: Run, cores: int) -> Reached:
    """In a process of its own, which imports the plugins that the run recorded."""
    register()
    warn_plainly()
    limit_cores(cores)
    return judging.reached(run)


def judged_file(run: Run, hosts: int, world: Sequence[str] = ()) -> Path:
    """Where the outcomes of a run on so many fresh hosts are kept."""
    return run.folder / _named(f"judged_{run.updates:06d}", hosts, world)


def _named(what: str, hosts: int, world: Sequence[str]) -> str:
    return "_".join([what, str(hosts), "hosts", *filter(None, [slug(world)])]) + ".json"


def judge(run: Run, hosts: int, world: Sequence[str] = ()) -> dict[str, float]:
    """Outcomes of a finished run by name; NaN where one does not apply, as those of training where the world is another."""
    greedy = "policy_greedy" if str(run.config["agent"]).startswith("ppo") else None
    rows = _grown(run, hosts, ["policy", greedy] if greedy else ["policy"], world)
    reached = {name: float(np.mean(rows["policy"][name])) for name in FRESH}
    reached["accuracy_greedy"] = float(np.mean(rows[greedy]["accuracy"])) if greedy else float("nan")
    return reached | (dict.fromkeys(LIVED, float("nan")) if world else _lived(run))


def judge_rivals(run: Run, judging: Judging) -> Reached:
    """Outcomes of the others who grow the fresh hosts of a run, by rival."""
    rows = _grown(run, judging.hosts, list(judging.rivals), judging.world, judging.choice_file())
    missing = dict.fromkeys(OUTCOMES, float("nan"))
    return {rival: missing | {name: float(np.mean(rows[rival][name])) for name in FRESH} for rival in judging.rivals}


def _grown(run: Run, hosts: int, names: Sequence[str], world: Sequence[str], choice_file: Path | None = None) -> Rows:
    """The outcomes of some controllers on the fresh hosts of a run; what was not grown before is grown now.

    Raises:
        ConfigError: the file is damaged, or a policy cannot act in that world.
    """
    path = judged_file(run, hosts, world)
    rows: Rows = _read(path) if path.exists() else {}
    missing = [name for name in names if any(key not in rows.get(name, {}) for key in FRESH)]
    if not missing:
        return rows
    # What the policy kept is known only after it grew the hosts.
    told = ["policy", STATIC] if "static" in missing else []
    told += [name for name in missing if name not in RIVALS]
    config = EvaluateConfig(checkpoint=str(run.folder), hosts=hosts, controllers=list(dict.fromkeys(told)) or ["wait"])
    evaluation = Evaluation(config, world)
    outcomes = evaluation.run()
    if set(missing) & set(SEARCHED):
        assert choice_file is not None
        outcomes |= dict(zip(SEARCHED, evaluation.grow_schedules(_choice(evaluation, choice_file)), strict=True))
    evaluation.env.close()
    rows |= {"static" if name == STATIC else name: _row(outcome) for name, outcome in outcomes.items()}
    write_whole(path, json.dumps(rows) + "\n")
    return rows


def _row(outcome: Outcome) -> dict[str, list[float]]:
    return {
        "accuracy": outcome.accuracy_N.tolist(),
        "validation": outcome.validation_N.tolist(),
        "return": outcome.return_N.tolist(),
        "parameters": outcome.params_N.tolist(),
        "flops": outcome.flops_N.tolist(),
        "training_flops": outcome.training_flops_N.tolist(),
    }


def _choice(evaluation: Evaluation, path: Path) -> Choice:
    """The schedules that all runs of an experiment are compared with."""
    if not path.exists():
        write_whole(path, json.dumps(asdict(evaluation.choose())) + "\n")
    return Choice(**_read(path))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: remove it, and the run is judged again") from error


def _lived(run: Run) -> dict[str, float]:
    """Outcomes that training itself wrote down."""
    records = records_of(run)
    accuracy = [record["host/committed_accuracy"] for record in records if "host/committed_accuracy" in record]
    panics = [sum(value for tag, value in record.items() if tag.startswith("governor/rollbacks")) for record in records]
    hosts = float(run.config["hosts"])
    return dict(zip(LIVED, (float(np.nanmean(accuracy)), float(np.sum(panics)) / hosts / run.updates), strict=True))
