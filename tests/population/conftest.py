"""What the tests of this folder share: an independent reference of one growing host, in plain PyTorch."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.population.bank import SGDConfig
from esper.population.blueprints import ConvHeavyConfig, ConvLightConfig, DepthwiseConfig, NormConfig
from esper.population.cnn import CNNConfig
from esper.population.network import GrowingNetwork
from esper.population.roles import Roles

BLUEPRINTS = (NormConfig(), ConvLightConfig(), DepthwiseConfig(), ConvHeavyConfig())
KINDS = ("ooo", "xoo", "oxx")


@pytest.fixture
def float64() -> Iterator[None]:
    """Everything made in the test is in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Reference:
    """One host with its seeds, written from the definitions: no stacking, ordinary optimisers, ordinary clipping."""

    def __init__(self, host: nn.Module, host_sgd: SGDConfig, seed_sgd: SGDConfig) -> None:
        self.host, self.host_sgd, self.seed_sgd = copy.deepcopy(host), host_sgd, seed_sgd
        self.seeds: dict[int, tuple[nn.Module, float, bool, bool]] = {}
        self.host_optimiser = self._optimiser(self.host, host_sgd)
        self.seed_optimisers: dict[int, torch.optim.SGD] = {}

    @staticmethod
    def _optimiser(module: nn.Module, sgd: SGDConfig) -> torch.optim.SGD:
        return torch.optim.SGD(module.parameters(), lr=sgd.learning_rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay)

    def grow(self, slot: int, branch: nn.Module, alpha: float, behind: bool, learns: bool = True) -> None:
        """A seed in a slot; behind the host, its effect is nothing and its gradient as if it were fully in."""
        self.seeds[slot] = (branch, alpha, behind, learns)
        self.seed_optimisers[slot] = self._optimiser(branch, self.seed_sgd)

    def forward(self, x: Tensor) -> Tensor:
        for slot, segment in enumerate(self.host.segments):
            x = segment(x)
            if slot in self.seeds:
                branch, alpha, behind, _ = self.seeds[slot]
                if behind:
                    delta = branch(x.detach())
                    x = x + (delta - delta.detach())
                else:
                    x = x + alpha * branch(x)
        return x

    def train_batch(self, x: Tensor, y: Tensor) -> Tensor:
        self.host.train()
        self.host_optimiser.zero_grad()
        for optimiser in self.seed_optimisers.values():
            optimiser.zero_grad()
        loss = nn.functional.cross_entropy(self.forward(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.host.parameters(), self.host_sgd.max_norm)
        self.host_optimiser.step()
        for slot, (branch, _, _, learns) in self.seeds.items():
            nn.utils.clip_grad_norm_(branch.parameters(), self.seed_sgd.max_norm)
            if learns:
                self.seed_optimisers[slot].step()
        return loss.detach()


class Grown:
    """A network of M hosts with seeds of all blueprints in many slots and stages, and its M references."""

    def __init__(self, members: int, *, host_sgd: SGDConfig | None = None, seed_sgd: SGDConfig | None = None) -> None:
        host_sgd, seed_sgd = host_sgd or SGDConfig(weight_decay=5e-3), seed_sgd or SGDConfig(max_norm=0.3)
        generator = torch.Generator().manual_seed(members)
        torch.manual_seed(members)
        config = CNNConfig(base_channels=3)
        hosts = [config.build(1, 10, [letter == "x" for letter in KINDS[m % 3]]) for m in range(members)]
        self.network = GrowingNetwork(hosts, BLUEPRINTS, host_optimiser=host_sgd, seed_optimiser=seed_sgd)
        self.references = [Reference(host, host_sgd, seed_sgd) for host in hosts]
        shape = (members, 3)
        self.blueprint, self.alpha = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        self.behind, self.learns = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        # training behind, blending, holding or fossilized (they train alike), in, but not learning
        stages = [(0.0, True, True), (0.25, False, True), (1.0, False, True), (0.5, False, False)]
        for member in range(members):
            for slot in range(3):
                turn = member + 2 * slot
                if member % 4 == 3 and slot != member % 3:
                    continue
                blueprint = turn % len(BLUEPRINTS)
                alpha, behind, learns = stages[(member * 3 + slot) % 4]
                bank = self.network.bank(slot, blueprint)
                bank.plant(member, generator)
                with torch.no_grad():  # as it would be after some training: the last map is not zero
                    bank.fleet.flat[member] += 0.2 * torch.randn(bank.fleet.flat.shape[1], generator=generator)
                branch = BLUEPRINTS[blueprint].branch(bank.channels)
                nn.utils.vector_to_parameters(bank.fleet.flat[member].detach().clone(), branch.parameters())
                self.references[member].grow(slot, branch, alpha, behind, learns)
                self.blueprint[member, slot], self.alpha[member, slot] = blueprint, alpha
                self.behind[member, slot], self.learns[member, slot] = behind, learns
        self.arrange()

    def arrange(self, alpha: Any = None) -> None:
        inside = self.blueprint >= 0
        alpha = self.alpha if alpha is None else alpha
        self.network.arrange(
            Roles(
                blueprint=self.blueprint,
                blend=np.zeros_like(self.blueprint),
                alpha=alpha,
                behind=self.behind,
                open=inside & ~self.behind,
                learns=self.learns,
                fossil=np.zeros_like(inside),
            )
        )

    @staticmethod
    def batch(members: int, samples: int, seed: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Samples of each member, their classes, and all samples side by side as the network takes them."""
        generator = torch.Generator().manual_seed(seed)
        xs = [torch.randn(samples, 1, 8, 8, generator=generator) for _ in range(members)]
        ys = [torch.randint(10, (samples,), generator=generator) for _ in range(members)]
        return xs, ys, torch.cat(xs, 1).contiguous(memory_format=torch.channels_last)


@pytest.fixture
def grown() -> Callable[..., Grown]:
    return Grown
