"""Tuning by paired differences: values are scored by their gain over a baseline on the same random seeds.

A trial runs a set of values once per block. The baseline runs once per block for all trials. The variance between seeds cancels
in their differences, so a few blocks suffice. Runs are scored by an outcome that does not depend on the reward, on held-out hosts
(`esper.lab.scoring.score`). Optuna's tree of Parzen estimators (Bergstra et al. 2011, "Algorithms for
Hyper-Parameter Optimization") proposes the next values from the file of the tuning alone, so that an interrupted tuning resumes
exactly.
"""

import json
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from esper.cli.overrides import config_of
from esper.config import ConfigError
from esper.evaluation.outcomes import ONLINE
from esper.files import fingerprint, write_whole
from esper.lab.arms import typed_arms
from esper.lab.cell import Cell
from esper.lab.design import draw_seeds
from esper.lab.integrity import check_values
from esper.lab.last_start import last_start
from esper.lab.outcomes import OUTCOMES, unknown_outcome
from esper.lab.roots import new_root
from esper.lab.runs import find_runs
from esper.lab.scoring import score
from esper.lab.search_space import BASELINE, SearchSpace, draw_value
from esper.seeding import stream
from esper.stats.intervals import Interval, mean_interval
from esper.sweeps import TuneConfig
from esper.text import counted
from esper.training.config_io import is_path, without_paths

FILE = "tuning.json"
"""Name of the file in the folder of a tuning."""
SHOWN = 10
"""Number of trials in the final table."""
DRAWS = 10_000
"""Draws after which a search for values that were not tried ends."""


@dataclass(kw_only=True, slots=True)
class Trial:
    """One set of values with its gains."""

    values: dict[str, Any]
    """Value of each tuned key."""
    gains: list[float] = field(default_factory=lambda: list[float]())
    """Gain over the baseline, block by block."""
    fault: str | None = None
    """Reason why the values cannot be run together, if any."""

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.values.items()]

    @property
    def gain(self) -> Interval:
        return mean_interval(self.gains)


