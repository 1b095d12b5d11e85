"""The decision log: a record of every decision of a controller in an episode."""

# N hosts

from typing import Any

import numpy as np

from esper.buffer.transition import Transition
from esper.env.actions import RELEVANT, VALUES, EnvSpec, Head, Op


class DecisionLog:
    """Turns transitions into records of all decisions except waiting.

    The id of a decision is `update/host/step`, the same in every replay. The id of a seed is that of the decision that germinated
    it; every later decision about the seed carries it.
    """

    def __init__(self, layout: EnvSpec, update: int) -> None:
        """
        Args:
            layout: sizes and names of the environment.
            update: number of the update that learns from the episode, at least 1.
        """
        self._layout, self._update = layout, update
        self._seeds: dict[tuple[int, int], str] = {}
        self._step = 0
        self.records: list[dict[str, Any]] = []
        """Records so far: `id`, `seed`, `op` and its arguments by name, `refused` (true if illegal), `accuracy` of the host
        before the step [pp], `contribution` of the seed if measured [pp], `reward` of the step [points], and, if available,
        `probability` of the whole action and the critic's `value` [points]."""

    def add(self, step: Transition) -> None:
        """Add one step of all hosts."""
        for host in np.flatnonzero(step.decision.action[:, Head.OP] != Op.WAIT).tolist():
            self.records.append(self._record(host, step))
        self._step += 1

    def _record(self, host: int, step: Transition) -> dict[str, Any]:
        decision, signals = step.decision, step.signals
        action = decision.action[host]
        op, slot = Op(action[Head.OP]), int(action[Head.SLOT])
        name = f"{self._update}/{host}/{self._step}"
        if op is Op.GERMINATE and (signals is None or signals.op_N[host] == op):
            self._seeds[host, slot] = name
        record: dict[str, Any] = {"id": name, "seed": self._seeds.get((host, slot)), "op": op.name.lower()}
        record["slot"] = self._layout.slot_names[slot]
        if RELEVANT[op, Head.BLUEPRINT]:
            record["blueprint"] = self._layout.blueprint_names[action[Head.BLUEPRINT]]
        record |= {head.name.lower(): list(values)[action[head]] for head, values in VALUES.items() if RELEVANT[op, head]}
        if signals is not None:
            record |= {"refused": bool(signals.op_N[host] != op), "accuracy": round(float(signals.accuracy_before_N[host]), 4)}
            if op is not Op.GERMINATE and signals.before.measured[host, slot]:
                record["contribution"] = round(float(signals.before.contribution[host, slot]), 4)
        record["reward"] = round(float(step.reward_N[host]), 4)
        if decision.log_prob is not None:
            record["probability"] = round(float(np.exp(decision.log_prob[host])), 6)
        if decision.value is not None:
            record["value"] = round(float(decision.value[host]), 4)
        return record
