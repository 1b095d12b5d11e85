"""Attention seeds in a model that caches keys and values: they see the last position alone."""

import warnings

from torch import nn

from esper.seeds.blueprints.attention import SelfAttention


def warn_of_cache(slot: str, seed: nn.Module) -> None:
    """Warn if a seed that gets single positions one after another has attention."""
    if any(isinstance(one, SelfAttention) for one in seed.modules()):
        warnings.warn(
            f"slot {slot}: an attention seed got single positions, as a model with a cache passes them, and does not see "
            "earlier ones: call generate with use_cache=False",
            stacklevel=2,
        )
