"""Search per host: what a user would do without a policy.

Each held-out host is trained several times, each time with another schedule of seeds, and the training that does best on the
validation split is kept. Its outcomes are those of the search, but FLOPs of training and measuring are the sums over all of its
trainings. The choice never uses test accuracy. By default it uses the return, so the return of a search is biased upwards.

All hosts try their next schedule at the same time, each host its own. Every training runs to the end once, and all methods read
its curves. If a method stops a training, its FLOPs count up to that epoch; if it continues one, no epoch counts twice, as if the
networks had been saved. This is exact: the random streams of a host do not depend on when its training stops.
"""

# N hosts, T host epochs, J trainings of each host

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.agent.best_of_random import Times, draw_schedule, planted
from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.config import ConfigError, did_you_mean
from esper.env.actions import Head, Op, segments
from esper.env.base import Environment, EpisodeRecord
from esper.env.episode import Episode
from esper.env.spec import as_observation
from esper.evaluation.held_out import Evaluation
from esper.evaluation.host_tpe import STARTUP, Proposals
from esper.evaluation.outcomes import HostOutcomes
from esper.lifecycle.stages import IntArray
from esper.seeding import stream

Float64Array = npt.NDArray[np.float64]
Schedules = list[list[ActionConfig]]
"""The schedule of each host."""

FIRST_RUNG = 8
"""The first rung of a halving is at 1 / FIRST_RUNG of an episode; at each rung, the weaker half stops."""


