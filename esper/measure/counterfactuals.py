"""Counterfactuals: the settings of the alphas that a validation measures, and the effects of seeds computed from them."""

# N hosts, M members (hosts, in order), S slots, V variants

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import TAKES_PART, BoolArray, FloatArray, SlotState, Stage
from esper.measure import attribution
from esper.measure.plans import Plan, coalitions
from esper.seeding import stream

MOST_SUBSETS = 8
"""Maximum number of seeds for the plan `factorial`: 256 settings, tens of times the cost of a plain validation."""


@dataclass(kw_only=True, slots=True)
class CounterfactualsConfig:
    """Measurements beyond each host as it is and with each seed off; docs/counterfactuals.md lists plans and costs."""

    each_step: list[Plan] = field(default_factory=lambda: list[Plan]())
    """Plans measured after every host epoch, such as [pairs], in addition to those that the reward needs. More: slower
    validation."""
    at_end: list[Plan] = field(default_factory=lambda: list[Plan]())
    """Plans measured at the end of an episode, such as [shapley], in addition to `committed`, which is always measured."""
    orders: int = 8
    """Pairs of random orders for the Shapley values of a host with more than four seeds, >= 2. More: smaller errors, and
    proportionally more settings."""

    def __post_init__(self) -> None:
        if self.orders < 2:
            raise ValueError(f"counterfactuals.orders must be at least 2, got {self.orders}: one pair gives no error")

    def check_hosts(self, seeds: int) -> None:
        """Raise ValueError if hosts with this many seeds would be measured in too many settings."""
        for name in ("each_step", "at_end"):
            if Plan.factorial in getattr(self, name) and seeds > MOST_SUBSETS:
                raise ValueError(
                    f"counterfactuals.{name}=[factorial] measures 2^{seeds} settings of a host with {seeds} seeds: "
                    f"ask for shapley, or set slots.max_seeds to at most {MOST_SUBSETS}"
                )


class HostSettings(NamedTuple):
    """The settings of one host."""

    place: Mapping[int, int]
    """Variant of each coalition."""
    inside: int
    """Seeds that take part at an alpha above 0, as a coalition."""
    fossils: int
    """Fossils among them."""
    orders: Sequence[tuple[int, ...]]
    """Orders that the Shapley values are estimated from; empty if they are exact or not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a validation."""

    plans: frozenset[Plan]
    alpha_VNS: FloatArray
    """Blend weights; variant 0 is the current one. Hosts with fewer settings than others repeat it."""
    hosts: Sequence[HostSettings]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The results of a validation, for each variant of the alphas."""

    accuracy_VM: npt.NDArray[np.float32]
    """Accuracy, or R2 of numbers [%]."""
    loss_VM: npt.NDArray[np.float32]
    """Mean loss; see `growth.objective`."""
    error_VM: npt.NDArray[np.float32]
    """Standard error of the accuracy difference to variant 0, paired by sample [pp]."""
    covariance_VVM: npt.NDArray[np.float64]
    """Covariance of the accuracies on the same samples [pp^2], from which the error of any contrast follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedEffects:
    """The effects of seeds from one validation; NaN where not measured in this step, or where there is no such seed."""

    contribution_NS: FloatArray
    """f(all) - f(all but this seed), fossils included [pp]."""
    contribution_error_NS: FloatArray
    """Standard error of the contributions, from the validation samples [pp]."""
    all_off_accuracy_N: FloatArray
    """Accuracy with all live seeds off; without an active live seed, the accuracy of the host as it is [%]."""
    committed_accuracy_N: FloatArray
    """The same, but NaN in steps without the plan `committed`; the last step always has it [%]."""
    solo_NS: FloatArray
    """f(this live seed alone beside the fossils) - f(the fossils alone) [pp]."""
    solo_error_NS: FloatArray
    """Standard error of the same [pp]."""
    interaction_NSS: FloatArray
    """Interaction of each pair of live seeds besides the fossils; 0 for a seed with itself [pp]."""
    interaction_error_NSS: FloatArray
    """Standard error of the interactions [pp]."""
    shapley_NS: FloatArray
    """Shapley values of all seeds, fossils included, which add up to f(all) - f(the bare host) [pp]."""
    shapley_error_NS: FloatArray
    """Standard error of the Shapley values, from the validation samples, and from random orders where there are any [pp]."""

    @classmethod
    def unknown(cls, hosts: int, slots: int) -> "SeedEffects":
        """Return values that are not measured yet: NaN everywhere."""
        shapes = {entry.name: (hosts, *[slots] * entry.name.rpartition("_")[2].count("S")) for entry in fields(cls)}
        return cls(**{name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()})


