"""Snapshots and rollbacks: what the environment does with the governor's verdicts.

A snapshot is all that a host is: parameters, momentum and batch statistics of the host and of its seeds, the lifecycle with its
clocks, and what was measured of it. Random streams are named by host and epoch, so there is no generator to be kept.

A host is remembered after every healthy epoch. That costs less than a thousandth of training it (64 hosts of digits: 1 ms of
seconds), and less often would lose more of what it learnt. So the state before any action, a fossilisation too, is the snapshot
while the host is healthy. While it is suspect it keeps the snapshot of before: what it comes back to is not on the brink itself.
"""

# N hosts, S slots

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from esper.env.shard_pool import ShardPool
from esper.governor.base import Governor, Verdict
from esper.governor.health import Health
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import Op, SlotState
from esper.reward.signals import FloatArray

BoolArray = npt.NDArray[np.bool_]

MEASURED = ("accuracy_NH", "potential_NSK", "loss_N")
"""What an environment knows of each host beside its lifecycle, by the names of `Guarded`."""
OF_HEALTH = ("loss_NW", "best_loss_N")
"""What goes back of a host's `Health`."""


class Guarded(Protocol):
    """What the guard sees and changes of an environment."""

    pool: ShardPool
    slots: SlotsConfig
    state: SlotState
    op_N: npt.NDArray[np.int64]
    accuracy_NH: FloatArray
    potential_NSK: FloatArray
    loss_N: FloatArray


class Guard:
    """Remembers the healthy, brings the sick back, and knows of each host's health what the governor needs."""

    health: Health

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    def start(self, env: Guarded) -> None:
        """New hosts, measured once, are remembered as they are."""
        self.health = self.governor.start(env.loss_N)
        self._kept: dict[str, npt.NDArray[Any]] = {}
        self._remember(env, np.ones(len(env.loss_N), dtype=np.bool_))

    def judge(self, train_loss_N: FloatArray, loss_N: FloatArray) -> Verdict:
        """See `Governor.judge`."""
        return self.governor.judge(self.health, train_loss_N, loss_N)

    def settle(self, env: Guarded, verdict: Verdict) -> None:
        """Brings the sick back to their snapshots, and remembers the healthy of whom nothing is suspect."""
        sick_N = verdict.rollback_N
        self.health = self.governor.after(self.health, verdict, env.loss_N)
        if sick_N.any():
            self._bring_back(env, sick_N)
        self._remember(env, ~(sick_N | verdict.suspect_N | self.health.retired_N))

    def _bring_back(self, env: Guarded, sick_N: BoolArray) -> None:
        """The sick are their snapshots again, and their live seeds are removed: one of them may be what made them sick."""
        env.pool.restore(sick_N)
        back = {name: _where(sick_N, self._kept[name], array) for name, array in self._arrays(env).items()}
        lives = {name: back[name] for name in env.state.arrays()}
        env.state = replace(env.state, **lives)  # the step's signals keep the state that it led to
        for name in MEASURED:
            setattr(env, name, back[name])
        self.health = replace(self.health, **{name: back[name] for name in OF_HEALTH})
        doomed_NS = env.state.within(*lifecycle.LIVE) & sick_N[:, None]
        for host, slot in np.argwhere(doomed_NS):
            env.pool.clear(int(host), int(slot), int(env.state.blueprint[host, slot]))
        env.state = lifecycle.prune(env.state, doomed_NS)
        env.op_N = np.where(sick_N, Op.WAIT, env.op_N)
        self._look_again(env, np.asarray(doomed_NS.any(axis=1)))

    def _look_again(self, env: Guarded, bereft_N: BoolArray) -> None:
        """Measures hosts that a rollback has robbed of seeds: to be judged by what they showed with them would never end."""
        if not bereft_N.any():
            return
        env.pool.arrange(lifecycle.roles(env.state, env.slots))
        measured = env.pool.validate(env.state.alpha[None])
        accuracy_N, loss_N = measured.accuracy_VM[0], measured.loss_VM[0]
        env.accuracy_NH[bereft_N, 0] = accuracy_N[bereft_N]
        env.state.accuracy[bereft_N] = accuracy_N[bereft_N, None]
        env.loss_N = np.where(bereft_N, loss_N, env.loss_N)
        self.health = self.health.rebased(bereft_N, loss_N)

    def _remember(self, env: Guarded, healthy_N: BoolArray) -> None:
        """Snapshots of the marked hosts: networks, optimisers, lifecycle, and what is known of them."""
        if not healthy_N.any():
            return
        env.pool.remember(healthy_N)
        for name, array in self._arrays(env).items():
            self._kept[name] = array.copy() if healthy_N.all() else _where(healthy_N, array, self._kept[name])

    def _arrays(self, env: Guarded) -> dict[str, npt.NDArray[Any]]:
        """Every array that goes back with a host, `[N, ...]` each."""
        measured = {name: getattr(env, name) for name in MEASURED}
        return env.state.arrays() | measured | {name: getattr(self.health, name) for name in OF_HEALTH}


def _where(which_N: BoolArray, here: npt.NDArray[Any], there: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rows of the marked hosts from `here`, the others from `there`."""
    return np.where(which_N.reshape(-1, *[1] * (there.ndim - 1)), here, there)