OBJECTIVES = ("return", "validation")
"""Objectives of a search, on the validation split: return (at a rung, the return so far), or validation, the accuracy of the
committed network (at a rung, the accuracy with all seeds as they are)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """One training of every host."""

    outcomes: HostOutcomes
    score_TN: Float64Array
    """Objective after every host epoch."""
    accuracy_TN: Float64Array
    """Validation accuracy with all seeds as they are [%]; it breaks ties between scores at a rung."""
    training_TN: Float64Array
    """FLOPs of training so far."""
    measuring_TN: Float64Array
    """FLOPs of measuring so far."""


def halving(trainings: Sequence[Training], rungs: Sequence[int]) -> IntArray:
    """Return how long each training of each host runs in a successive halving `[J, N]` [host epochs].

    Args:
        trainings: all candidates.
        rungs: host epochs after which the weaker half stops; the last is the end of the episode.
    """
    epochs_JN = np.full((len(trainings), trainings[0].score_TN.shape[1]), rungs[0])
    left = len(trainings)
    for rung, later in pairwise(rungs):
        left = max(1, left // 2)
        score_JN, accuracy_JN = (
            np.nan_to_num(np.stack([getattr(one, name)[rung - 1] for one in trainings]), nan=-np.inf)
            for name in ("score_TN", "accuracy_TN")
        )
        running_JN = epochs_JN == rung
        order_JN = np.lexsort((-accuracy_JN, -score_JN, ~running_JN), axis=0)  # stable: the earlier one of equals
        np.put_along_axis(epochs_JN, order_JN[:left], later, axis=0)
    return epochs_JN


def affordable(budget: float, rungs: Sequence[int]) -> int:
    """Return the largest number of candidates, at least 1, of which a halving stays within a budget of host epochs."""

    def spent(left: int) -> int:
        total = left * rungs[0]
        for rung, later in pairwise(rungs):
            left = max(1, left // 2)
            total += left * (later - rung)
        return total

    count = 1
    while spent(count + 1) <= budget:
        count += 1
    return count


def best_of(trainings: Sequence[Training], epochs_JN: IntArray) -> HostOutcomes:
    """Return, for each host, the outcomes of the best training that ran to the end, with the FLOPs of all its trainings.

    Args:
        epochs_JN: how long each training of each host ran [host epochs].
    """
    score_JN = np.nan_to_num(np.stack([one.score_TN[-1] for one in trainings]), nan=-np.inf)
    best_N = np.where(epochs_JN == len(trainings[0].score_TN), score_JN, -np.inf).argmax(axis=0)
    host_N, outcomes = np.arange(len(best_N)), [one.outcomes for one in trainings]
    values = {name: np.stack([one.values[name] for one in outcomes])[best_N, host_N] for name in outcomes[0].values}
    for name in ("training", "measuring"):
        curves = [getattr(one, f"{name}_TN") for one in trainings]
        values[f"{name}_flops"] = np.sum(
            [curve[epochs_N - 1, host_N] for curve, epochs_N in zip(curves, epochs_JN, strict=True)], axis=0
        )
    return HostOutcomes(
        values=values, instance=outcomes[0].instance, kept=[outcomes[best].kept[host] for host, best in enumerate(best_N)]
    )


class HostSearch:
    """Searches on the held-out hosts of an evaluation. They share the random schedules, and so their trainings."""

    def __init__(self, evaluation: Evaluation, *, by: str = "return", times: Times | None = None) -> None:
        """Prepare the searches; nothing is drawn or trained yet.

        Args:
            evaluation: the evaluation whose held-out hosts are trained.
            by: one of `OBJECTIVES`.
            times: distribution of planting times; None means early, but uniform for a task with events.

        Raises:
            ConfigError: its hosts do not train.
        """
        if "task" in evaluation.config.env.ignores:
            raise ConfigError(
                f"search_per_host needs hosts that train, and those of env={evaluation.config.choice('env')} do not: leave it out"
            )
        self.evaluation, self.by, self.env = evaluation, by, evaluation.env
        self.times = times or (Times.uniform if evaluation.config.task.events.kinds else Times.early)
        self.most = evaluation.config.slots.max_seeds or int(self.env.chosen_S.sum())
        self.env.reset(options={"episode": evaluation.episode})
        self.first = as_observation(self.env.observation())
        spec = self.env.layout
        free, values = self.first.legal_slots[:, Op.GERMINATE].any(axis=0), self.first.legal_values[0]
        kinds = np.flatnonzero(values[segments(spec.head_sizes)[Head.BLUEPRINT]])
        self.places = [(int(slot), spec.blueprint_names[kind]) for slot in np.flatnonzero(free) for kind in kinds]
        """Every slot and blueprint of a seed."""
        self._drawn: list[Training] = []
        self._proposed: list[Training] = []
        self._proposals: Proposals | None = None
        self._trained = 0

    def run(self, name: str) -> HostOutcomes:
        """Return the outcomes of a search by its name; see `names`."""
        method, trainings = _parsed(name)
        return best_of(*METHODS[method](self, trainings))

    def planned(self, names: Sequence[str]) -> int:
        """Return how often the hosts will be trained by searches of these names; random schedules are shared."""
        drawn, proposed, fixed = 0, 0, 0
        for method, count in map(_parsed, names):
            if method in UNBUDGETED:
                fixed += 1 + len(self.places)
            elif method == "random":
                drawn = max(drawn, count)
            elif method == "tpe":
                drawn, proposed = max(drawn, min(count, STARTUP)), max(proposed, count - STARTUP)
            else:
                number = 1 if method == "halving" else self._num_brackets(count)
                parts = (self.rungs[start:] for start in range(number))
                drawn = max(drawn, sum(affordable(count * self.env.num_steps / number, rungs) for rungs in parts))
        return drawn + proposed + fixed

    # ---- methods: trainings of each host, and how long each runs

    def random(self, count: int) -> tuple[Sequence[Training], IntArray]:
        """Train `count` random schedules to the end."""
        return self._to_the_end(self.drawn(count))

    def halve(self, budget: int) -> tuple[Sequence[Training], IntArray]:
        """Halve as many random schedules as the budget allows."""
        return self._brackets(budget, 1)

    def hyperband(self, budget: int) -> tuple[Sequence[Training], IntArray]:
        """Run halvings from different rungs on, with equal parts of the budget: as many as can have two full trainings each."""
        return self._brackets(budget, self._num_brackets(budget))

    def _num_brackets(self, budget: int) -> int:
        return min(len(self.rungs), max(1, budget // 2))

    def tpe(self, count: int) -> tuple[Sequence[Training], IntArray]:
        """Train `count` schedules to the end: the first random ones, then proposals of Optuna, host by host."""
        if self._proposals is None:
            seeds = [int(self._stream("tpe", host).integers(2**31)) for host in range(self.env.num_envs)]
            self._proposals = Proposals(self.env.layout, self.first, self.places, self.most, self.times, seeds)
        for number in range(len(self._proposed), count):
            random = number < STARTUP
            schedules = self._proposals.ask(self._draw(number) if random else None)
            training = self.drawn(number + 1)[number] if random else self.train(schedules)
            self._proposals.tell(training.score_TN[-1])
            self._proposed.append(training)
        return self._to_the_end(self._proposed[:count])

    def enumerate(self, _: int, env: Environment | None = None) -> tuple[Sequence[Training], IntArray]:
        """Train every host without a seed, and with each blueprint in each slot, planted at the start."""
        schedules = [list[ActionConfig](), *(planted(slot, kind, 0) for slot, kind in self.places)]
        return self._to_the_end([self.train([one] * self.env.num_envs, env) for one in schedules])

    def static_nets(self, _: int) -> tuple[Sequence[Training], IntArray]:
        """Train every host without a seed, and with each blueprint in each slot, active from initialisation."""
        env = self.evaluation.static_env()
        found = self.enumerate(0, env)
        env.close()
        return found

    def _brackets(self, budget: int, number: int) -> tuple[Sequence[Training], IntArray]:
        """Run halvings from the first rungs on, with schedules of their own and equal parts of the budget."""
        epochs, taken = list[IntArray](), 0
        for rungs in [self.rungs[start:] for start in range(number)]:
            count = affordable(budget * self.env.num_steps / number, rungs)
            epochs.append(halving(self.drawn(taken + count)[taken:], rungs))
            taken += count
        return self.drawn(taken), np.concatenate(epochs)

    def _to_the_end(self, trainings: Sequence[Training]) -> tuple[Sequence[Training], IntArray]:
        return trainings, np.full((len(trainings), self.env.num_envs), self.env.num_steps)

    @property
    def rungs(self) -> list[int]:
        """Host epochs at which a halving compares, ending with the end of an episode: each is about twice the one before."""
        parts = [2**power for power in range(FIRST_RUNG.bit_length() - 1, -1, -1)]
        return sorted({max(1, self.env.num_steps // part) for part in parts})

    # ---- trainings

    def drawn(self, count: int) -> list[Training]:
        """Return the trainings of the first `count` random schedules of each host."""
        while len(self._drawn) < count:
            self._drawn.append(self.train(self._draw(len(self._drawn))))
        return self._drawn[:count]

    def _draw(self, number: int) -> Schedules:
        """Return a random schedule for each host; number 0 grows nothing."""
        spec, latest = self.env.layout, self.env.num_steps - 1
        return [
            draw_schedule(self._stream("search", host, number), self.first, spec, most=self.most, latest=latest, times=self.times)
            if number
            else []
            for host in range(self.env.num_envs)
        ]

    def _stream(self, purpose: str, host: int, *keys: int) -> np.random.Generator:
        return stream(self.env.root, purpose, self.env.split, self.evaluation.episode, host, *keys)

    def train(self, schedules: Schedules, env: Environment | None = None) -> Training:
        """Train every host with its schedule, in the environment of the evaluation by default; a journal may hold the result."""
        self._trained += 1
        name, journal = f"training {self._trained} of each host", self.evaluation.journal
        if kept := journal and journal.recall(name):
            if self.evaluation.progress:
                self.evaluation.progress.expect(-1)
            return Training(outcomes=HostOutcomes(**kept.pop("outcomes")), **kept)
        curves: dict[str, list[npt.NDArray[Any]]] = {"score": [], "accuracy": [], "training": [], "measuring": []}

        def watch(episode: EpisodeRecord) -> None:
            assert isinstance(episode, Episode)
            assert episode.signals is not None
            seen = episode.signals
            accuracy_N = seen.effects.committed_accuracy_N if seen.last else seen.accuracy_N
            curves["score"].append(episode.return_N.copy() if self.by == "return" else accuracy_N)
            curves["accuracy"].append(seen.accuracy_N)
            curves["training"].append(episode.training_flops_N)
            curves["measuring"].append(episode.measuring_flops_N)

        outcomes = self.evaluation.grow(ActionLists(schedules, self.env.layout), env, name=name, watch=watch)
        training = Training(outcomes=outcomes, **{f"{key}_TN": np.array(curve, np.float64) for key, curve in curves.items()})
        if journal:
            journal.keep(name, training)
        return training


METHODS: dict[str, Callable[[HostSearch, int], tuple[Sequence[Training], IntArray]]] = {
    "random": HostSearch.random,
    "halving": HostSearch.halve,
    "hyperband": HostSearch.hyperband,
    "tpe": HostSearch.tpe,
    "enumerate": HostSearch.enumerate,
    "static_nets": HostSearch.static_nets,
}
"""Name of a method -> function of a search and of the number of full trainings per host that it may spend."""
UNBUDGETED = ("enumerate", "static_nets")
"""Methods without such a number."""
PREFIX = "search_"


def names(methods: Sequence[str], trainings: Sequence[int]) -> list[str]:
    """Return the names of searches, such as search_random_4 for 4 trainings; those of `UNBUDGETED` have no number."""
    budgets = {method: [""] if method in UNBUDGETED else [f"_{count}" for count in trainings] for method in methods}
    return [f"{PREFIX}{method}{budget}" for method in methods for budget in budgets[method]]


def check_method(key: str, method: str) -> None:
    """Raise ValueError if a method is not known, or if the package that it needs is not installed.

    Args:
        key: the key that names it.
    """
    if method not in METHODS:
        raise ValueError(f"{key}={method} is not known: choose from {', '.join(METHODS)}{did_you_mean(method, [*METHODS])}")
    if method == "tpe" and find_spec("optuna") is None:
        raise ValueError(f"{key}=tpe needs optuna: pip install -c constraints.txt -e '.[tune]'")


def check_search(key: str, name: str) -> None:
    """Raise ValueError if there is no search of this name; see `names`."""
    method, budget = _parsed(name)
    check_method(f"{key}={PREFIX}METHOD with METHOD", method)
    if (budget > 0) == (method in UNBUDGETED):
        raise ValueError(f"{key}={name} is not known: write {names([method], [4])[0]}")


def _parsed(name: str) -> tuple[str, int]:
    """Return the method of a search and its number of trainings, 0 if it has none."""
    whole = name.removeprefix(PREFIX)
    method, _, budget = whole.rpartition("_")
    return (method, int(budget)) if budget.isdecimal() else (whole, 0)
