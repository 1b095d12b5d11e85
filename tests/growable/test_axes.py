"""Seeds grow on what they take a slot's features for: modules and examples with axes in another order are told apart."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper


class ChannelsLast(nn.Module):
    """A block of `[B, H, W, C]` that ends with a layer without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.map = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.map(self.norm(x)))


class Transposed(nn.Module):
    """Swaps samples and positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class ChannelsFirst(ChannelsLast):
    """A block of `[B, C, H, W]` that computes in the other order."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


BATCH_FIRST = {"batch_first": True}


@pytest.mark.parametrize(
    ("layers", "path", "example", "refused"),
    [
        (lambda: [nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)], "1", (2, 3, 9), "slots: 1 is a BatchNorm1d, whose output is chan"),
        (lambda: [nn.Conv1d(2, 3, 3), nn.Flatten()], "0", (2, 2, 9), "slots: 0 is a Conv1d, whose output is channels-first"),
        (lambda: [nn.TransformerEncoderLayer(8, 2)], "0", (5, 2, 8), "slots: 0 is not batch-first"),
        (lambda: [nn.GRU(8, 4)], "0", (5, 2, 8), "slots: 0 is not batch-first"),
        (lambda: [nn.LayerNorm(6)], "0", (2, 8, 8, 6), "slots: the output of 0, a LayerNorm, is channels-last"),
        (lambda: [nn.Conv2d(1, 4, 1), nn.ReLU()], "1", (1, 8, 8), "example is a sample without a batch, since a Conv2d"),
        (lambda: [nn.Conv3d(1, 4, 1), nn.ReLU()], "1", (1, 5, 8, 8), "example is a sample without a batch, since a Conv3d"),
        (lambda: [nn.Conv1d(3, 4, 1), nn.ReLU()], "1", (3, 9), "example is a sample without a batch, since a Conv1d"),
    ],
)
def test_axes_in_another_order_are_refused(layers: Any, path: str, example: Any, refused: str) -> None:
    with pytest.raises(ValueError, match=f"^{refused}"):
        esper.grow(nn.Sequential(*layers()), [path], torch.randn(example))


@pytest.mark.parametrize(
    ("layers", "path", "example", "warned"),
    [
        (lambda: [nn.TransformerEncoderLayer(8, 2), nn.LayerNorm(8)], "1", (5, 2, 8), r"time-first \[T, B, C\]"),
        (lambda: [nn.Tanh(), nn.Conv1d(2, 2, 1)], "0", (5, 2, 8), r"other layers of this module are channels-first \[B, C, T\]"),
        (lambda: [nn.Conv1d(2, 4, 1), nn.Sequential(nn.Linear(8, 8), nn.Conv1d(4, 8, 1))], "1", (5, 2, 8), "channels-f"),
        (lambda: [nn.Sequential(nn.Conv1d(5, 5, 1), nn.Linear(8, 8), nn.Tanh())], "0", (2, 5, 8), "channels-first"),
        (lambda: [Transposed()], "0", (2, 5, 8), r"its shape for 2 samples, \(5, 2, 8\), looks time-first .* 'TBC'"),
        (
            lambda: [ChannelsLast()],
            "0",
            (2, 8, 8, 6),
            r"\(2, 8, 8, 6\) is taken for images \[B, C, H, W\], but looks",
        ),
        (lambda: [ChannelsLast()], "0", (2, 6, 6, 6), r"\(2, 6, 6, 6\) is taken for images \[B, C, H, W\], but looks"),
    ],
)
def test_axes_that_may_be_in_another_order_are_warned_of(layers: Any, path: str, example: Any, warned: str) -> None:
    with pytest.warns(UserWarning, match=warned) as caught:
        esper.grow(nn.Sequential(*layers()), [path], torch.randn(example))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("layers", "path", "example"),
    [
        (lambda: [nn.TransformerEncoderLayer(8, 2, **BATCH_FIRST)], "0", (2, 5, 8)),
        (lambda: [nn.GRU(8, 4, **BATCH_FIRST)], "0", (2, 5, 8)),
        (lambda: [nn.Linear(8, 8), nn.BatchNorm1d(8)], "1", (4, 8)),
        (lambda: [nn.Linear(8, 8), nn.Conv1d(5, 5, 1)], "0", (2, 5, 8)),
        (lambda: [nn.Sequential(nn.Tanh(), nn.LayerNorm(8)), nn.Conv1d(5, 5, 1)], "0", (2, 5, 8)),
        (lambda: [nn.Tanh(), nn.Linear(8, 8), nn.Conv1d(5, 5, 1)], "0", (2, 5, 8)),  # which a layer of the last axis reads
        (lambda: [nn.Sequential(nn.LayerNorm(8), nn.Tanh()), nn.Conv1d(5, 5, 1)], "0", (2, 5, 8)),
        (lambda: [nn.Identity()], "0", (2, 2, 8)),
        (lambda: [ChannelsFirst()], "0", (2, 6, 8, 8)),
    ],
)
def test_axes_in_the_right_order_are_taken(layers: Any, path: str, example: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        esper.grow(nn.Sequential(*layers()), [path], torch.randn(example)).germinate(path, "norm")


@pytest.mark.parametrize("blend", ["add", "multiply", "gate"])
@pytest.mark.parametrize(
    ("blueprints", "example", "order"),
    [
        (("norm", "mlp", "lora"), (5, 8), "BC"),
        (("norm", "attention", "mlp"), (5, 4, 8), "BTC"),
        (("lora",), (5, 8, 4), "BCT"),
        (("norm", "conv_light", "attention", "depthwise"), (5, 8, 6, 7), "BCHW"),
        (("conv_light",), (5, 6, 7, 8), "BHWC"),
        (("conv_light",), (5, 8, 2, 6, 7), "BCTHW"),
    ],
)
def test_a_sample_without_a_batch_gets_what_it_gets_in_one(blueprints: Any, example: Any, order: str, blend: str) -> None:
    x = torch.randn(example)
    for blueprint in blueprints:
        net = esper.grow(nn.Sequential(nn.Tanh()), ["0"], x, axes={"0": order})
        for parameter in net.germinate("0", blueprint, blend=blend).parameters():
            nn.init.normal_(parameter, std=0.3)
        net.begin_epoch()
        together = net(x)
        assert not torch.equal(together, net.module[0](torch.zeros_like(x)) + torch.tanh(x))
        for alone in (torch.stack([net(one) for one in x]), torch.func.vmap(net)(x)):
            torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)


def test_a_batch_with_more_axes_than_the_example_is_refused() -> None:
    net = esper.grow(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), ["1"], torch.randn(5, 6))
    net.germinate("1", "mlp")
    net.begin_epoch()
    with pytest.raises(ValueError, match=r"slot 1: seeds grow on vectors here, .* has the shape \(2, 5, 8\): give esper"):
        net(torch.randn(2, 5, 6))


@pytest.mark.parametrize("masked", [True, False])
def test_nested_tensors_are_refused_in_words(masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 2)
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    example = {"src": x, "src_key_padding_mask": mask} if masked else {"src": x}
    match = r"slot layers\.0: the output is a nested tensor, .* build it with enable_nested_tensor=False"
    if masked:
        with pytest.raises(ValueError, match=match):
            esper.grow(module, ["layers.0"], example)
        return
    net = esper.grow(module, ["layers.0"], example)
    net.germinate("layers.0", "norm")
    net.begin_epoch()
    net(x, src_key_padding_mask=mask).sum().backward()
    with pytest.raises(ValueError, match=match):
        net.contributions(lambda: net(x, src_key_padding_mask=mask).mean())
