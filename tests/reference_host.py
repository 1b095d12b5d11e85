"""An independent reference of one growing host, in plain PyTorch."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.fusion.layout import Layout, side_by_side
from esper.fusion.precision import Precision
from esper.growth.network import GrowingNetwork
from esper.hosts.base import SlotSpec
from esper.hosts.cnn import CNNConfig
from esper.lifecycle.roles import Blend, Fossils, Incubation, Roles
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import OptimiserConfig, SeedSettingsConfig
from esper.optimisers.sgd import NesterovConfig, SGDConfig
from esper.seeds.bank import seed_module
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.cnn import ConvHeavyConfig, ConvLightConfig, DepthwiseConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.seeds.slot_gradients import GradientHooks

IMAGE_BLUEPRINTS = (NormConfig(), ConvLightConfig(), DepthwiseConfig(), ConvHeavyConfig())
KINDS = ("ooo", "xoo", "oxx")
WORDS = 10


@pytest.fixture
def float64() -> Iterator[None]:
    """Use double precision by default."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def variants(network: GrowingNetwork, x: Tensor, alpha_VMS: Any) -> Tensor:
    """Return the logits `[V, M, B, classes]` of a batch under V settings of all alphas, with shared computation."""
    forks = network.tree(alpha_VMS)
    return network.path_logits(x, forks)[torch.from_numpy(forks.path_VM)]


def forward(network: GrowingNetwork, x: Tensor, hooks: GradientHooks | None = None) -> Tensor:
    """Return the outputs `[M, B, K]` for a batch in the layout of its kind."""
    with network._computed():
        return network._through(network.host.bind(), network.active_S, x, network.members, hooks).logits()


def optimiser_step(network: GrowingNetwork, progress: float = 0.0) -> None:
    """Take one optimiser step for all that learns, at this share of the episode, which sets learning rates."""
    network.update(*network.begin_step(progress))


# ---- hosts and seeds of all layouts


@dataclass(kw_only=True, slots=True)
class WideConfig(BlueprintConfig):
    """A seed for vectors and positions of sequences, with a number of hidden units per feature."""

    layouts = (Layout.VECTORS, Layout.SEQUENCES)
    factor: int = 2

    def branch(self, slot: SlotSpec) -> nn.Module:
        last = nn.Linear(self.factor * slot.channels, slot.channels)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(nn.Linear(slot.channels, self.factor * slot.channels), nn.Tanh(), last)


class VectorHost(nn.Module):
    """`[B, 5]` to `[B, 10]` with three slots."""

    def __init__(self) -> None:
        super().__init__()
        widths = (5, 6, 4, 8)
        self.slots = tuple(SlotSpec(f"r0c{i}", width, Layout.VECTORS) for i, width in enumerate(widths[1:]))
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        self.segments = nn.ModuleList([*layers, nn.Linear(8, WORDS)])


class Mixer(nn.Module):
    """A layer that adds the mean of all positions to each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.map = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.map(self.norm(x))) * x.mean(1, keepdim=True)


class SequenceHost(nn.Module):
    """Tokens `[B, 6]` to `[B, 6, 10]` with three slots."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = tuple(SlotSpec(f"r0c{i}", 4, Layout.SEQUENCES) for i in range(3))
        first = nn.Sequential(nn.Embedding(WORDS, 4), Mixer(4))
        self.segments = nn.ModuleList([first, Mixer(4), Mixer(4), nn.Linear(4, WORDS)])


def make_host(layout: Layout, member: int) -> nn.Module:
    if layout is Layout.IMAGES:
        return CNNConfig(base_channels=3).build((1, 8, 8), WORDS, [letter == "x" for letter in KINDS[member % 3]])
    return VectorHost() if layout is Layout.VECTORS else SequenceHost()


# ---- the reference


def plain_optimiser(parameters: Any, config: OptimiserConfig, *, seed: bool = False) -> torch.optim.Optimizer:
    """Return torch's optimiser of a host, or of a seed with the settings for seeds."""
    own = {name: getattr(config.seeds, name) for name in ("learning_rate", "weight_decay")} if seed else {}
    rate, decay = (getattr(config, name) if own.get(name) is None else own[name] for name in ("learning_rate", "weight_decay"))
    if isinstance(config, AdamWConfig):
        return torch.optim.AdamW(parameters, rate, (config.beta1, config.beta2), config.eps, decay)
    assert isinstance(config, SGDConfig)
    nesterov = isinstance(config, NesterovConfig)
    return torch.optim.SGD(parameters, rate, config.momentum, weight_decay=decay, nesterov=nesterov)


