"""The transformer host: a small decoder that predicts the next token at every position."""

# B batch, T positions, D width

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from esper.fusion.layers import CausalAttention, Positions
from esper.fusion.layout import Layout
from esper.hosts.base import Host, SlotSpec, check_lesioned

SURFACES = ("attention", "mlp")
"""Where slots may lie in a layer: the row of a slot's name is the index here."""


@dataclass(kw_only=True, slots=True)
class TransformerConfig:
    """Token and learnt position embedding, layers of causal attention and an MLP, each behind a layer norm, and a linear head."""

    layers: int = 2
    """Number of layers, at least 1. More is stronger and costs in proportion."""
    width: int = 32
    """D, length of a position's vector, at least 1 and a multiple of `heads`. Larger is stronger and costs its square."""
    heads: int = 4
    """Attention heads of each layer, at least 1."""
    context: int = 64
    """Longest sequence [positions], at least 1."""
    slot_layers: list[int] = field(default_factory=lambda: list[int]())
    """Layers with slots, counted from 0, such as [0,3]; empty means every layer."""
    surfaces: list[str] = field(default_factory=lambda: list(SURFACES))
    """Where in those layers the slots lie: after `attention` (row 0 of the names), after the `mlp` (row 1), or both."""

    tied: bool = False
    """Does the head use the token table as its weights? That saves vocabulary times width parameters, and they serve two ends."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.host.{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(
                f"task.host.width={self.width} must be a multiple of task.host.heads={self.heads}: "
                f"use {math.ceil(self.width / self.heads) * self.heads}"
            )
        if len(set(self.slot_layers)) < len(self.slot_layers) or set(self.slot_layers) - set(range(self.layers)):
            raise ValueError(
                f"task.host.slot_layers must name layers from 0 to {self.layers - 1}, each once, "
                f"got [{','.join(map(str, self.slot_layers))}]"
            )
        if not self.surfaces or len(set(self.surfaces)) < len(self.surfaces) or set(self.surfaces) - set(SURFACES):
            got = ",".join(self.surfaces)
            raise ValueError(f"task.host.surfaces must name one or both of {', '.join(SURFACES)}, each once, got [{got}]")

    def build(self, vocab: int, lesioned: Sequence[bool]) -> "TransformerHost":
        """A new host with random first weights from torch's global stream.

        Args:
            vocab: number of different tokens.
            lesioned: per layer; True leaves each position only itself to attend to, so that it sees nothing of what was before.
        """
        return TransformerHost(self, vocab, lesioned)


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class TransformerHost(Host):
    """Tokens `[B, T]` to logits of each next token `[B, T, vocab]`.

    First weights as in GPT-2: normal with standard deviation 0.02, and 0.02 / sqrt(2 * layers) for the maps that write to the
    residual stream, so that its size does not grow with depth; the first loss is the logarithm of the vocabulary, with a head of
    its own or a tied one.
    """

    def __init__(self, config: TransformerConfig, vocab: int, lesioned: Sequence[bool]) -> None:
        check_lesioned(lesioned, config.layers, "layers")
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
