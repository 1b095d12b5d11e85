"""The terms of rewards, with unit, formula and source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from esper.lifecycle.stages import FloatArray, Op, SlotState
from esper.measure.plans import Plan
from esper.reward import terms
from esper.reward.signals import StepSignals

Pay = Callable[[StepSignals], FloatArray]
"""Function from signals to the unweighted term `[N]`; a `Memory` if it keeps state."""

OURS = "ours"
SHAPING = "shaping"
"""Name of the component that sums all potentials of a mode."""


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a reward."""

    name: str
    """Name of its component, as in the metric `reward/rent`."""
    unit: str
    """Unit before the weight, which converts it into points; 1 for a pure number."""
    formula: str
    """Formula in symbols, for docs/rewards.md."""
    make: Callable[[Any, float], Pay] | None = None
    """Function from the config of a mode and the agent's discount to the term; None for a potential."""
    sign: int = 1
    """Sign of the term: -1 for costs."""
    source: str = OURS
    """Reference of the term."""
    needs: frozenset[Plan] = frozenset()
    """Counterfactuals to measure after every step."""
    potential: Callable[[FloatArray, SlotState], FloatArray] | None = None
    """Part of the shaping potential, paid on entering a state and deducted on leaving it: a function from host accuracies [%]
    and slot states to `[N]`."""
    reads: tuple[str, ...] = ()
    """Fields of its mode's config that the term reads, besides its weight."""


Pays = Mapping[str, Term]
"""Terms of a mode by the field of their weight, in the order of the sum."""


def _pure(pay: Pay) -> Callable[[Any, float], Pay]:
    return lambda mode, gamma: pay


def _counted(op: Op, name: str) -> Term:
    return Term(name, "1", f"1 where {op.name} was carried out", _pure(partial(terms.operations, op=op)), sign=-1)


def _rent(formula: str, **keys: bool) -> Term:
    return Term(
        "rent",
        "host sizes",
        formula,
        lambda mode, gamma: partial(terms.rent, unit=mode.rent_unit, **keys),
        -1,
        reads=("rent_unit",),
    )


def _potential(unit: str, formula: str, potential: Callable[[FloatArray, SlotState], FloatArray]) -> Term:
    return Term(SHAPING, unit, formula, source="Ng, Harada, Russell 1999", potential=potential)


ACCURACY_POTENTIAL = _potential(
    "pp", "gamma * accuracy' - accuracy; accuracy' is 0 at the end", lambda accuracy_N, state: accuracy_N
)
STAGE_POTENTIAL = _potential(
    "1",
    "gamma * P' - P, with P the sum over slots of the value of their stages; P' is 0 at the end",
    lambda accuracy_N, state: terms.stage_potential(state),
)
ATTRIBUTION = Term(
    "attribution",
    "pp",
    "sum over seeds of c, the accuracy with a seed minus the accuracy without it",
    _pure(terms.attribution),
    source="difference rewards, Wolpert and Tumer 2002",
)
ESCROW = Term(
    "escrow",
    "pp",
    "change, by at most `most`, of each seed's balance towards max(0, minimum of min(c, g) over the last `window` steps); only "
    "fossils keep it",
    lambda mode, gamma: terms.Escrow(mode.window, mode.most),
    reads=("window", "most"),
)
FOSSILIZED = Term("fossilized", "pp", "sum over new fossils of min(c, g)", lambda mode, gamma: terms.Fossilized())
DRIP = Term(
    "drip",
    "pp",
    "sum over fossils of max(0, min(c0, g0)) / max(steps left then, min_steps) * clip(c / c0, -1, 1)",
    lambda mode, gamma: terms.Drip(mode.min_steps),
    reads=("min_steps",),
)
HINDSIGHT = Term(
    "hindsight",
    "pp",
    "sum over new fossils of min(max(0, c), sum over scaffolds of the largest gamma^age * max(0, interaction) so far)",
    lambda mode, gamma: terms.Hindsight(gamma),
    needs=frozenset({Plan.pairs, Plan.solo_on, Plan.all_off}),
)
RENT = _rent("cost of all seeds / cost of the host, every step")
FINAL_RENT = _rent("cost of all seeds / cost of the host, at the end", at_end=True)
FOSSIL_RENT = _rent("cost of the fossils / cost of the host, at the end", fossils=True, at_end=True)
MEAN_RENT = _rent("cost of all seeds / cost of the host / steps of the episode, every step", mean=True)
SHOCK = Term(
    "shock",
    "host sizes",
    "sum over seeds of (alpha' - alpha)^2 * parameters / host parameters",
    _pure(terms.alpha_shock),
    sign=-1,
)
GERMINATE = _counted(Op.GERMINATE, "germinate")
PRUNE = _counted(Op.PRUNE, "prune")
AUTO_PRUNE = Term(
    "auto_prune", "count", "seeds removed by `slots.prune_after` or `slots.prune_below`", _pure(terms.auto_pruned), sign=-1
)
ACTIONS = Term("actions", "1", "1 where anything but WAIT was carried out", _pure(terms.actions), sign=-1)
CONTRIBUTING = Term("contributing", "count", f"fossils with c >= {terms.CONTRIBUTES:g} pp, at the end", _pure(terms.contributing))
LOSS_FALL = Term("loss_fall", "nat", "validation loss - validation loss'", lambda mode, gamma: terms.LossFall())
GAIN = Term("gain", "pp", "committed accuracy - accuracy of the newborn host, at the end", lambda mode, gamma: terms.Gain())
ONLINE = Term("online", "pp", "validation accuracy / steps of the episode, every step", _pure(terms.online))
TERMINAL = Term("terminal", "pp", "committed accuracy, at the end", _pure(terms.terminal))
