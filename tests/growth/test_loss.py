"""Losses and gradients from logits in pieces equal those of all logits at once, and the pieces are small."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from esper.fusion.layout import take_members
from esper.growth import loss
from esper.growth.loss import LastSegment
from esper.growth.network import GrowingNetwork
from esper.growth.objective import CLASSIFICATION
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.optimisers.sgd import SGDConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from esper.task.data import IGNORED

VOCABULARY, SAMPLES, CONTEXT = 61, 3, 7


def network_of(members, incubation=Incubation.closed_loop, *, frozen=False, tied=True):
    """Return transformers with a seed in slot 1 of member 0, and their hosts learn or not."""
    torch.manual_seed(0)
    config = TransformerConfig(width=8, context=CONTEXT, tied=tied, slot_layers=[0])
    hosts = [config.build((CONTEXT,), VOCABULARY, [False, False]) for _ in range(members)]
    seeds = [BLUEPRINTS["lora"]()]
    network = GrowingNetwork(hosts, seeds, optimiser=SGDConfig(), incubation=incubation, frozen=frozen)
    network.plant(0, 1, 0, torch.Generator().manual_seed(1))
    for bank in network.banks.values():
        with torch.no_grad():
            bank.fleet.flat.normal_(std=0.2)
    shape = (members, 2)
    seed = np.zeros(shape, dtype=np.bool_)
    seed[0, 1] = True
    behind = seed & (incubation is not Incubation.none)
    roles = Roles(
        blueprint=np.where(seed, 0, -1),
        blend=np.full(shape, Blend.ADD),
        alpha=np.where(seed & ~behind, 0.7, 0.0).astype(np.float32),
        behind=behind,
        open=~behind,
        learns=seed,
        fossil=np.zeros(shape, dtype=np.bool_),
    )
    network.arrange(roles)
    return network


def batch(members):
    rng = torch.Generator().manual_seed(2)
    y = torch.randint(VOCABULARY, (members, SAMPLES * CONTEXT), generator=rng)
    y[:, -2:] = IGNORED  # the last block is padded
    return torch.randint(VOCABULARY, (members * SAMPLES, CONTEXT), generator=rng), y


def gradients(network, pass_):
    """Return the losses of one pass of training, and the gradients of hosts and seeds."""
    x, y = batch(network.members)
    if pass_ == "backward_learning":
        x, y = take_members(x, network.learning_L, network.members), y[network.learning_L]
    losses = getattr(network, pass_)(x, y)
    flats = [network.host.flat, *(bank.fleet.flat for bank in network.banks.values())]
    return losses, [torch.zeros_like(flat) if flat.grad is None else flat.grad for flat in flats]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("each", [1, 2, 6])
@pytest.mark.parametrize(
    ("members", "incubation", "frozen", "pass_"),
    [
        (1, Incubation.none, False, "backward"),
        (3, Incubation.none, False, "backward"),
        (3, Incubation.straight_through, False, "backward"),
        (3, Incubation.closed_loop, False, "backward"),
        (3, Incubation.none, True, "backward_learning"),
    ],
)
def test_pieces_give_the_losses_and_gradients_of_the_whole(monkeypatch, members, incubation, frozen, pass_, each, tied):
    losses, wanted = gradients(network_of(members, incubation, frozen=frozen, tied=tied), pass_)
    computed = []
    monkeypatch.setattr(loss, "checkpoint", lambda *args, **kwargs: computed.append(args) or real(*args, **kwargs))
    together = 2 if frozen else members  # only the member that learns, twice
    monkeypatch.setattr(loss, "LOGITS", each * together * SAMPLES * VOCABULARY)
    network = network_of(members, incubation, frozen=frozen, tied=tied)
    torch.testing.assert_close((losses, wanted), gradients(network, pass_), rtol=1e-12, atol=1e-13)
    assert len(computed) >= -(-CONTEXT // each), "the logits are computed in pieces"
    assert wanted[-1].abs().sum() > 0, "the seed learns"


real = loss.checkpoint


class Largest(TorchDispatchMode):
    """Remembers the largest number of values that an operation returned."""

    values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(one, torch.Tensor):
                self.values = max(self.values, one.numel())
        return out


def test_no_tensor_of_a_training_step_exceeds_the_limit(monkeypatch):
    """The vocabulary is so large that nothing but the logits and the head's weights comes near it."""
    head = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 5_000))
    x, y = torch.randn(4, 32, 2, requires_grad=True), torch.randint(5_000, (1, 128))
    for limit, largest in ((2**27, 4 * 32 * 5_000), (4 * 3 * 5_000, 4 * 3 * 5_000)):
        monkeypatch.setattr(loss, "LOGITS", limit)
        with Largest() as seen:
            LastSegment(head, x, 1).losses(y).sum().backward()
        assert seen.values == largest


def test_a_head_that_is_no_linear_map_is_computed_as_a_whole(monkeypatch):
    monkeypatch.setattr(loss, "LOGITS", 1)
    head = nn.Sequential(nn.Linear(2, 5), nn.Softplus())
    x, y = torch.randn(4, 3, 2), torch.randint(5, (1, 12))
    assert LastSegment(head, x, 1).losses(y).equal(CLASSIFICATION.mean_losses(head(x).view(1, 12, 5), y))


@pytest.mark.parametrize("chosen", [torch.tensor([2, 0]), slice(1, 3)])
def test_only_chosen_members_count(monkeypatch, chosen):
    head = nn.Sequential(nn.Linear(2, 5))
    x, y = torch.randn(6, 3, 2), torch.randint(5, (2, 6))
    whole = LastSegment(head, x, 3).losses(y, chosen)
    monkeypatch.setattr(loss, "LOGITS", 1)
    torch.testing.assert_close(LastSegment(head, x, 3).losses(y, chosen), whole)
    torch.testing.assert_close(whole, CLASSIFICATION.mean_losses(head(x).view(3, 6, 5)[chosen], y))
