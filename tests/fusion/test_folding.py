"""Batch norms folded into convolutions."""

import copy

import pytest
import torch
from torch import nn

from esper.fusion.folding import folded
from esper.fusion.fuse import Fleet
from esper.hosts.base import Host, SlotSpec
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig

CASES = {
    "pre": lambda: CNNConfig(base_channels=3, surfaces=["pre"]).build((2, 12, 12), 5, [True, False, False]),
    "post": lambda: CNNConfig(base_channels=3, surfaces=["pre", "post"]).build((2, 12, 12), 5, [False, True, False]),
    "mlp": lambda: MLPConfig().build((2, 12, 12), 5, [False, False]),
}


def seasoned(module):
    """Give every parameter and statistic a value of its own."""
    generator = torch.Generator().manual_seed(1)
    for part in (*module.parameters(), *module.buffers()):
        if (part.is_floating_point() and part.dim() < 2) or isinstance(part, nn.Parameter):
            part.data.copy_(torch.rand(part.shape, generator=generator) + 0.2)
    return module.double().eval()


@pytest.mark.parametrize("name", CASES)
def test_a_folded_network_computes_the_same_without_batch_norm(name):
    module = seasoned(CASES[name]())
    before = copy.deepcopy(module.state_dict())
    x = torch.randn(6, 2, 12, 12, dtype=torch.float64)
    module.train()
    small = folded(module)
    assert module.training
    assert all(part.equal(before[key]) for key, part in module.state_dict().items()), "the given network is not changed"
    torch.testing.assert_close(small(x), module.eval()(x), rtol=1e-12, atol=1e-12)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in small.modules())
    together = Fleet([small, small]).bind()
    torch.testing.assert_close(together(x.repeat(1, 2, 1, 1))[:, :5], module(x), rtol=1e-12, atol=1e-12)


class Doubled(nn.Conv2d):
    """A convolution of another kind."""

    def forward(self, x):
        return super().forward(x).square()


class Residual(nn.Module):
    """Uses the parts of a sequence one by one."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU())

    def forward(self, x):
        y = self.parts[0](x)
        return self.parts[2](self.parts[1](y)) + y


def hooked(layer):
    layer.register_forward_hook(lambda module, x, y: 2 * y)
    return layer


def kinds(sequence):
    return [type(layer).__name__ for layer in sequence]


NORM = nn.BatchNorm2d(2)
STAY = {
    "no convolution before": [NORM, nn.ReLU(), nn.BatchNorm2d(2)],
    "another convolution": [Doubled(2, 2, 1), nn.BatchNorm2d(2)],
    "own code": [Residual()],
    "hook of the convolution": [hooked(nn.Conv2d(2, 2, 1)), nn.BatchNorm2d(2)],
    "hook of the norm": [nn.Conv2d(2, 2, 1), hooked(nn.BatchNorm2d(2))],
    "weights from a hook": [nn.utils.spectral_norm(nn.Conv2d(2, 2, 1)), nn.BatchNorm2d(2)],
    "parametrized weights": [nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 1)), nn.BatchNorm2d(2)],
    "no statistics": [nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)],
}
FOLD = {
    "shared": ([nn.Conv2d(2, 2, 1), NORM, nn.Conv2d(2, 2, 1), NORM], ["Conv2d", "Identity", "Conv2d", "Identity"]),
    "no scale": ([nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2, affine=False)], ["Conv2d", "Identity"]),
    "nested": ([nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)), nn.BatchNorm2d(2)], ["Sequential", "BatchNorm2d"]),
    "hook of a sequence": ([hooked(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)))], ["Sequential"]),
}


@pytest.mark.parametrize(
    ("layers", "expected"), [*((layers, None) for layers in STAY.values()), *FOLD.values()], ids=[*STAY, *FOLD]
)
def test_only_what_computes_the_same_is_folded(layers, expected):
    module = Host([nn.Sequential(*layers), nn.Flatten()], [SlotSpec("one", 2)]).double().eval()
    small, x = folded(module), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(small(x), module(x), rtol=1e-12, atol=1e-12)
    assert kinds(small.segments[0]) == (expected or kinds(layers))
    parts = sum(isinstance(layer, nn.Identity) for layer in small.modules())
    assert bool(parts) == (expected is not None)


def test_a_transformer_has_nothing_to_fold():
    module = TransformerConfig(width=8, context=6).build((6,), 9, [False, False]).eval()
    tokens = torch.randint(9, (2, 6))
    assert folded(module)(tokens).equal(module(tokens))
