"""Which settings of the alphas a validation measures: what is, and what would be without each seed."""

# N hosts, S slots, V variants

import numpy as np
import numpy.typing as npt

from esper.population.lifecycle import SlotState, Stage


def variants(
    state: SlotState, in_NS: npt.NDArray[np.bool_], *, committed: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Leave-one-out settings: variant 0 is real, and in variant k each host misses the k-th of its own seeds.

    Hosts with fewer seeds than k repeat the real setting there, so V is one more than the most seeds that a host has, and not one
    more than the number of slots.

    Args:
        in_NS: seeds that take part at an alpha above 0.
        committed: append a variant with the fossils alone.

    Returns:
        Alphas `[V, N, S]`, and for each slot the variant in which its seed is off `[N, S]`, 0 where there is none.
    """
    rank_NS = np.cumsum(in_NS, axis=1) * in_NS
    alpha_VNS = np.repeat(state.alpha[None], 1 + int(rank_NS.max(initial=0)), axis=0)
    host, slot = np.nonzero(in_NS)
    alpha_VNS[rank_NS[host, slot], host, slot] = 0.0
    if committed:
        alone = np.where(state.within(Stage.FOSSILIZED), state.alpha, 0.0).astype(np.float32)
        alpha_VNS = np.concatenate([alpha_VNS, alone[None]])
    return alpha_VNS, rank_NS.astype(np.int64)