@dataclass
class Seed:
    """One seed, written from the definitions."""

    module: nn.Module
    """The branch, or the branch with its gate."""
    blend: Blend
    alpha: float
    behind: bool
    open: bool
    learns: bool
    fossil: bool

    def effect(self, h: Tensor, x: Tensor) -> Tensor:
        """Return what is added to h at alpha 1."""
        return h * torch.tanh(self.module(x)) if self.blend is Blend.MULTIPLY else self.module(x)


class Reference:
    """One host with its seeds, written from the definitions: no stacking, ordinary optimisers, ordinary clipping."""

    def __init__(self, host: nn.Module, config: OptimiserConfig, incubation: Incubation) -> None:
        self.host, self.config = copy.deepcopy(host), config
        self.closed = incubation is Incubation.closed_loop
        self.seeds: dict[int, Seed] = {}
        self.host_optimiser = plain_optimiser(self.host.parameters(), config)
        self.seed_optimisers: dict[int, torch.optim.Optimizer] = {}

    def _max_norm(self, seed: Seed) -> float:
        own = self.config.seeds.max_norm
        return self.config.max_norm if seed.fossil or own is None else own

    def grow(self, slot: int, seed: Seed) -> None:
        self.seeds[slot] = seed
        self.seed_optimisers[slot] = plain_optimiser(seed.module.parameters(), self.config, seed=not seed.fossil)

    def forward(self, x: Tensor) -> Tensor:
        self.inputs: list[Tensor] = []
        for slot, segment in enumerate(self.host.segments):
            x = segment(x)
            self.inputs.append(x)
            seed = self.seeds.get(slot)
            if seed is None or (seed.behind and self.closed):
                continue
            if seed.behind:  # no effect, and the gradient as at alpha 1
                effect = seed.effect(x.detach(), x.detach())
                x = x + (effect - effect.detach())
            else:
                x = x + seed.alpha * seed.effect(x, x if seed.open else x.detach())
        return x.flatten(0, -2)

    def shadow(self) -> Tensor:
        """Return the logits of the closed-loop pass, from the first seed behind on; call it after `forward`."""
        first = min(slot for slot, seed in self.seeds.items() if seed.behind)
        x = self.inputs[first].detach()
        self.host.eval()
        for slot, segment in enumerate(list(self.host.segments)[first + 1 :], first):
            if slot in self.seeds:
                seed = self.seeds[slot]
                x = x + (1.0 if seed.behind else seed.alpha) * seed.effect(x, x)
            x = segment(x)
        self.host.train()
        return x.flatten(0, -2)

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute all gradients of a batch, and return the loss."""
        self.host.train()
        for module in (self.host, *(seed.module for seed in self.seeds.values())):
            module.zero_grad()
        loss = nn.functional.cross_entropy(self.forward(x), y.flatten())
        loss.backward()
        behind = [p for seed in self.seeds.values() if seed.behind for p in seed.module.parameters()]
        if self.closed and behind:
            grads = torch.autograd.grad(nn.functional.cross_entropy(self.shadow(), y.flatten()), behind)
            for parameter, grad in zip(behind, grads, strict=True):
                parameter.grad = grad
        return loss.detach()

    def train_batch(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.gradients(x, y)
        nn.utils.clip_grad_norm_(self.host.parameters(), self.config.max_norm)
        self.host_optimiser.step()
        for slot, seed in self.seeds.items():
            nn.utils.clip_grad_norm_(seed.module.parameters(), self._max_norm(seed))
            if seed.learns:
                self.seed_optimisers[slot].step()
        return loss


# training, blending, holding, fossilized, active but not learning: alpha, behind, learns, fossil
STAGES = (
    (0.0, True, True, False),
    (0.25, False, True, False),
    (1.0, False, True, False),
    (0.75, False, True, True),
    (0.5, False, False, False),
)


class Grown:
    """A network of M hosts with seeds of all blueprints in many slots and stages, and its M references."""

    def __init__(
        self,
        members: int,
        *,
        blends: tuple[Blend, ...] = (Blend.ADD,),
        incubation: Incubation = Incubation.straight_through,
        fossils: Fossils = Fossils.learning,
        layout: Layout = Layout.IMAGES,
        blueprints: Sequence[BlueprintConfig] = (),
        optimiser: OptimiserConfig | None = None,
        hosts: Sequence[nn.Module] = (),
        frozen: bool = False,
        precision: Precision = Precision.fp32,
        samples_last: bool = True,
    ) -> None:
        self.samples_last = samples_last and layout is not Layout.SEQUENCES and precision is Precision.fp32
        optimiser = optimiser or SGDConfig(weight_decay=5e-3, seeds=SeedSettingsConfig(max_norm=0.3))
        generator = torch.Generator().manual_seed(members)
        torch.manual_seed(members)
        self.layout = layout
        usual = IMAGE_BLUEPRINTS if layout is Layout.IMAGES else (WideConfig(), WideConfig(factor=3))
        self.blueprints = tuple(blueprints) or usual
        hosts = hosts or [make_host(layout, member) for member in range(members)]
        self.network = GrowingNetwork(
            hosts, self.blueprints, optimiser=optimiser, incubation=incubation, frozen=frozen, precision=precision
        )
        self.references = [Reference(host, optimiser, incubation) for host in hosts]
        shape = (members, 3)
        self.blueprint, self.alpha = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        self.blend = np.zeros(shape, dtype=np.int64)
        self.behind, self.learns, self.fossil, self.open = (np.zeros(shape, dtype=bool) for _ in range(4))
        for member in range(members):
            for slot in range(3):
                turn = member + 2 * slot
                if member % 4 == 3 and slot != member % 3:
                    continue
                blueprint, blend = turn % len(self.blueprints), blends[(member + 2 * slot) % len(blends)]
                alpha, behind, learns, fossil = STAGES[(member * 3 + slot) % len(STAGES)]
                learns &= not (fossil and fossils is Fossils.frozen)
                is_open = not behind and member % 3 < 2
                bank = self.network.bank(slot, blueprint, blend is Blend.GATE)
                bank.plant(member, generator)
                with torch.no_grad():  # as after some training: the last map is not zero
                    bank.fleet.flat[member] += 0.2 * torch.randn(bank.fleet.flat.shape[1], generator=generator)
                module = seed_module(self.blueprints[blueprint], bank.slot, gated=blend is Blend.GATE)
                nn.utils.vector_to_parameters(bank.fleet.flat[member].detach().clone(), module.parameters())
                self.references[member].grow(slot, Seed(module, blend, alpha, behind, is_open, learns, fossil))
                self.blueprint[member, slot], self.alpha[member, slot], self.blend[member, slot] = blueprint, alpha, blend
                self.behind[member, slot], self.learns[member, slot] = behind, learns
                self.open[member, slot], self.fossil[member, slot] = is_open, fossil
        self.arrange()

    def arrange(self, alpha: Any = None) -> None:
        inside = self.blueprint >= 0
        self.network.arrange(
            Roles(
                blueprint=self.blueprint,
                blend=self.blend,
                alpha=self.alpha if alpha is None else alpha,
                behind=self.behind,
                open=inside & self.open & ~self.behind,
                learns=self.learns,
                fossil=self.fossil,
            )
        )

    def only(self, *, alpha: float = 1.0, behind: bool = False, open: bool = True) -> None:
        """Put every seed into one stage, learning."""
        inside = self.blueprint >= 0
        self.alpha[:] = np.where(inside, 0.0 if behind else alpha, 0.0)
        self.behind[:], self.open[:], self.learns[:], self.fossil[:] = inside & behind, inside & open, inside, False
        for member, slot in np.argwhere(inside):
            seed = self.references[member].seeds[int(slot)]
            seed.alpha, seed.behind, seed.open = float(self.alpha[member, slot]), behind, open and not behind
            seed.learns, seed.fossil = True, False
            self.references[member].grow(int(slot), seed)
        self.arrange()

    def bank_of(self, member: int, slot: int) -> Any:
        """Return the bank that holds the seed of a member."""
        gated = self.blend[member, slot] == Blend.GATE
        return self.network.banks[slot, int(self.blueprint[member, slot]), bool(gated)]

    def batch(self, members: int, samples: int, seed: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return samples of each member, their classes, and all samples side by side."""
        generator = torch.Generator().manual_seed(seed)
        if self.layout is Layout.SEQUENCES:
            xs, ys = ([torch.randint(WORDS, (samples, 6), generator=generator) for _ in range(members)] for _ in range(2))
        else:
            shape = (samples, 1, 8, 8) if self.layout is Layout.IMAGES else (samples, 5)
            xs = [torch.randn(shape, generator=generator) for _ in range(members)]
            ys = [torch.randint(WORDS, (samples,), generator=generator) for _ in range(members)]
        return xs, ys, side_by_side(torch.stack(xs), samples_last=self.samples_last)


@pytest.fixture
def grown() -> Callable[..., Grown]:
    return Grown
