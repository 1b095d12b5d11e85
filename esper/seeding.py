"""Randomness has names: every random number comes from a stream keyed by the root seed, a purpose and where it is used.

Two streams with different names are independent, and a stream does not depend on how many others exist. So adding hosts,
shards or devices changes no host's numbers, arms of a comparison share all that they do not compare, and a run that was
stopped goes on exactly: nothing has to be remembered but the names.
"""

import hashlib

import numpy as np
import torch


def stream_seed(root: int, purpose: str, *keys: int | str) -> int:
    """63 bits that depend on the root seed, the purpose and each key, the same in every process and on every machine.

    The bits are the first 63 of SHA-256 over the names joined by "|".

    Args:
        root: root seed of the run.
        purpose: what the numbers are for, such as "host_init" or "data_order".
        keys: where they are used, such as split, episode and host.
    """
    name = "|".join(str(part) for part in (root, purpose, *keys))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def stream(root: int, purpose: str, *keys: int | str) -> np.random.Generator:
    """A NumPy generator of the named stream."""
    return np.random.Generator(np.random.Philox(key=stream_seed(root, purpose, *keys)))


def torch_stream(root: int, purpose: str, *keys: int | str) -> torch.Generator:
    """A torch generator (CPU) of the named stream."""
    return torch.Generator().manual_seed(stream_seed(root, purpose, *keys))
