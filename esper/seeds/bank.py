"""Banks of seeds: one bank per (slot, blueprint), with a row for each member; some rows hold a live seed.

Germination in member i writes row i, parameters and optimiser state together; clearing zeroes it. Which rows are live is data, so
the shape of the program is constant, and only live rows are computed.
"""

# M members, L live members, P parameters of one member

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from esper.fusion.batch_last import any_strides, fits_kernels, is_batch_last
from esper.fusion.chain import flat_chain
from esper.fusion.device import on_device
from esper.fusion.fuse import Fleet, flatten_parameters
from esper.fusion.layout import join_members, members_first, split_members
from esper.fusion.sequential import flat_layers, is_hooked
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec
from esper.optimisers.base import OptimiserConfig
from esper.seeding import borrowed_stream
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.gated import Gated
from esper.seeds.informed import inform
from esper.seeds.slot_gradients import SlotGradients

LARGE, WIDE = 2**17, 8
"""Number of feature values of a member in a batch, and number of channels, from which seeds on images are computed one by one, on
a CPU. Lower: seeds of small or narrow features take up to four times as long. Higher: a seed that is alone in its bank, as most
are in a shard of few large hosts, takes two to five times as long."""


class SeedBank:
    """All seeds of one blueprint in one slot; in a gated bank each has a gate."""

    def __init__(
        self,
        blueprint: BlueprintConfig,
        slot: SlotSpec,
        members: int,
        optimiser: OptimiserConfig,
        device: torch.device | str,
        *,
        gated: bool = False,
    ) -> None:
        self.blueprint, self.slot, self.gated = blueprint, slot, gated
        with borrowed_stream():  # its weights are not used: a script that steps an environment keeps its numbers
            branch = seed_module(blueprint, slot, gated=gated)
        if any(True for _ in branch.buffers()):
            raise FusionError(
                f"a branch of {type(blueprint).__name__} has buffers, such as running statistics, which a seed must not have: "
                "use GroupNorm instead of BatchNorm"
            )
        self.fleet = Fleet([branch] * members, device)
        self._any_strides, self._chain = any_strides(branch), flat_layers(self.fleet.module, self.fleet.columns())
        # A linear layer of one unit is a matrix-vector product, which rounds differently alone than in a batch.
        self._alike = not any(isinstance(layer, nn.Linear) and layer.out_features == 1 for layer in branch.modules())
        with torch.no_grad():
            self.fleet.flat.zero_()
        self.optimiser = optimiser.build(self.fleet.flat, optimiser.seeds.warmup_batches)

    def plant(self, member: int, generator: torch.Generator, gradients: SlotGradients | None = None) -> None:
        """Write a newborn seed into a row: initial weights from the generator, and a zero optimiser state.

        Args:
            gradients: slot gradients of this member `[1, n, ...]`, for informed filters. None draws all weights.
        """
        row = newborn(self.blueprint, self.slot, generator, gated=self.gated)
        if gradients is not None:
            row = informed(self.blueprint, self.slot, row, gradients)
        with torch.no_grad():
            self.fleet.flat[member] = on_device(row, self.fleet.flat.device)
        self.optimiser.forget([member])

    def clear(self, members: Sequence[int]) -> None:
        """Zero rows, parameters and optimiser state together."""
        with torch.no_grad():
            for member in members:
                self.fleet.flat[member].zero_()
        self.optimiser.forget(members)

    def delta(
        self, rows_L: Tensor, x: Tensor, learns_L1: Tensor | None = None, *, learns: bool = True, repeats: bool = False
    ) -> Tensor:
        """Return the deltas of the live members' seeds, in layout and dtype of `x`: delta(x), or g(x) * delta(x) with a gate.

        The numbers of a member do not depend on whether others hold a seed, but for the rounding of torch's sums over images, and
        of the matrix products of gates. An ungrouped convolution may round differently from a grouped one, so a single live row
        of several is computed twice, except on a CPU by Esper's own kernels, and in sequences without linear layers of one unit.

        Args:
            rows_L: rows of the bank, in the order of the features.
            x: features of L members.
            learns_L1: bool `[L, 1]`, rows whose parameters get a gradient. None: all.
            learns: if false, no parameter gets a gradient.
            repeats: if true, rows may repeat.

        Raises:
            SeedError: the branch raised an error.
        """
        x, flat, count = self.given(x), self.fleet.flat if learns else self.fleet.flat.detach(), len(rows_L)
        if self._chain and fits_kernels(x) and x.dtype == flat.dtype and not is_hooked(self.fleet.module):
            with seed_errors(self.blueprint, self.slot):
                return flat_chain(x, flat, rows_L, self._chain, learns_L1)
        rows = flat if count == self.fleet.members and not repeats else flat.index_select(0, rows_L)
        if learns_L1 is not None:
            rows = torch.where(learns_L1, rows, rows.detach())
        with seed_errors(self.blueprint, self.slot):
            if self._one_by_one(x, count):
                pieces = zip(rows.split(1), split_members(x, [1] * count), strict=True)
                return join_members([self.fleet.bind(row)(_dense(piece)).to(x.dtype) for row, piece in pieces])
            if count == 1 < self.fleet.members and not (self._alike and x.is_cpu and members_first(x)):
                return split_members(self.fleet.bind(rows.expand(2, -1))(join_members([x, x])), [1, 1])[0].to(x.dtype)
            return self.fleet.bind(rows)(x).to(x.dtype)

    def _one_by_one(self, x: Tensor, members: int) -> bool:
        """Return whether to compute the features of these members one by one.

        In a bank of several, this depends on the size of a member's features alone, not on the number of members, so the kernels
        of a member do not depend on the others. A bank of one may have layers without a stacked form.
        """
        if self.fleet.members == 1 or not x.is_cpu or x.dim() != 4 or is_batch_last(x):
            return self.fleet.members == 1 < members
        return x.shape[1] // members >= WIDE and x.numel() // members >= LARGE

    def given(self, x: Tensor) -> Tensor:
        """Return features in a memory layout that the branch can compute with."""
        if self._any_strides or not is_batch_last(x):
            return x
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def _dense(x: Tensor) -> Tensor:
    """Return images of one member in channels-last memory, unless they are in batch-last memory; other features as they are."""
    return x if x.dim() != 4 or is_batch_last(x) else x.contiguous(memory_format=torch.channels_last)


def seed_module(blueprint: BlueprintConfig, slot: SlotSpec, *, gated: bool) -> nn.Module:
    """Return the module of a seed: the blueprint's branch, with a gate if `gated`."""
    branch = blueprint.branch(slot)
    if not isinstance(branch, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{type(blueprint).__name__}.branch returns a {type(branch).__name__}: return a module")
    return Gated(branch, slot.channels) if gated else branch


def newborn(blueprint: BlueprintConfig, slot: SlotSpec, generator: torch.Generator, *, gated: bool = False) -> Tensor:
    """Return the parameters `[P]` of a new seed, drawn from the generator alone: the branch, then its gate."""
    with borrowed_stream(generator):
        return flatten_parameters(seed_module(blueprint, slot, gated=gated))


def informed(blueprint: BlueprintConfig, slot: SlotSpec, row: Tensor, gradients: SlotGradients) -> Tensor:
    """Return the parameters `[P]` of `row` with filters from slot gradients; see `inform`."""
    with borrowed_stream():
        branch = blueprint.branch(slot)
    size = sum(parameter.numel() for parameter in branch.parameters())
    nn.utils.vector_to_parameters(row[:size].clone(), branch.parameters())
    inform(branch, gradients)
    return torch.cat([flatten_parameters(branch), row[size:]])
