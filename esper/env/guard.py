"""Snapshots and rollbacks: how the environment acts on the governor's verdicts.

A snapshot is the whole state of a host: parameters, optimiser state and batch statistics of the host and of its seeds, the
lifecycle with its ages, and its measurements. Random streams are named by host and epoch, so there is no generator to save.

A snapshot is saved after every healthy epoch. That costs less than a thousandth of training (64 hosts of digits: 1 ms, an
epoch takes seconds), and saving less often would lose more progress. So the snapshot of a
healthy host precedes its next action: a rollback undoes even a fossilisation. A suspect host keeps its earlier snapshot, so that
it is not restored to a state that is about to diverge.
"""

# N hosts, S slots

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from esper.env.observation import HostView
from esper.governor.base import Governor, Verdict
from esper.governor.health import Health
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import LIVE, BoolArray, Op
from esper.pool.base import HostPool

MEASURED = ("accuracy_NH", "potential_NSK", "loss_N")
"""Measurements of each host besides its lifecycle, by the names of `Guarded`."""
OF_HEALTH = ("loss_NW", "best_loss_N")
"""Fields of `Health` that a rollback restores."""


class Guarded(HostView, Protocol):
    """The part of an environment that the guard reads and changes."""

    pool: HostPool
    slots: SlotsConfig


class Guard:
    """Saves snapshots of healthy hosts, rolls others back, and keeps the `Health` that the governor needs."""

    health: Health

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    def start(self, env: Guarded) -> None:
        """Save snapshots of new hosts, which were measured once."""
        self.health = self.governor.start(env.loss_N)
        self._kept: dict[str, npt.NDArray[Any]] = {}
        self._remember(env, np.ones(len(env.loss_N), dtype=np.bool_))

    def settle(self, env: Guarded, verdict: Verdict) -> None:
        """Roll back hosts by the verdict, and save snapshots of healthy hosts that are not suspect."""
        failed_N = verdict.rollback_N
        self.health = self.governor.after(self.health, verdict, env.loss_N)
        if failed_N.any():
            self._roll_back(env, failed_N)
        self._remember(env, ~(failed_N | verdict.suspect_N | self.health.retired_N))

    def _roll_back(self, env: Guarded, failed_N: BoolArray) -> None:
        """Restore hosts from their snapshots, and remove their live seeds, one of which may be the cause."""
        env.pool.restore(failed_N)
        back = {name: _where(failed_N, self._kept[name], array) for name, array in self._arrays(env).items()}
        states = {name: back[name] for name in env.state.arrays()}
        env.state = replace(env.state, **states)  # the signals keep the state before the rollback
        for name in MEASURED:
            setattr(env, name, back[name])
        self.health = replace(self.health, **{name: back[name] for name in OF_HEALTH})
        live_NS = env.state.within(*LIVE) & failed_N[:, None]
        for host, slot in np.argwhere(live_NS):
            env.pool.clear(int(host), int(slot), int(env.state.blueprint[host, slot]))
        env.state = lifecycle.prune(env.state, live_NS)
        env.op_N = np.where(failed_N, Op.WAIT, env.op_N)
        env.pool.arrange(lifecycle.roles(env.state, env.slots))  # a fossil may be switched on again
        self._measure_again(env, np.asarray(live_NS.any(axis=1)))

    def _measure_again(self, env: Guarded, pruned_N: BoolArray) -> None:
        """Measure hosts again that lost seeds in a rollback: compared with their loss before, with these seeds, they would be
        rolled back forever."""
        if not pruned_N.any():
            return
        measured = env.pool.validate(env.state.alpha[None], wanted_N=pruned_N)
        accuracy_N, loss_N = measured.accuracy_VM[0], measured.loss_VM[0]
        env.accuracy_NH[pruned_N, 0] = accuracy_N[pruned_N]
        env.state.accuracy[pruned_N] = accuracy_N[pruned_N, None]
        env.loss_N = np.where(pruned_N, loss_N, env.loss_N)
        self.health = self.health.rebased(pruned_N, loss_N)

    def _remember(self, env: Guarded, healthy_N: BoolArray) -> None:
        """Save snapshots of the marked hosts: networks, optimisers, lifecycle and measurements."""
        if not healthy_N.any():
            return
        env.pool.save_snapshots(healthy_N)
        for name, array in self._arrays(env).items():
            self._kept[name] = array.copy() if healthy_N.all() else _where(healthy_N, array, self._kept[name])

    def _arrays(self, env: Guarded) -> dict[str, npt.NDArray[Any]]:
        """Return every array that a rollback restores, `[N, ...]` each."""
        measured = {name: getattr(env, name) for name in MEASURED}
        return env.state.arrays() | measured | {name: getattr(self.health, name) for name in OF_HEALTH}


def _where(which_N: BoolArray, here: npt.NDArray[Any], there: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows of the marked hosts from `here`, the others from `there`."""
    return np.where(which_N.reshape(-1, *[1] * (there.ndim - 1)), here, there)
