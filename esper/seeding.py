"""Named random streams: every random number comes from a stream keyed by the root seed, a purpose and its place of use.

Streams with different names are independent, and none depends on how many others exist. Hence adding hosts, shards or devices
changes no host's numbers, arms of a comparison share all numbers that they do not affect, and a resumed run continues exactly
without saved generator states.
"""

import hashlib

import numpy as np
import torch


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
