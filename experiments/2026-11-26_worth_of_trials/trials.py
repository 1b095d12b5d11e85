"""What trying a seed is worth in a world of permanent changes: python trials.py [task=digits_trials] [hosts=256] [seed=20261126]

Plays every seed in every host one epoch after the change began, when a controller can first see it, then plays trials: a first
seed, replaced after a few epochs by another one. From these returns, forests choose a first seed, and after the trial whether to
replace it, in hosts of networks that they were not fitted to. Prints the table of the record, with intervals over networks.
"""

# N hosts, C seeds, E kinds of changes, A alternatives of a trial, F features

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import GroupKFold

from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
AGES = (2, 3, 4)
"""Ages at which a trial ends [host epochs]."""
FOLDS = 8


class World:
    """Hosts of one episode, in which controllers are compared."""

    def __init__(self, task: str, hosts: int, seed: int) -> None:
        # A pool as large as the population: few hosts share a network.
        pool = f"task.pretrain_pool={hosts}"
        config = check([f"task={task}", pool, f"seed={seed}", "env.timetable=true", "agent=wait", "telemetry=quiet"])
        self.env = build_env(config, split=Split.TRAINING, hosts=hosts)
        self.spec = self.env.layout
        self.seeds = [(slot, kind) for slot in range(self.spec.num_slots) for kind in self.spec.blueprint_names]
        names = list(self.spec.feature_names)
        now = [column for column, name in enumerate(names) if name.startswith("event_") and "ahead" not in name]
        self.kinds = [names[column].removeprefix("event_") for column in now]
        self.seen = [column for column, name in enumerate(names) if not name.startswith("event_")]
        seen: list[npt.NDArray[np.float32]] = []
        self.alone, _ = self.returns(lambda step: seen.append(step.observation.features[:, now]))
        self.network_N = np.array([self.env.task.origin(*self.env.sampler.name(host)).index for host in range(hosts)])
        on_TNE = np.stack(seen) > 0
        self.kind_N, self.start_N = on_TNE[-1].argmax(axis=1), on_TNE.any(axis=2).argmax(axis=0)

    def returns(
        self, watch: Callable[[Transition], None] | None = None, plan: Callable[[int], list[ActionConfig]] | None = None
    ) -> tuple[Floats, list[npt.NDArray[np.float32]]]:
        """Return the return of each host `[N]` when it follows its plan, and its observations at each step `[N, F]`."""
        observed: list[npt.NDArray[np.float32]] = []

        def record(step: Transition) -> None:
            seen = step.observation
            flat_NF = seen.slots.reshape(len(seen.slots), -1)
            observed.append(np.concatenate([seen.features[:, self.seen], flat_NF], axis=1))
            if watch is not None:
                watch(step)

        never = [ActionConfig(at=self.spec.num_steps - 1, op="prune")]
        lists = [never if plan is None else plan(host) for host in range(self.env.num_envs)]
        self.env.reset(options={"episode": 0})
        return play(self.env, ActionLists(lists, self.spec), record=record).return_N.astype(np.float64), observed

    def planted(self, choice: int, at: int) -> list[ActionConfig]:
        """Return the actions that plant a seed."""
        slot, kind = self.seeds[choice]
        return [ActionConfig(at=at, op="germinate", slot=slot, blueprint=kind)]

    def one(self, choice: int) -> Floats:
        """Return the returns `[N]` with a seed that is kept."""
        return self.returns(plan=lambda host: self.planted(choice, self.start_N[host] + 1) + self.kept(choice))[0]

    def kept(self, choice: int, at: int = 0) -> list[ActionConfig]:
        """Return the action that keeps a seed."""
        return [ActionConfig(at=at, op="fossilize", slot=self.seeds[choice][0])]

    def trial(self, first_N: Ints, then_N: Ints, age: int) -> tuple[Floats, npt.NDArray[np.float32]]:
        """Return the returns `[N]` where a first seed is replaced at an age, and the observations before that `[N, F]`."""

        def plan(host: int) -> list[ActionConfig]:
            begin, first, then = self.start_N[host] + 1, int(first_N[host]), int(then_N[host])
            if first == then:
                return self.planted(first, begin) + self.kept(first, begin + age)
            out, next_at = [ActionConfig(at=begin + age, op="prune", slot=self.seeds[first][0])], begin + age + 1
            return self.planted(first, begin) + out + self.planted(then, next_at) + self.kept(then, next_at)

        return_N, observed = self.returns(plan=plan)
        when_N = self.start_N + 1 + age
        return return_N, np.stack([observed[when][host] for host, when in enumerate(when_N)])


