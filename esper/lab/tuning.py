"""Tuning by paired differences: what values are worth is what they gain over a baseline that meets the same seeds.

A trial runs a set of values once in every block, and the baseline is run once in every block for all trials. What a seed is
worth then cancels, so that a few blocks tell more than as many unpaired runs. Runs are judged by an outcome that no reward
enters, on held-out hosts (`esper.lab.scoring.judge`). Optuna's tree of Parzen estimators (Bergstra et al. 2011, "Algorithms for
Hyper-Parameter Optimization") proposes the next values from the file of the tuning alone, so that an interrupted tuning resumes
exactly.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from esper.checkpoint import write_whole
from esper.config import TUNE_SWEEPER, ConfigError, did_you_mean
from esper.lab.design import Cell
from esper.lab.runs import OUTCOMES, find_runs, pays
from esper.lab.scoring import judge
from esper.lab.search_space import BASELINE, SearchParam, SearchSpace
from esper.seeding import stream
from esper.stats.intervals import Interval, mean_interval

FILE = "tuning.json"
"""In the folder of a tuning."""
SHOWN = 10
"""Trials in the table at the end."""


@dataclass(kw_only=True, slots=True)
class Trial:
    """One set of values, and what came of it."""

    values: dict[str, str]
    """As they are typed, by key."""
    gains: list[float] = field(default_factory=lambda: list[float]())
    """By how much it was better than the baseline, block by block."""
    fault: str | None = None
    """Why it cannot be run, where that is so."""

    @property
    def words(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.values.items()]

    @property
    def gain(self) -> Interval:
        return mean_interval(self.gains)


class Tuning:
    """A tuning in its folder: what is known, and what comes next."""

    def __init__(self, planned: SearchSpace, folder: Path) -> None:
        """Goes on with what is in the folder, if anything is.

        Raises:
            ConfigError: something else is in it, or there is no such outcome.
        """
        if planned.outcome not in OUTCOMES:
            hint = did_you_mean(planned.outcome, list(OUTCOMES))
            raise ConfigError(f"there is no outcome={planned.outcome}: choose out of {', '.join(OUTCOMES)}{hint}")
        if planned.outcome == "return" and (paid := [knob.key for knob in planned.knobs if pays(knob.key)]):
            raise ConfigError(f"outcome=return cannot judge {paid[0]}, which says what is paid: take outcome=validation")
        self.planned, self.folder, self.outcome = planned, folder, OUTCOMES[planned.outcome]
        self.trials: list[Trial] = []
        path = folder / FILE
        if path.exists():
            self._load(path)
        else:
            self._save()

    def _identity(self) -> dict[str, Any]:
        """What may not change when it goes on: more trials may come."""
        return {name: value for name, value in asdict(self.planned).items() if name != "trials"}

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {**self._identity(), "trials": [asdict(trial) for trial in self.trials]}
        write_whole(self.folder / FILE, json.dumps(state, indent=1) + "\n")

    def _load(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text())
            trials = [Trial(**trial) for trial in state.pop("trials")]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path} is damaged: remove it, and repeat the command that made it") from error
        asked = json.loads(json.dumps(self._identity()))
        if changed := [name for name in asked if asked[name] != state.get(name)]:
            raise ConfigError(
                f"{self.folder} holds a tuning with other {changed[0]}: repeat its command, or choose another hydra.sweep.dir"
            )
        self.trials = trials

    def next(self) -> dict[str, Trial]:
        """The trials that come next, by the names of their arms; none where all are done."""
        known, size = len(self.trials), self.planned.at_once
        # Those that were begun together knew no more than the first of them, also where some of them are done by now.
        numbers = range(known, min(known - known % size + size, self.planned.trials))
        before = self.trials[: known - known % size]
        return {name(number): Trial(values=self._proposed(before, number)) for number in numbers}

    def _proposed(self, known: Sequence[Trial], number: int) -> dict[str, str]:
        try:
            import optuna
        except ImportError as error:
            raise ConfigError("sweep=tune needs optuna: pip install -e '.[tune]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(stream(self.planned.root, "trial", number).integers(2**31))
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        knobs = self.planned.knobs
        ranges = {knob.key: _distribution(knob) for knob in knobs}
        for trial in known:
            params = {knob.key: knob.read(trial.values[knob.key]) for knob in knobs}
            state = optuna.trial.TrialState.FAIL if trial.fault else optuna.trial.TrialState.COMPLETE
            value = None if trial.fault else trial.gain.mean
            study.add_trial(optuna.trial.create_trial(state=state, params=params, distributions=ranges, value=value))
        asked = study.ask(ranges)
        return {knob.key: knob.shown(asked.params[knob.key]) for knob in knobs}

    def cells(self, trials: Mapping[str, Trial]) -> list[Cell]:
        """What is to be run for trials; runs of the baseline come before all others."""
        arms = {BASELINE: list[str]()} | {arm: trial.words for arm, trial in trials.items() if not trial.fault}
        return self.planned.cells(arms)

    def learn(self, trials: Mapping[str, Trial]) -> None:
        """Judges trials that were run, and writes down what they are worth.

        Raises:
            ConfigError: the outcome does not apply to these runs.
        """
        sign = 1.0 if self.outcome.higher_is_better else -1.0
        level = self._outcomes(BASELINE, []) if any(not trial.fault for trial in trials.values()) else []
        for arm, trial in trials.items():
            if not trial.fault:
                found = self._outcomes(arm, trial.words)
                trial.gains = [sign * (value - base) for value, base in zip(found, level, strict=True)]
            self.trials.append(trial)
        self._save()

    def _outcomes(self, arm: str, words: Sequence[str]) -> list[float]:
        values: list[float] = []
        for cell in self.planned.cells({arm: words}):
            (run,) = find_runs([self.folder / cell.folder])
            value = judge(run, self.planned.judge_hosts)[self.outcome.name]
            if not np.isfinite(value):
                others = ", ".join(other for other in OUTCOMES if other != self.outcome.name)
                raise ConfigError(f"outcome={self.outcome.name} is not measured in {run.folder}: choose out of {others}")
            values.append(value)
        return values

    # ---- words for people

    def best(self) -> Trial | None:
        """The trial with the largest mean gain."""
        return max((trial for trial in self.trials if not trial.fault), key=lambda trial: trial.gain.mean, default=None)

    def line(self, number: int) -> str:
        """What came of a trial."""
        trial = self.trials[number]
        unit = "" if self.outcome.unit == "1" else f" {self.outcome.unit}"
        if trial.fault:
            return f"{name(number)}: {' '.join(trial.words)}: cannot be run, since {trial.fault}"
        gain = trial.gain
        spread = f", in [{gain.low:+.2f}, {gain.high:+.2f}]" if len(trial.gains) > 1 else ""
        return f"{name(number)}: {' '.join(trial.words)}: gains {gain.mean:+.2f}{unit}{spread}"

    def table(self) -> list[str]:
        """The trials that gained most, and how to find out whether it is so."""
        ran = [number for number, trial in enumerate(self.trials) if not trial.fault]
        ran.sort(key=lambda number: -self.trials[number].gain.mean)
        blocks = len(self.planned.seeds)
        lines = [f"{self.outcome.name} over the baseline, mean of {blocks} blocks and its 95 % interval:"]
        lines += [f"  {self.line(number)}" for number in ran[:SHOWN]]
        best = self.best()
        if best is None:
            return [*lines, "  no trial could be run: tuning.json says why"]
        if best.gain.mean <= 0:
            return [*lines, "no trial gained anything over the baseline"]
        common = [word for word in self.planned.common if not word.startswith("sweep=")]
        arms = f'arms={{{BASELINE}: "", tuned: {json.dumps(" ".join(best.words))}}}'
        words = ["-m", "sweep=ab", arms, "blocks=12", f"root={self.planned.root + 1}", *common]
        return [
            *lines,
            f"the best of {len(ran)} owes some of that to luck; on seeds of its own: python -m esper.train {shlex.join(words)}",
        ]


def name(number: int) -> str:
    """Of the arm of a trial."""
    return f"trial-{number:03d}"


def judge_tuned(sweeper: Any, folder: Path) -> None:
    """Judges a run that belongs to a tuning where it was trained, and not where the tuning waits for it; leaves others alone.

    Args:
        sweeper: the config of the sweeper that the run comes from.
        folder: of the run.
    """
    if str(sweeper.get("_target_")) == TUNE_SWEEPER:
        (run,) = find_runs([folder])
        judge(run, sweeper.judge_hosts)


def _distribution(knob: SearchParam) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if knob.choices:
        return CategoricalDistribution(knob.choices)
    if knob.whole:
        return IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return FloatDistribution(knob.low, knob.high, log=knob.log)
