"""Attention seeds: channel attention in images, causal attention in sequences."""

# B batch, H heads, T positions, C channels

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any, ClassVar
from warnings import warn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion.layers import self_attention
from esper.fusion.layout import Layout
from esper.hosts.base import SlotSpec
from esper.notices import UserNotice
from esper.seeds.blueprints.base import BlueprintConfig, born_as_zero

FLEX_WIDTH = 16
"""Minimum width of a head in the kernel of `flex_attention`."""
COMPILATIONS = 64
"""Maximum number of variants of the kernel that are compiled in a process."""


class SqueezeExcite(nn.Module):
    """delta(x) = x * (W2 silu(W1 mean(x)) + b2), the mean over space; W2 and b2 are initialised to zero.

    After squeeze-and-excitation (Hu et al. 2018), which scales each channel by a gate of the whole image. SiLU instead of ReLU:
    with one or two hidden units a ReLU is often inactive for every image, and W1 could never learn.
    """

    any_strides = True

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, hidden, bias=False)
        self.act = nn.SiLU()
        self.up = born_as_zero(nn.Linear(hidden, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.up(self.act(self.down(x.mean((2, 3)))))[:, :, None, None]


class SelfAttention(nn.Module):
    """delta(x) = W attention(norm(x)) + b, multi-head and, by default, causal; W and b are initialised to zero."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = born_as_zero(nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attend(self.qkv(self.norm(x))))

    def attend(self, qkv: Tensor) -> Tensor:
        """Return the attention of queries, keys and values, from `[B, T, 3*C]` to `[B, T, C]`."""
        return self_attention(qkv, self.heads, causal=self.causal)


class WindowAttention(SelfAttention):
    """Self-attention where a position sees itself and the `window - 1` positions before it.

    On a GPU this is `flex_attention`, which skips positions outside the window. Its kernel needs heads at least 16 wide and a C
    compiler, and on other devices torch 2.13 has no backward for it: there `scaled_dot_product_attention` with the window as a
    mask computes the same sum up to rounding.
    """

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__(width, heads)
        self.window = window

    def attend(self, qkv: Tensor) -> Tensor:
        b, t, _ = qkv.shape
        q, k, v = qkv.view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attend = by_flex_or_mask if qkv.is_cuda and q.shape[-1] >= FLEX_WIDTH else by_mask
        return attend(q, k, v, self.window).transpose(1, 2).reshape(b, t, -1)


def by_flex(q_BHTC: Tensor, k_BHTC: Tensor, v_BHTC: Tensor, window: int) -> Tensor:
    """Compute attention within a causal window by `flex_attention`, compiled if the device is a GPU."""
    run = _compiled() if q_BHTC.is_cuda else _flex().flex_attention
    # While it traces the backward, torch waits for the GPU's autograd thread, in which another shard's backward may wait for this
    # trace to end: a deadlock. So the tracing thread runs autograd itself. It compiles the backward at once: later, torch would
    # refuse the compiled function to another shard meanwhile.
    at_once = _backward_at_once() if q_BHTC.is_cuda else nullcontext()
    with _compiling, torch.autograd.set_multithreading_enabled(False), at_once:
        block_mask = _block_mask(q_BHTC.shape[2], window, q_BHTC.device)
        return run(q_BHTC.contiguous(), k_BHTC.contiguous(), v_BHTC.contiguous(), block_mask=block_mask)


def by_flex_or_mask(q_BHTC: Tensor, k_BHTC: Tensor, v_BHTC: Tensor, window: int) -> Tensor:
    """Compute attention by `by_flex`; if its first call fails, because it cannot be compiled, by `by_mask` from then on."""
    global _compiles
    if _compiles is not False:
        try:
            y_BHTC = by_flex(q_BHTC, k_BHTC, v_BHTC, window)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of torch, of Triton, or of the C compiler that it calls
            with _compiling:
                if _compiles:
                    raise
                first, _compiles = _compiles is None, False
            if first:
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                warn(
                    f"blueprint=flex_attention cannot be compiled for this GPU ({reason}): it computes the same with a mask, "
                    "more slowly; install a C compiler such as gcc to change that",
                    UserNotice,
                    stacklevel=2,
                )
        else:
            _compiles = True
            return y_BHTC
    return by_mask(q_BHTC, k_BHTC, v_BHTC, window)


def by_mask(q_BHTC: Tensor, k_BHTC: Tensor, v_BHTC: Tensor, window: int) -> Tensor:
    """Compute attention within a causal window by `scaled_dot_product_attention`."""
    t = torch.arange(q_BHTC.shape[2], device=q_BHTC.device)
    ago = t[:, None] - t
    return F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC, attn_mask=(ago >= 0) & (ago < window))


_compiling = Lock()
"""Held by shards, which run in threads: torch refuses a compiled function in one thread while it traces one in another."""


_compiles: bool | None = None
"""Whether `flex_attention` can be compiled on this machine; None before the first attempt."""


@cache
def _compiled() -> Any:
    # For windows, lengths, precisions and modes; beyond the limit, torch would compute without the kernel, and all scores.
    config: Any = import_module("torch._dynamo.config")
    config.recompile_limit = max(COMPILATIONS, config.recompile_limit)
    return torch.compile(_flex().flex_attention)


def _flex() -> Any:
    """Return torch's module, which imports SymPy, for half a second."""
    return import_module("torch.nn.attention.flex_attention")


def _backward_at_once() -> AbstractContextManager[object]:
    """Return a context in which torch compiles a backward together with its forward, if this version can."""
    config: Any = import_module("torch._functorch.config")
    key = "force_non_lazy_backward_lowering"
    return config.patch({key: True}) if hasattr(config, key) else nullcontext()


@cache
def _block_mask(positions: int, window: int, device: torch.device) -> Any:
    def seen(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < window)

    with torch.inference_mode(False):  # the mask is kept, and may be saved for a backward later
        mask = _flex().create_block_mask(seen, None, None, positions, positions, device=device)
    if device.type == "cuda":  # shards read it on streams of their own, which do not wait for this one
        torch.cuda.current_stream(device).synchronize()
    return mask


def _heads_obstacle(heads: int, slot: SlotSpec) -> str | None:
    if slot.channels % heads == 0:
        return None
    return f"its heads={heads} must divide the width {slot.channels} of {slot.name}"


@dataclass(kw_only=True, slots=True)
class AttentionConfig(BlueprintConfig):
    """Images: a gate per channel from the mean over space. Sequences: attention after a layer norm, causal by default."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.IMAGES, Layout.SEQUENCES)
    sizes: ClassVar[Sequence[str]] = ("reduction", "heads")
    reduction: int = 4
    """Reduction ratio of the gate's hidden layer for images, at least 1. Higher: smaller."""
    heads: int = 4
    """Attention heads for sequences, at least 1; a divisor of the width."""
    causal: bool = True
    """Sequences: a position sees no later ones. False: it sees all, as in BERT and ViT, padding included; hosts that predict the
    next token refuse such seeds."""

    def obstacle(self, slot: SlotSpec) -> str | None:
        wrong = BlueprintConfig.obstacle(self, slot)
        return wrong or (_heads_obstacle(self.heads, slot) if slot.layout is Layout.SEQUENCES else None)

    def branch(self, slot: SlotSpec) -> nn.Module:
        if slot.layout is Layout.IMAGES:
            return SqueezeExcite(slot.channels, max(1, slot.channels // self.reduction))
        return SelfAttention(slot.channels, self.heads, causal=self.causal)


@dataclass(kw_only=True, slots=True)
class FlexAttentionConfig(BlueprintConfig):
    """Causal attention within a window of the last positions, after a layer norm."""

    layouts: ClassVar[tuple[Layout, ...]] = (Layout.SEQUENCES,)
    sizes: ClassVar[Sequence[str]] = ("heads", "window")
    heads: int = 4
    """Attention heads, at least 1; a divisor of the width."""
    window: int = 16
    """Window of each position, itself included [positions], at least 1. Larger: more context, at proportional cost on a GPU."""

    def obstacle(self, slot: SlotSpec) -> str | None:
        return BlueprintConfig.obstacle(self, slot) or _heads_obstacle(self.heads, slot)

    def branch(self, slot: SlotSpec) -> nn.Module:
        return WindowAttention(slot.channels, self.heads, self.window)
