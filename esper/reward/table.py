"""The terms of rewards, with unit, formula and source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import Op, SlotState
from esper.measure.plans import Plan
from esper.reward import terms
from esper.reward.signals import StepSignals

FloatArray = npt.NDArray[np.float32]
Pay = Callable[[StepSignals], FloatArray]
"""Function from signals to the unweighted term `[N]`; a `Memory` if it keeps state."""

OURS = "ours"
SHAPING = "shaping"
"""Name of the component that sums all potentials of a mode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """A term of a reward."""

    name: str
    """Name of its component, as in the metric `reward/rent`."""
    unit: str
    """Unit before the weight, which converts it into points; 1 for a pure number."""
    formula: str
    """In symbols, for docs/rewards.md."""
    make: Callable[[Any, float], Pay]
    """Function from the config of a mode and the agent's discount to the term."""
    sign: int = 1
    """Sign of the term: -1 for costs."""
    source: str = OURS
    """Reference of the term."""
    needs: frozenset[Plan] = frozenset()
    """Counterfactuals to measure after every step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Potential:
    """A part of a shaping potential: the value of a state, paid on entering it and deducted on leaving it."""

    unit: str
    """Unit before the weight."""
    formula: str
    """In symbols, for docs/rewards.md."""
    of: Callable[[FloatArray, SlotState], FloatArray]
    """Function from host accuracies [pp] and slot states to the potential `[N]`."""
    name: str = SHAPING
    """Name of its component."""
    source: str = "Ng, Harada, Russell 1999"
    """Reference of the potential."""
    sign: int = 1
    """Sign of the term; potentials are never costs."""
    needs: frozenset[Plan] = frozenset()
    """Counterfactuals to measure after every step."""


Pays = Mapping[str, Term | Potential]
"""Terms of a mode by the field of their weight, in the order of the sum."""


def _pure(pay: Pay) -> Callable[[Any, float], Pay]:
    return lambda mode, gamma: pay


def _counted(op: Op, name: str) -> Term:
    return Term(
        name=name,
        unit="1",
        sign=-1,
        formula=f"1 where {op.name} was carried out",
        make=lambda mode, gamma: partial(terms.operations, op=op),
    )


ACCURACY_POTENTIAL = Potential(
    unit="pp", formula="gamma * accuracy' - accuracy; accuracy' is 0 at the end", of=lambda accuracy_N, state: accuracy_N
)
STAGE_POTENTIAL = Potential(
    unit="1",
    formula="gamma * P' - P, with P the sum over slots of the value of their stages; P' is 0 at the end",
    of=lambda accuracy_N, state: terms.stage_potential(state),
)
ATTRIBUTION = Term(
    name="attribution",
    unit="pp",
    formula="sum over seeds of c, the accuracy with a seed minus the accuracy without it",
    source="difference rewards, Wolpert and Tumer 2002",
    make=_pure(terms.attribution),
)
ESCROW = Term(
    name="escrow",
    unit="pp",
    formula="change of each seed's balance towards the minimum of min(c, g) over the last steps; only fossils keep it",
    make=lambda mode, gamma: terms.Escrow(mode.window, mode.most),
)
FOSSILIZED = Term(
    name="fossilized",
    unit="pp",
    formula="sum over new fossils of min(c, g)",
    make=lambda mode, gamma: terms.Fossilized(),
)
DRIP = Term(
    name="drip",
    unit="pp",
    formula="sum over fossils of min(c0, g0) / max(steps left then, min_steps) * clip(c / c0, -1, 1)",
    make=lambda mode, gamma: terms.Drip(mode.min_steps),
)
HINDSIGHT = Term(
    name="hindsight",
    unit="pp",
    formula="sum over new fossils of min(c, sum over scaffolds of gamma^age * max(0, interaction))",
    make=lambda mode, gamma: terms.Hindsight(gamma),
    needs=frozenset({Plan.pairs, Plan.solo_on, Plan.all_off}),
)
RENT = Term(
    name="rent",
    unit="host sizes",
    sign=-1,
    formula="cost of all seeds / cost of the host, every step",
    make=lambda mode, gamma: partial(terms.rent, unit=mode.rent_unit),
)
FINAL_RENT = Term(
    name="rent",
    unit="host sizes",
    sign=-1,
    formula="cost of all seeds / cost of the host, at the end",
    make=lambda mode, gamma: partial(terms.final_rent, unit=mode.rent_unit),
)
FOSSIL_RENT = Term(
    name="rent",
    unit="host sizes",
    sign=-1,
    formula="cost of the fossils / cost of the host, at the end",
    make=lambda mode, gamma: partial(terms.final_rent, unit=mode.rent_unit, fossils=True),
)
SHOCK = Term(
    name="shock",
    unit="host sizes",
    sign=-1,
    formula="sum over seeds of (alpha' - alpha)^2 * parameters / host parameters",
    make=_pure(terms.alpha_shock),
)
GERMINATE = _counted(Op.GERMINATE, "germinate")
PRUNE = _counted(Op.PRUNE, "prune")
AUTO_PRUNE = Term(
    name="auto_prune",
    unit="count",
    sign=-1,
    formula="seeds removed by `slots.prune_after` or `slots.prune_below`",
    make=_pure(terms.auto_pruned),
)
ACTIONS = Term(name="actions", unit="1", sign=-1, formula="1 where anything but WAIT was carried out", make=_pure(terms.actions))
CONTRIBUTING = Term(
    name="contributing",
    unit="count",
    formula=f"fossils with c >= {terms.CONTRIBUTES:g} pp, at the end",
    make=_pure(terms.contributing),
)
LOSS_FALL = Term(
    name="loss_fall", unit="nat", formula="validation loss - validation loss'", make=lambda mode, gamma: terms.LossFall()
)
GAIN = Term(
    name="gain",
    unit="pp",
    formula="committed accuracy - accuracy of the newborn host, at the end",
    make=lambda mode, gamma: terms.Gain(),
)
TERMINAL = Term(name="terminal", unit="pp", formula="committed accuracy, at the end", make=lambda mode, gamma: terms.terminal)
