"""Attention seeds in a model that caches keys and values: they do not see the positions in the cache."""

import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch import nn

from esper.seeds.blueprints.attention import SelfAttention


def cached_positions(arguments: Iterable[Any]) -> int:
    """Return the number of positions in the cache of Hugging Face among the arguments of a layer, those of its input included;
    0 without a cache."""
    for one in arguments:
        with suppress(Exception):  # of other caches, and of arguments whose attributes are not looked up as usual
            if hasattr(one, "get_seq_length"):
                return int(one.get_seq_length())
    return 0


def warn_of_cache(slot: str, seed: nn.Module) -> None:
    """Warn if a seed that gets the positions after those in a cache has attention."""
    if any(isinstance(one, SelfAttention) for one in seed.modules()):
        warnings.warn(
            f"slot {slot}: an attention seed got the positions after those in a cache, and does not see the earlier ones: call "
            "generate, or the model, with use_cache=False",
            stacklevel=2,
        )
