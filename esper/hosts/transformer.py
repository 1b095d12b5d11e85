"""The transformer host: a small decoder that predicts the next token at each position."""

# B batch, T positions, D width

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from esper.fusion.layers import CausalAttention, Positions
from esper.fusion.layout import Layout
from esper.hosts.base import Host, HostConfig, SlotSpec, check_surfaces
from esper.ranges import check_ranges

SURFACES = ("attention", "mlp")
"""Places of the slots in a layer; the row in a slot's name is the index in this tuple."""


@dataclass(kw_only=True, slots=True)
class TransformerConfig(HostConfig):
    """A decoder host for text: token and position embeddings, pre-norm layers of causal attention and an MLP, a linear head.

    In a lesioned layer each position attends only to itself.
    """

    samples = (Layout.SEQUENCES,)
    part = "layer (host.layers)"
    size_key = "width"

    layers: int = 2
    """Number of layers, at least 1. Higher: a stronger host, at proportional cost."""
    width: int = 32
    """D, length of the vector at each position, at least 1 and a multiple of `heads`. Higher: a stronger host, at quadratic
    cost."""
    heads: int = 2
    """Attention heads of each layer, at least 1."""
    context: int = 32
    """Sequence length [positions], at least 1. A text is cut into blocks of this length."""
    slot_layers: list[int] = field(default_factory=lambda: list[int]())
    """Layers with slots, counted from 0, as in [0,3]. Empty: all layers."""
    surfaces: list[str] = field(default_factory=lambda: list(SURFACES))
    """Places of the slots in a layer: after the `attention` (row 0 in slot names), after the `mlp` (row 1), or both."""
    tied: bool = False
    """If true, the head shares its weights with the token embedding, which saves vocabulary times width parameters."""

    def __post_init__(self) -> None:
        check_ranges("host", self, {"[1, 1000]": ["layers"], "[1, 1e6]": ["width", "heads", "context"]})
        if self.width % self.heads:
            raise ValueError(
                f"host.width={self.width} must be a multiple of host.heads={self.heads}: "
                f"use {math.ceil(self.width / self.heads) * self.heads}"
            )
        if len(set(self.slot_layers)) < len(self.slot_layers) or set(self.slot_layers) - set(range(self.layers)):
            raise ValueError(
                f"host.slot_layers must name layers from 0 to {self.layers - 1}, each once, "
                f"got [{','.join(map(str, self.slot_layers))}]"
            )
        check_surfaces(self.surfaces, SURFACES)

    def num_parts(self) -> int:
        return self.layers

    def sequence_length(self) -> int:
        return self.context

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Sequence[bool]) -> "TransformerHost":
        return TransformerHost(self, num_classes, lesioned)


class Residual(nn.Module):
    """A residual connection: x + inner(x)."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class TransformerHost(Host):
    """A decoder from tokens `[B, T]` to logits of each next token `[B, T, vocab]`.

    Initial weights follow GPT-2: normal with standard deviation 0.02, and 0.02 / sqrt(2 * layers) for the maps that write to the
    residual stream, so that its scale does not grow with depth. The initial loss is log(vocab), with a tied head or not.
    """

    def __init__(self, config: TransformerConfig, vocab: int, lesioned: Sequence[bool]) -> None:
        d, slots, segments = config.width, list[SlotSpec](), list[nn.Module]()
        table = nn.Embedding(vocab, d)
        parts: list[nn.Module] = [table, Positions(config.context, d)]
        for layer in range(config.layers):
            attend = (nn.Linear(d, 3 * d), CausalAttention(config.heads, lesioned=lesioned[layer]), nn.Linear(d, d))
            think = (nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
            for row, inner in enumerate((attend, think)):
                parts.append(Residual(nn.LayerNorm(d), *inner))
                if SURFACES[row] in config.surfaces and layer in (config.slot_layers or range(config.layers)):
                    slots.append(SlotSpec(f"r{row}c{layer}", d, Layout.SEQUENCES))
                    segments.append(nn.Sequential(*parts))
                    parts = []
        head = nn.Linear(d, vocab, bias=False)
        if config.tied:
            head.weight = table.weight
        segments.append(nn.Sequential(*parts, nn.LayerNorm(d), head))
        super().__init__(segments, slots)
        self._initialise(config.layers)

    def _initialise(self, layers: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | Positions):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, Residual):
                last = module.inner[-1]
                assert isinstance(last, nn.Linear)
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * layers))