def chosen(x_NF: npt.ArrayLike, return_NA: Floats, network_N: Ints) -> Ints:
    """Return the choice of forests for each host `[N]`, fitted to other networks."""
    x_NF, choice_N = np.asarray(x_NF), np.zeros(len(return_NA), np.int64)
    for known, new in GroupKFold(FOLDS).split(x_NF, groups=network_N):
        forest = RandomForestRegressor(300, min_samples_leaf=3, max_features=1 / 3, random_state=0)
        choice_N[new] = forest.fit(x_NF[known], return_NA[known]).predict(x_NF[new]).argmax(axis=1)
    return choice_N


def best_of_kind(kind_N: Ints, return_NC: Floats, network_N: Ints) -> Ints:
    """Return the seed for each host `[N]` with the highest mean return in its kind among other networks."""
    one_hot_NE = kind_N[:, None] == np.arange(kind_N.max() + 1)
    choice_N = np.zeros(len(kind_N), np.int64)
    for known, new in GroupKFold(FOLDS).split(return_NC, groups=network_N):
        mean_EC = np.stack([return_NC[known][one_hot_NE[known][:, kind]].mean(axis=0) for kind in range(one_hot_NE.shape[1])])
        choice_N[new] = mean_EC.argmax(axis=1)[kind_N[new]]
    return choice_N


def gain(gain_N: Floats, network_N: Ints) -> str:
    """Return a mean difference with its 95 % interval, from the variance between networks: hosts of one network may be alike."""
    apart_G = pd.Series(gain_N - gain_N.mean()).groupby(network_N).sum().to_numpy()
    half = stats.t.ppf(0.975, len(apart_G) - 1) * (len(apart_G) * apart_G.var(ddof=1)) ** 0.5 / len(gain_N)
    return f"{gain_N.mean():+.2f} ± {half:.2f}"


def main(task: str = "digits_trials", hosts: str = "256", seed: str = "20261126") -> None:
    world = World(task, int(hosts), int(seed))
    row_N, network_N = np.arange(world.env.num_envs), world.network_N
    counts = ", ".join(f"{name} {count}" for name, count in zip(world.kinds, np.bincount(world.kind_N), strict=True))
    print(f"{len(row_N)} hosts of {len(np.unique(network_N))} networks: {counts}; {len(world.seeds)} seeds")
    return_NC = np.stack([world.one(choice) for choice in range(len(world.seeds))], axis=1)
    _, observed = world.returns()
    fall_NF = np.stack([observed[when][host] for host, when in enumerate(world.start_N + 1)])
    first_N, told_N = chosen(fall_NF, return_NC, network_N), best_of_kind(world.kind_N, return_NC, network_N)
    once_N = return_NC[row_N, first_N]

    def line(name: str, return_N: Floats) -> None:
        print(f"| {name} | {return_N.mean():.1f} | {gain(return_N - once_N, network_N)} |", flush=True)

    print("\n| choice | return | minus one look |\n|---|---|---|")
    line("never growing", world.alone)
    line("the best seed for all", return_NC[:, return_NC.mean(axis=0).argmax()])
    line("one look, when the accuracy has fallen", once_N)
    line("told the kind at that moment", return_NC[row_N, told_N])
    line("told which seed is best in this host", return_NC.max(axis=1))
    right = np.mean(first_N == told_N)
    print(f"\none look chooses the seed of one who is told the kind in {right:.0%} of hosts\n")
    alternatives = np.unique(told_N)
    for age in AGES:
        rows = [world.trial(first_N, np.full_like(first_N, other), age) for other in alternatives]
        kept_N, seen_NF = world.trial(first_N, first_N, age)
        return_NA = np.stack([kept_N, *(paid_N for paid_N, _ in rows)], axis=1)
        pick_N = chosen(seen_NF, return_NA, network_N)
        line(f"replaced at age {age} where a forest says so ({np.mean(pick_N > 0):.0%})", return_NA[row_N, pick_N])
        pick_N = np.where(told_N == first_N, 0, 1 + np.searchsorted(alternatives, told_N))
        line(f"replaced at age {age} by the seed of the kind, told then", return_NA[row_N, pick_N])
        line(f"told at age {age} what is best in this host", return_NA.max(axis=1))


if __name__ == "__main__":
    main(**dict(argument.split("=", 1) for argument in sys.argv[1:]))
