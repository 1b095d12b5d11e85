"""Named random streams: every random number comes from a stream keyed by the root seed, a purpose and its place of use.

Streams with different names are independent, and none depends on how many others exist. Hence adding hosts, shards or devices
changes no host's numbers, arms of a comparison share all numbers that they do not affect, and a resumed run continues exactly
without saved generator states.
"""

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_global_stream = RLock()
"""Held by the thread that uses torch's global stream, which all threads share."""


def _renew() -> None:
    """Replace the lock in a forked process, which lacks the thread that may hold it."""
    global _global_stream
    _global_stream = RLock()


os.register_at_fork(after_in_child=_renew)


def stream_seed(root: int, purpose: str, *keys: int | str) -> int:
    """Return the first 63 bits of SHA-256 over the names joined by "|", equal in every process and on every machine.

    Args:
        root: root seed of the run.
        purpose: use of the numbers, such as "host_init" or "data_order".
        keys: place of use, such as split, episode and host.
    """
    name = "|".join(str(part) for part in (root, purpose, *keys))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def stream(root: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """Return a NumPy generator of the named stream."""
    return np.random.Generator(np.random.Philox(key=stream_seed(root, purpose, *keys)))


def torch_stream(root: int, purpose: str, *keys: int | str) -> torch.Generator:
    """Return a CPU torch generator of the named stream."""
    return torch.Generator().manual_seed(stream_seed(root, purpose, *keys))


@contextmanager
def borrowed_stream(generator: torch.Generator | None = None) -> Generator[None]:
    """Leave torch's global random stream, from which constructors of layers draw, as it was before a `with` block.

    Args:
        generator: source of the numbers within the block; by default they are of no account.
    """
    with _global_stream, torch.random.fork_rng(devices=[]):
        if generator is not None:
            torch.random.set_rng_state(generator.get_state())
        yield
