"""Proposals of schedules by Optuna's tree of Parzen estimators, one study per host (Bergstra et al. 2011, "Algorithms for
Hyper-Parameter Optimization")."""

# N hosts

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from esper.agent.best_of_random import BIRTH, Times, planted
from esper.agent.scripted.schedule import ActionConfig
from esper.env.actions import VALUES, segments
from esper.env.spec import EnvSpec, Observation

if TYPE_CHECKING:
    from optuna.trial import Trial

STARTUP = 4
"""Random schedules before the first proposal. Optuna's default of 10 is for larger budgets than those of a search per host."""
NOTHING = "nothing"


class Proposals:
    """Schedules for the next training of each host.

    Every possible seed of a schedule has a place (slot and blueprint, or none), a time, and the parameters of its birth that the
    config leaves free. Of two seeds in the same slot, the first counts.
    """

    def __init__(
        self,
        spec: EnvSpec,
        first: Observation,
        places: Sequence[tuple[int, str]],
        most: int,
        times: Times,
        seeds: Sequence[int],
    ) -> None:
        """
        Args:
            first: first observation of the hosts, which shows the parameters that are free.
            places: every slot and blueprint of a seed.
            most: maximum number of seeds in a schedule.
            times: distribution of planting times before anything is known.
            seeds: seed of each host's study.
        """
        import optuna  # late: takes half a second, and is an extra

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.spec, self.most, self.log = spec, most, times is Times.early
        self.places = {f"{blueprint} in {spec.slot_names[slot]}": (slot, blueprint) for slot, blueprint in places}
        offered = {head: np.flatnonzero(first.legal_values[0, place]) for head, place in segments(spec.head_sizes).items()}
        free = [head for head in BIRTH if len(offered[head]) > 1]
        self.values = {head.name.lower(): [list(VALUES[head])[index] for index in offered[head]] for head in free}
        samplers = [optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP) for seed in seeds]
        self.studies = [optuna.create_study(direction="maximize", sampler=sampler) for sampler in samplers]
        self._asked: list[Trial] = []

    def ask(self, known: Sequence[Sequence[ActionConfig]] | None = None) -> list[list[ActionConfig]]:
        """Return the next schedule of each host.

        Args:
            known: schedules to take instead of a proposal.
        """
        for study, schedule in zip(self.studies, known or (), strict=known is not None):
            study.enqueue_trial(self._parameters(schedule))
        self._asked = [study.ask() for study in self.studies]
        return [self._schedule(trial) for trial in self._asked]

    def tell(self, score_N: npt.NDArray[np.floating[Any]]) -> None:
        """Receive the scores `[N]` of the schedules that were asked for last; higher is better."""
        for study, trial, score in zip(self.studies, self._asked, score_N.tolist(), strict=True):
            study.tell(trial, score)

    def _schedule(self, trial: "Trial") -> list[ActionConfig]:
        """Return the schedule of a trial."""
        seeds: dict[int, list[ActionConfig]] = {}
        for number in range(self.most):
            place = trial.suggest_categorical(f"place{number}", [NOTHING, *self.places])
            if place == NOTHING:
                continue
            slot, blueprint = self.places[place]
            at = trial.suggest_int(f"at{number}", 1, self.spec.num_steps, log=self.log) - 1
            others = {name: trial.suggest_categorical(f"{name}{number}", values) for name, values in self.values.items()}
            seeds.setdefault(slot, planted(slot, blueprint, at, **others))
        return [action for actions in sorted(seeds.values(), key=lambda actions: actions[0].at) for action in actions]

    def _parameters(self, schedule: Sequence[ActionConfig]) -> dict[str, Any]:
        """Return a schedule as the parameters of a trial."""
        names = {place: name for name, place in self.places.items()}
        found: dict[str, Any] = {f"place{number}": NOTHING for number in range(self.most)}
        for number, seed in enumerate(action for action in schedule if action.op == "germinate"):
            found |= {f"place{number}": names[seed.slot, seed.blueprint or ""], f"at{number}": seed.at + 1}
            found |= {f"{name}{number}": getattr(seed, name) for name in self.values}
        return found
