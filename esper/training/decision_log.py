"""The decision log: a record of every decision of a controller in an episode."""

# N hosts

from collections.abc import Sequence
from typing import Any

import numpy as np

from esper.buffer.transition import Transition
from esper.env.actions import RELEVANT, VALUES, Head, Op
from esper.env.spec import EnvSpec
from esper.lifecycle.stages import OCCUPIED


def decisions(layout: EnvSpec, update: int, steps: Sequence[Transition]) -> list[dict[str, Any]]:
    """Return the records of all decisions in an episode except waiting.

    The id of a decision is `update/host/step`, the same in every replay. The id of a seed is that of the decision that germinated
    it; every later decision about the seed carries it.

    Args:
        layout: sizes and names of the environment.
        update: number of the update that learns from the episode, at least 1.
        steps: the transitions of the episode so far.

    Returns:
        For each decision `id`, `seed`, `op` and its arguments by name, `refused` (true if illegal), `accuracy` of the host before
        the step [%], `contribution` of the seed if measured [pp], `reward` of the step [points], and, if available,
        `probability` of the whole action and the critic's `value` [points].
    """
    records, seeds = list[dict[str, Any]](), dict[tuple[int, int], str]()
    for number, step in enumerate(steps):
        action_NH, signals = step.decision.action, step.signals
        for host in np.flatnonzero(action_NH[:, Head.OP] != Op.WAIT).tolist():
            op, slot = action_NH[host, Head.OP], int(action_NH[host, Head.SLOT])
            name = f"{update}/{host}/{number}"
            if op == Op.GERMINATE and (signals is None or signals.op_N[host] == op):
                seeds[host, slot] = name
            elif signals is not None and not signals.before.within(*OCCUPIED)[host, slot]:
                seeds.pop((host, slot), None)
            records.append({"id": name, "seed": seeds.get((host, slot))} | _record(layout, host, step))
    return records


def _record(layout: EnvSpec, host: int, step: Transition) -> dict[str, Any]:
    decision, signals = step.decision, step.signals
    action = decision.action[host]
    op, slot = Op(action[Head.OP]), int(action[Head.SLOT])
    record: dict[str, Any] = {"op": op.name.lower(), "slot": layout.slot_names[slot]}
    if RELEVANT[op, Head.BLUEPRINT]:
        record["blueprint"] = layout.blueprint_names[action[Head.BLUEPRINT]]
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