class Tuning:
    """A tuning in its folder: finished trials, and proposals of further ones."""

    def __init__(self, space: SearchSpace, folder: Path) -> None:
        """Start a tuning, or resume the one in the folder.

        Raises:
            ConfigError: the folder holds another tuning, or the outcome does not fit.
        """
        if space.config.outcome not in OUTCOMES:
            raise ConfigError(unknown_outcome(space.config.outcome))
        self.space, self.folder, self.outcome = space, folder, OUTCOMES[space.config.outcome]
        self.trials: list[Trial] = []
        self.failed: dict[str, str] = {}
        self._common = space.common
        path = folder / FILE
        if path.exists():
            self._load(path)
        else:
            self._save()

    def _identity(self) -> dict[str, Any]:
        """Return the settings that a resumed tuning must share: all but the number of trials."""
        config = {name: value for name, value in asdict(self.space.config).items() if name != "trials"}
        params = {key: repr(one) for key, one in self.space.params.items()}
        return {"params": params, "common": self._common, **config, "seeds": self.space.seeds}

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {**self._identity(), "trials": [asdict(trial) for trial in self.trials], "failed": self.failed}
        write_whole(self.folder / FILE, json.dumps(state | {"sha256": fingerprint(state)}, indent=1) + "\n")

    def _load(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state.pop("sha256") != fingerprint(state):
                raise ValueError
            trials, self.failed = [Trial(**trial) for trial in state.pop("trials")], dict(state.pop("failed", {}))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path} is damaged, or was edited: remove it, and repeat the command that made it") from error
        if state.get("seeds") == (earlier := draw_seeds(self.space.config.root, self.space.config.blocks)):
            self.space = replace(self.space, seeds=earlier)  # a tuning of an earlier version keeps its blocks
        if without_paths(state.get("common", ())) == without_paths(self.space.common):
            self._common = state["common"]  # data may have moved
        if changed := [name for name, value in self._identity().items() if value != state.get(name)]:
            name, there, here = changed[0], state.get(changed[0]), self._identity()[changed[0]]
            if isinstance(there, dict) and isinstance(here, dict):
                pairs = cast(dict[str, Any], there), cast(dict[str, Any], here)
                name = next(key for key in pairs[0] | pairs[1] if pairs[0].get(key) != pairs[1].get(key))
                there, here = (one.get(name, "not tuned") for one in pairs)
            raise ConfigError(
                f"{self.folder} holds a tuning that differs in {name} (there {there}, here {here}): repeat its command, or "
                "choose another hydra.sweep.dir"
            )
        self.trials = trials

    def next(self) -> dict[str, Trial]:
        """Return the next trials by the names of their arms; empty if all are finished."""
        known, size = len(self.trials), self.space.config.at_once
        # Trials that start together know only the trials before the first of them, even when some of them are finished.
        numbers = range(known, min(known - known % size + size, self.space.config.trials))
        before, taken = self.trials[: known - known % size], [trial.values for trial in self.trials]
        trials: dict[str, Trial] = {}
        for number in numbers:
            values = self._propose(before, number)
            if values in taken:  # runs with the same values and seeds have the same results
                values = self._new(taken, number)
            if values is None:
                break
            taken.append(values)
            trials[name(number)] = Trial(values=values)
        return trials

    def _new(self, taken: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any] | None:
        """Return random values that were not tried; None if there are none left."""
        if len({tuple(values.items()) for values in taken}) >= self.space.size:
            return None
        rng = stream(self.space.config.root, "new_trial", number)
        for _ in range(DRAWS):
            drawn = {key: _rounded(draw_value(one, rng), one) for key, one in self.space.params.items()}
            if drawn not in taken:
                return drawn
        return None  # in an interval that has hardly any values of four digits

    def _propose(self, known: Sequence[Trial], number: int) -> dict[str, Any]:
        import optuna  # late: takes half a second

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = int(stream(self.space.config.root, "trial", number).integers(2**31))
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        ranges = self.space.params
        for trial in known:
            state = optuna.trial.TrialState.FAIL if trial.fault else optuna.trial.TrialState.COMPLETE
            value = None if trial.fault else trial.gain.mean
            study.add_trial(optuna.trial.create_trial(state=state, params=trial.values, distributions=ranges, value=value))
        proposed = study.ask(ranges).params
        return {key: _rounded(proposed[key], one) for key, one in ranges.items()}

    def cells(self, trials: Mapping[str, Trial]) -> list[Cell]:
        """Return the runs of trials, after those of the baseline in each block."""
        arms = {BASELINE: list[str]()} | {arm: trial.overrides for arm, trial in trials.items() if not trial.fault}
        return self.space.cells(arms)

    def left_out(self, trials: Mapping[str, Trial], failed: Mapping[str, str]) -> bool:
        """Leave out trials that failed before and failed again for the same reason, so that they do not end the tuning for good.

        Args:
            trials: trials that were run.
            failed: reason by the arm of which a run failed.

        Returns:
            Whether another arm failed. Its reason is saved: it is left out if it fails again.
        """
        for arm, reason in failed.items():
            if arm in trials and self.failed.get(arm) == reason:
                trials[arm].fault = reason
        new = {arm: reason for arm, reason in failed.items() if arm not in trials or not trials[arm].fault}
        if new:
            self.failed |= new
            self._save()
        return bool(new)

    def learn(self, trials: Mapping[str, Trial]) -> None:
        """Score trials that were run, and save their gains.

        Raises:
            ConfigError: the outcome is not measured in these runs.
        """
        sign = 1.0 if self.outcome.higher_is_better else -1.0
        level = self._outcomes(BASELINE, []) if any(not trial.fault for trial in trials.values()) else []
        for arm, trial in trials.items():
            if not trial.fault:
                found = self._outcomes(arm, trial.overrides)
                trial.gains = [sign * (value - base) for value, base in zip(found, level, strict=True)]
            self.trials.append(trial)
        self._save()

    def _outcomes(self, arm: str, overrides: Sequence[str]) -> list[float]:
        values: list[float] = []
        for cell in self.space.cells({arm: overrides}):
            (run,) = find_runs([self.folder / cell.folder])
            check_values(run, cell.overrides, FILE, "remove it, and repeat the command of the tuning")
            run = replace(run, paths=tuple(filter(is_path, cell.overrides)))
            scores = score(run, self.space.config.score_hosts, online=self.outcome.name == ONLINE)
            value = scores.get(self.outcome.name, float("nan"))
            if not np.isfinite(value):
                raise ConfigError(f"outcome={self.outcome.name} is not measured in {run.folder}: choose another one")
            values.append(value)
        return values

    # ---- console output

    def best(self) -> Trial | None:
        """Return the trial with the largest mean gain."""
        return max((trial for trial in self.trials if not trial.fault), key=lambda trial: trial.gain.mean, default=None)

    def line(self, number: int) -> str:
        """Return one line about a trial."""
        trial = self.trials[number]
        unit = "" if self.outcome.unit == "1" else f" {self.outcome.difference}"
        if trial.fault:
            return f"{name(number)}: {' '.join(trial.overrides)}: cannot be run: {trial.fault}"
        gain = trial.gain
        spread = f", in [{gain.low:+.2f}, {gain.high:+.2f}]" if len(trial.gains) > 1 else ""
        return f"{name(number)}: {' '.join(trial.overrides)}: gains {gain.mean:+.2f}{unit}{spread}"

    def table(self) -> list[str]:
        """Return the trials with the largest gains, and the command of an experiment that tests the best one."""
        ran = [number for number, trial in enumerate(self.trials) if not trial.fault]
        ran.sort(key=lambda number: -self.trials[number].gain.mean)
        blocks = len(self.space.seeds)
        lines = [f"gain in {self.outcome.name} over the baseline, mean of {counted(blocks, 'block')} with 95 % interval:"]
        lines += [f"  {self.line(number)}" for number in ran[:SHOWN]]
        if not ran:
            return [f"none of {counted(len(self.trials), 'trial')} could be run"]
        if len(self.trials) < self.space.config.trials:
            lines.append("all values were tried: none are left for the other trials")
        best = self.best()
        if best is None or best.gain.mean <= 0:
            return [*lines, "no trial gained anything over the baseline"]
        common = [override for override in self.space.common if not override.startswith("sweep=")]
        arms = f"arms={typed_arms({BASELINE: [], 'tuned': best.overrides})}"
        asked, usual = self.space.config, TuneConfig()
        # A tuning by validation accuracy keeps the test samples for the experiment, whose default is test accuracy.
        claims = [
            f"{key}={getattr(asked, key)}" for key in ("outcome", "score_hosts") if getattr(asked, key) != getattr(usual, key)
        ]
        with warnings.catch_warnings(action="ignore"):  # the runs themselves warn
            first = config_of([*self.space.common, f"seed={self.space.seeds[0]}"])
        claims += [] if first.agent.seeded else ["aa_control=false"]
        start, root = last_start(self.folder), f"root={new_root(self._identity())}"
        arguments = ["-m", "sweep=ab", arms, "blocks=12", root, *claims, *common, *start.launcher]
        return [
            *lines,
            f"the best of {len(ran)} trials is biased upwards; test it on new random seeds: "
            f"python -m esper.train {' '.join([shlex.join(arguments), *start.flags])}",
        ]


def name(number: int) -> str:
    """Return the name of the arm of a trial."""
    return f"trial-{number:03d}"


def score_tuned(sweeper: Any, folder: Path) -> None:
    """Score a finished run of a tuning in the process that trained it, so that the tuning only reads the scores.

    Args:
        sweeper: config of the sweeper of the tuning.
        folder: folder of the run.
    """
    (run,) = find_runs([folder])
    score(run, sweeper.score_hosts, online=sweeper.outcome == ONLINE)


def _rounded(value: Any, distribution: Any) -> Any:
    """Return a proposed value with four digits, within its range; whole numbers, steps and choices as they are."""
    if not isinstance(value, float) or distribution.step is not None:
        return value
    return min(max(float(f"{value:.4g}"), distribution.low), distribution.high)