def is_in(state: SlotState) -> BoolArray:
    """Return the seeds that take part at an alpha above 0 `[N, S]`."""
    return state.within(*TAKES_PART) & (state.alpha > 0)


def settings(state: SlotState, plans: frozenset[Plan], *, name: tuple[int | str, ...] = (0,), pairs: int = 8) -> Settings:
    """Return the settings of these plans and of leave-one-out, without duplicates per host.

    Args:
        name: root and keys of the stream for random orders.
        pairs: pairs of orders for a host with many seeds.
    """
    inside_NS = is_in(state)
    fossil_NS = inside_NS & state.within(Stage.FOSSILIZED)
    wanted, hosts = sorted(plans | {Plan.leave_one_out}), list[HostSettings]()
    for inside, fossils in zip(map(_coalition, inside_NS), map(_coalition, fossil_NS), strict=True):
        orders: list[tuple[int, ...]] = []
        if Plan.shapley in plans and Plan.factorial not in plans and inside.bit_count() > attribution.FULL:
            root, *keys = name
            orders = attribution.draw_orders(inside, pairs, stream(int(root), "shapley", *keys, len(hosts)))
        every = [inside, *(one for plan in wanted for one in coalitions(plan, inside, fossils, orders))]
        place = {coalition: variant for variant, coalition in enumerate(dict.fromkeys(every))}
        hosts.append(HostSettings(place, inside, fossils, orders))
    alpha_VNS = np.repeat(state.alpha[None], max((len(host.place) for host in hosts), default=1), axis=0)
    for index, host in enumerate(hosts):
        for coalition, variant in host.place.items():
            alpha_VNS[variant, index, list(attribution.members(host.inside & ~coalition))] = 0.0
    return Settings(plans=plans, alpha_VNS=alpha_VNS, hosts=hosts)


def _coalition(on_S: BoolArray) -> int:
    """Return slots as a bit mask, a Python integer, so that there may be more than 64."""
    return sum(1 << slot for slot in np.flatnonzero(on_S).tolist())


def seed_effects(chosen: Settings, measured: Measurement) -> SeedEffects:
    """Compute the effects of seeds from the accuracies under these settings."""
    plans, found = chosen.plans, SeedEffects.unknown(*chosen.alpha_VNS.shape[1:])
    for index, (place, inside, fossils, orders) in enumerate(chosen.hosts):
        accuracy_V, error_V = measured.accuracy_VM[:, index], measured.error_VM[:, index]
        measured_V = (place, accuracy_V.astype(np.float64), measured.covariance_VVM[:, :, index])
        present, live = attribution.members(inside), attribution.members(inside & ~fossils)
        off = [place[inside & ~(1 << slot)] for slot in present]
        found.contribution_NS[index, present] = accuracy_V[0] - accuracy_V[off]
        found.contribution_error_NS[index, present] = error_V[off]
        if plans & _GIVES_ALL_OFF:
            found.all_off_accuracy_N[index] = accuracy_V[place[fossils]]
        if Plan.committed in plans:
            found.committed_accuracy_N[index] = accuracy_V[place[fossils]]
        if plans & _GIVES_SOLO:
            alone = [{fossils | 1 << slot: 1.0, fossils: -1.0} for slot in live]
            found.solo_NS[index, live], found.solo_error_NS[index, live] = attribution.effects(alone, *measured_V)
        if plans & _GIVES_PAIRS:
            found.interaction_NSS[index, live, live] = found.interaction_error_NSS[index, live, live] = 0.0
            for a, b in combinations(live, 2):
                value_C, error_C = attribution.effects([attribution.interaction(a, b, fossils)], *measured_V)
                found.interaction_NSS[index, (a, b), (b, a)] = value_C
                found.interaction_error_NSS[index, (a, b), (b, a)] = error_C
        if plans & _GIVES_SHAPLEY:
            if orders:
                value_C, error_C = attribution.sampled_shapley(orders, *measured_V)
            else:
                value_C, error_C = attribution.effects(attribution.shapley(inside), *measured_V)
            found.shapley_NS[index, present], found.shapley_error_NS[index, present] = value_C, error_C
    return found


_GIVES_PAIRS = {Plan.pairs, Plan.factorial}
_GIVES_SOLO = {Plan.solo_on, *_GIVES_PAIRS}
_GIVES_ALL_OFF = {Plan.all_off, Plan.committed, *_GIVES_SOLO}
_GIVES_SHAPLEY = {Plan.shapley, Plan.factorial}
