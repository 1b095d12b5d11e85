"""Actions as one number, for libraries whose agents choose from a list, such as DQN, and for exact masks."""

# N hosts, A listed actions, H heads

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from esper.config import ConfigError
from esper.env.actions import PARAMETER_HEADS, RELEVANT, VALUES, Head, Op, legal_actions
from esper.env.base import Environment
from esper.env.spec import Array


class ActionList:
    """All actions of an environment that can become legal, by number; 0 is to wait."""

    def __init__(self, population: Environment) -> None:
        if not hasattr(population, "actions"):
            kind = type(population).__name__
            raise ConfigError(f"discrete=True needs the method actions() of an environment: derive {kind} from Environment")
        self._layout, self._rows_AH = population.layout, population.actions()
        self.space = spaces.Discrete(len(self._rows_AH))
        self.names = tuple(self._name(row) for row in self._rows_AH)
        """What each action does, such as `germinate r0c0 conv_light`; values of heads follow where there is a choice."""

    def rows(self, numbers: Any) -> npt.NDArray[np.int64]:
        """Return the heads of one action for each host `[N, H]`.

        Args:
            numbers: `[N]`.

        Raises:
            ValueError: they are not N whole numbers from 0 to A - 1.
        """
        given, hosts, count = np.asarray(numbers), self._layout.num_hosts, len(self._rows_AH)
        if given.shape != (hosts,):
            raise ValueError(f"actions must have the shape ({hosts},), one number per host, got {given.shape}")
        if given.dtype.kind not in "iu" or ((given < 0) | (given >= count)).any():
            each = "" if hosts == 1 else f" for each of {hosts} hosts"
            got = given.tolist() if hosts > 1 else given[0]
            raise ValueError(f"an action must be a whole number from 0 to {count - 1}{each}, got {got}")
        return self._rows_AH[given]

    def legal(self, arrays: Mapping[str, Array]) -> npt.NDArray[np.bool_]:
        """Return which actions are legal for the hosts of an observation `[N, A]`; an illegal one would have no effect."""
        slots, values = (arrays[name].astype(np.bool_) for name in ("legal_slots", "legal_values"))
        return legal_actions(self._rows_AH, slots, values, self._layout.head_sizes)

    def _name(self, row: npt.NDArray[np.int64]) -> str:
        op = Op(row[Head.OP])
        if op == Op.WAIT:
            return "wait"
        words, same_A = [op.name.lower(), self._layout.slot_names[row[Head.SLOT]]], self._rows_AH[:, Head.OP] == op
        for head in PARAMETER_HEADS:
            if head == Head.BLUEPRINT and RELEVANT[op, head]:
                words.append(self._layout.blueprint_names[row[head]])
            elif len({*self._rows_AH[same_A, head].tolist()}) > 1:
                words.append(f"{head.name.lower()}={list(VALUES[head])[row[head]]}")
        return " ".join(words)
