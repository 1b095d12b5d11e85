"""Attribution: contributions, interactions and Shapley values of seeds, as pure functions of measured settings.

A setting is a coalition: the set of seeds that are on, each at the alpha it has, written as bits (bit s is slot s). f is the
accuracy under it. Every effect here is a contrast: a weighted sum of the accuracies of coalitions. So its error follows from the
covariance of the accuracies, which are all measured on the same samples: they are strongly correlated, and adding their variances
as if they were independent would be wrong by a large factor in most contrasts.

    contribution  c_i  = f(all) - f(all but i)
    interaction   I_ij = f(ij) - f(i) - f(j) + f(none)         effect of two together beyond the sum of both alone
    Shapley       phi_i, the mean over all orders of f(those before i and i) - f(those before i)

The Shapley values of a host add up to f(all) - f(none) (Shapley 1953). Exact values need all 2^n coalitions; above `FULL` seeds
they are estimated from random orders, each with its reverse (Mitchell et al. 2022, arXiv:2104.12199).
"""

# V settings, C contrasts, O pairs of orders

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial

import numpy as np
import numpy.typing as npt

FULL = 4
"""Maximum number of seeds for exact Shapley values."""

Contrast = dict[int, float]
"""Weight of each coalition."""
Float64 = npt.NDArray[np.float64]


def members(coalition: int) -> tuple[int, ...]:
    """Return the slots of a coalition, ascending."""
    return tuple(slot for slot in range(coalition.bit_length()) if coalition >> slot & 1)


def subsets(coalition: int) -> list[int]:
    """Return every subset of a coalition, by size."""
    slots = members(coalition)
    return [sum(1 << slot for slot in some) for count in range(len(slots) + 1) for some in combinations(slots, count)]


def interaction(a: int, b: int, base: int = 0) -> Contrast:
    """Return the contrast I_ab of two slots, with the seeds of `base` on throughout."""
    return {base | 1 << a | 1 << b: 1.0, base | 1 << a: -1.0, base | 1 << b: -1.0, base: 1.0}


def shapley(players: int) -> list[Contrast]:
    """Return the contrasts of the exact Shapley values of `players`, from all subsets.

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (f(S + i) - f(S))
    """
    slots, contrasts = members(players), list[Contrast]()
    for slot in slots:
        contrast: Contrast = {}
        for rest in subsets(players & ~(1 << slot)):
            size = rest.bit_count()
            weight = factorial(size) * factorial(len(slots) - size - 1) / factorial(len(slots))
            contrast[rest | 1 << slot], contrast[rest] = weight, -weight
        contrasts.append(contrast)
    return contrasts


def prefixes(order: Sequence[int]) -> list[int]:
    """Return the coalitions of slots that join in this order: none, the first, the first two, up to all."""
    found = [0]
    for slot in order:
        found.append(found[-1] | 1 << slot)
    return found


def joining(order: Sequence[int]) -> list[Contrast]:
    """Return the contrast of each slot that joins in this order, in ascending order of the slots."""
    along = prefixes(order)
    added = {slot: {along[rank + 1]: 1.0, along[rank]: -1.0} for rank, slot in enumerate(order)}
    return [added[slot] for slot in sorted(order)]


def mean(contrasts: Sequence[Contrast]) -> Contrast:
    """Return the contrast of the mean effect."""
    total: Contrast = {}
    for contrast in contrasts:
        for coalition, weight in contrast.items():
            total[coalition] = total.get(coalition, 0.0) + weight / len(contrasts)
    return total


def draw_orders(players: int, pairs: int, generator: np.random.Generator) -> list[tuple[int, ...]]:
    """Draw random orders of the players, each followed by its reverse."""
    orders: list[tuple[int, ...]] = []
    for _ in range(pairs):
        order = tuple(int(slot) for slot in generator.permutation(members(players)))
        orders += [order, order[::-1]]
    return orders


def weigh(contrasts: Sequence[Contrast], place: Mapping[int, int], settings: int) -> Float64:
    """Return contrasts as rows of weights `[C, V]` of V settings."""
    weight_CV = np.zeros((len(contrasts), settings))
    for row, contrast in zip(weight_CV, contrasts, strict=True):
        for coalition, weight in contrast.items():
            row[place[coalition]] += weight
    return weight_CV


def effects(
    contrasts: Sequence[Contrast], place: Mapping[int, int], accuracy_V: Float64, covariance_VV: Float64
) -> tuple[Float64, Float64]:
    """Return the effects of contrasts and their standard errors, both `[C]` [pp].

    Args:
        place: index of the setting of each coalition.
        accuracy_V: measured accuracies [%].
        covariance_VV: their covariance [pp^2].

    Raises:
        KeyError: a coalition was not measured.
    """
    assert covariance_VV.shape == (len(accuracy_V), len(accuracy_V))
    weight_CV = weigh(contrasts, place, len(accuracy_V))
    variance_C = np.einsum("cv,vw,cw->c", weight_CV, covariance_VV, weight_CV)
    return weight_CV @ accuracy_V, np.sqrt(np.maximum(variance_C, 0.0))


def sampled_shapley(
    orders: Sequence[Sequence[int]], place: Mapping[int, int], accuracy_V: Float64, covariance_VV: Float64
) -> tuple[Float64, Float64]:
    """Estimate the Shapley values of the slots, ascending, and their standard errors, both `[players]` [pp].

    A value is the mean over orders of what a slot adds. An order and its reverse are one draw: where one has a slot early, the
    other has it late, so that their errors partly cancel. The standard error has two parts: of the orders drawn (from the spread
    of the pairs) and of the samples that accuracy is measured on.

    Args:
        orders: from `draw_orders`, at least two pairs.
        place: index of the setting of each coalition; all prefixes of all orders are among them.
        accuracy_V: measured accuracies [%].
        covariance_VV: their covariance [pp^2].
    """
    assert len(orders) >= 4
    assert len(orders) % 2 == 0
    pairs = [
        [mean(both) for both in zip(joining(one), joining(other), strict=True)]
        for one, other in zip(orders[::2], orders[1::2], strict=True)
    ]
    drawn_OC = np.stack([weigh(pair, place, len(accuracy_V)) @ accuracy_V for pair in pairs])
    value_C, sample_C = effects([mean(each) for each in zip(*pairs, strict=True)], place, accuracy_V, covariance_VV)
    return value_C, np.hypot(sample_C, drawn_OC.std(axis=0, ddof=1) / np.sqrt(len(pairs)))
