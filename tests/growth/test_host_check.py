"""Remedies where a host cannot read the samples."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.fusion.layout import Layout
from esper.growth.compatibility import check_host, check_seeds
from esper.growth.network import GrowingNetwork
from esper.hosts.base import Host, SlotSpec
from esper.hosts.cnn import CNNConfig
from esper.hosts.transformer import TransformerConfig
from esper.optimisers.sgd import SGDConfig
from esper.seeds.bank import newborn, seed_module
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import BLUEPRINTS, able


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [((8, 8, 1), r"if channels come last, return x\.permute"), ((8, 1, 1), "choose a smaller host for these samples")],
)
def test_samples_that_a_cnn_cannot_read_have_a_remedy(shape: tuple[int, ...], remedy: str) -> None:
    host, same = (CNNConfig().build(shape, 4, [False] * 3) for _ in range(2))
    with pytest.raises(ValueError, match=remedy):
        check_host(host, same, torch.zeros(3, *shape), (3, 4), 1, "task=mine host=cnn")


SLOT = SlotSpec("r0c0", 8, Layout.SEQUENCES)


class Ahead(nn.Module):
    """A layer that reads the next position."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.roll(-1, 1)


class AheadHost(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.segments, self.slots = nn.ModuleList([nn.Sequential(nn.Embedding(20, 8), Ahead()), nn.Linear(8, 20)]), (SLOT,)


class AheadConfig(BlueprintConfig):
    layouts = (Layout.SEQUENCES,)

    def branch(self, slot: SlotSpec) -> nn.Module:
        last = nn.Linear(8, 8)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        return nn.Sequential(Ahead(), last)


def test_what_reads_the_tokens_that_it_is_to_predict_is_refused() -> None:
    x, shape, ahead = torch.randint(20, (3, 6)), (3, 6, 20), {"mine": AheadConfig()}
    match = "reads later positions, which the host is to predict: use a causal mask"
    for causal in (False, True):
        calls: list[Any] = [
            lambda causal=causal: check_host(AheadHost(), AheadHost(), x, shape, 2, "task=mine", causal=causal),
            lambda causal=causal: check_seeds(ahead, {SLOT: torch.randn(3, 6, 8)}, 2, "task=mine", causal=causal),
        ]
        for call in calls:
            if causal:
                with pytest.raises(ValueError, match=match):
                    call()
            else:  # such as a host that labels each token
                call()
    own = [TransformerConfig(width=8, heads=2, context=6).build((6,), 20, [False] * 4) for _ in range(2)]
    own[1].load_state_dict(own[0].state_dict())
    check_host(own[0], own[1], x, shape, 2, "task=mine", causal=True)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", able([SLOT]))
def test_no_seed_of_a_text_reads_later_positions(name: str, gated: bool) -> None:
    module, generator = seed_module(BLUEPRINTS[name](), SLOT, gated=gated), torch.Generator().manual_seed(0)
    row = newborn(BLUEPRINTS[name](), SLOT, generator, gated=gated)
    nn.utils.vector_to_parameters(row + 0.3 * torch.randn(row.shape, generator=generator), module.parameters())
    x = torch.randn(2, 6, 8, generator=generator)
    for position in range(1, 6):
        other = x.clone()
        other[:, position] = torch.randn(2, 8, generator=generator)
        with torch.no_grad():
            changed = (module(other) - module(x)).abs().amax((0, 2)) > 1e-6
        assert changed.tolist() == [False] * position + changed[position:].tolist()
        assert changed[position]


class Listed(nn.Module):
    """Two convolutions, which are also in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.order = [self.a, self.b]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.order:
            x = torch.relu(layer(x))
        return x


class Lambda(nn.Module):
    """A convolution behind a lambda, which a copy of the host does not copy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.run = lambda x: torch.relu(self.conv(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class ReadsWeight(nn.Module):
    """A linear layer whose weight is normalised, so that the layer itself is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.map = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.conv(x), F.normalize(self.map.weight, dim=1))


class MixesInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.normalize(y, dim=1) * 3 if self.training else y


def host_of(first: type[nn.Module]) -> Host:
    torch.manual_seed(0)
    return Host([first(), nn.Sequential(nn.Flatten(), nn.Linear(256, 3))], [SlotSpec("r0c0", 4)])


@pytest.mark.parametrize("first", [Listed, ReadsWeight, MixesInTraining])
def test_a_host_alone_may_hold_and_read_its_layers_as_it_likes(first: type[nn.Module]) -> None:
    x, y = torch.randn(8, 1, 8, 8), torch.randint(3, (1, 8))
    check_host(host_of(first), host_of(first), x, (8, 3), 1, "host=x")
    network, plain = GrowingNetwork([host_of(first)], [], optimiser=SGDConfig(weight_decay=0.0, max_norm=1e9)), host_of(first)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    network.train()
    for _ in range(3):
        rates = network.begin_step(1.0)
        network.backward(x, y)
        network.update(*rates)
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y[0]).backward()
        optimizer.step()
    found = network.plain_host(0)
    gaps = [(one - other).abs().max().item() for one, other in zip(found.parameters(), plain.parameters(), strict=True)]
    assert max(gaps) < 1e-4, gaps


@pytest.mark.parametrize(
    ("first", "members", "sentence"),
    [
        (Lambda, 1, "the host passes no gradient to its parameter segments.0.conv.weight: use it"),
        (Listed, 2, "the host fails with RuntimeError"),
        (MixesInTraining, 2, "the host mixes the hosts of a shard"),
    ],
)
def test_a_host_that_would_train_wrongly_is_refused(first: type[nn.Module], members: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_host(host_of(first), host_of(first), torch.randn(8, 1, 8, 8), (8, 3), members, "host=x")
