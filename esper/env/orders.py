"""In which order hosts see their training samples."""

# N hosts, P samples of a pool, I samples of an epoch

from collections.abc import Callable

import numpy as np
import numpy.typing as npt


def walk(
    pool_P: npt.NDArray[np.int64], start: int, count: int, pass_stream: Callable[[int], np.random.Generator]
) -> npt.NDArray[np.int64]:
    """`count` steps, from `start` on, of an endless walk: pass after pass through the pool, each in an order of its own.

    Nothing has to be remembered between epochs, since the stream of each pass is known by its number.
    """
    size = len(pool_P)
    first, last = start // size, (start + count - 1) // size
    passes = [pass_stream(number).permutation(size) for number in range(first, last + 1)]
    return pool_P[np.concatenate(passes)[start - first * size :][:count]]
