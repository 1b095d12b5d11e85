"""Seeds grow on features with axes in any order as on those in their own, and layers tell one order from another."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import esper
from esper.growable.features import fits, in_order_of_seeds, in_own_order


class Axes(nn.Module):
    """Permutes the axes."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class LayerNorm2d(nn.LayerNorm):
    """Normalises the channels of `[B, C, H, W]`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Frames(nn.Module):
    """Takes the frames of videos `[B, C, T, H, W]` for samples, or undoes it for two frames."""

    def __init__(self, *, undo: bool) -> None:
        super().__init__()
        self.undo = undo

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2)).movedim(2, 1) if self.undo else x.movedim(1, 2).flatten(0, 1)


AS_IT_IS = nn.Identity(), nn.Identity()
IMAGES = nn.Conv2d(3, 6, 3), (4, 3, 7, 5), AS_IT_IS, (Axes(0, 2, 3, 1), Axes(0, 3, 1, 2)), "BHWC"
TIME_LAST = nn.Linear(3, 8), (4, 9, 3), AS_IT_IS, (Axes(0, 2, 1), Axes(0, 2, 1)), "BCT"
TIME_FIRST = nn.Linear(3, 8), (4, 9, 3), AS_IT_IS, (Axes(1, 0, 2), Axes(1, 0, 2)), "TBC"
VIDEOS = nn.Conv3d(3, 6, 3), (4, 3, 4, 7, 5), (Frames(undo=False), Frames(undo=True)), AS_IT_IS, "BCTHW"
"""A stem, the shape of its samples, the modules before and after a slot in the order of seeds and in another, and that order."""


def grown(world: tuple[Any, ...], blueprint: str, blend: str, *, ordered: bool) -> tuple[Any, ...]:
    """Return what is computed and learned with a slot after the stem, on axes in the order of seeds or in another."""
    torch.manual_seed(0)
    stem, shape, plain, other, order = copy.deepcopy(world)
    x, (to, back) = torch.randn(shape), plain if ordered else other
    module = nn.Sequential(stem, to, back, nn.Flatten(), nn.LazyLinear(2))
    module(x)
    y = torch.randn(4, 2)
    net = esper.grow(module, ["1"], x, axes=None if ordered else {"1": order}, incubation="closed_loop")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    net.attach(optimizer)
    potential = net.potential(lambda: mse_loss(net(x), y))["1"]
    net.germinate("1", blueprint, blend=blend)
    found: list[Tensor] = [net(x)]
    for epoch in range(3):
        net.begin_epoch()
        optimizer.zero_grad()
        mse_loss(net(x), y).backward()
        if epoch == 0:
            net.incubate(lambda: mse_loss(net(x), y))
        optimizer.step()
        if epoch == 0:
            net.advance("1")
        found.append(net(x).detach())
    again = copy.deepcopy(net)
    found.append(again(x).detach())
    return potential, found, net.contributions(lambda: -mse_loss(net(x), y))


@pytest.mark.parametrize(
    ("world", "blueprint"),
    [(IMAGES, "conv_light"), (IMAGES, "norm"), (TIME_LAST, "attention"), (TIME_FIRST, "mlp"), (VIDEOS, "conv_light")],
)
@pytest.mark.parametrize("blend", ["add", "gate", "multiply"])
def test_seeds_learn_the_same_in_every_order(world: tuple[Any, ...], blueprint: str, blend: str) -> None:
    plain, permuted = (grown(world, blueprint, blend, ordered=ordered) for ordered in (True, False))
    for one, other in zip(plain[1], permuted[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert not torch.equal(plain[1][0], plain[1][-1]), "the seed and the module learn"
    assert plain[0] == pytest.approx(permuted[0], rel=1e-4, nan_ok=True)
    assert plain[2]["1"].value == pytest.approx(permuted[2]["1"].value, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("order", ["BHWC", "WCHB", "TBC", "CTB", "CB", "BCTHW", "CBTHW", "TBHWC", "BCDHW", "HDWBC"])
def test_an_order_is_undone_also_without_a_batch(order: str) -> None:
    sizes = {"B": 2, "C": 3, "H": 4, "W": 5, "T": 6, "D": 7}
    wanted = {5: "BDCHW" if "D" in order else "BTCHW", 4: "BCHW", 3: "BTC", 2: "BC"}[len(order)]
    x = torch.randn([sizes[letter] for letter in order])
    for own, letters in ((x, wanted), (x.select(order.index("B"), 0).contiguous(), wanted.replace("B", ""))):
        assert fits(own, order)
        there, shape = in_order_of_seeds(own, order), [sizes[letter] for letter in letters]
        assert there.shape == torch.Size([shape[0] * shape[1], *shape[2:]] if len(shape) == 5 else shape)
        back = in_own_order(there.contiguous(), order, own)
        assert back.equal(own)
        assert back.is_contiguous()
    assert not fits(torch.randn(2, 1, 1, 1, 1, 1), order)


def test_videos_are_told_to_name_their_axes() -> None:
    x = torch.randn(2, 3, 4, 8, 8)
    sentence = r"slot 0: the output .* \(2, 6, 2, 6, 6\), .*: write axes=\{'0': 'BCTHW'\} for seeds on "
    with pytest.raises(ValueError, match=sentence):
        esper.grow(nn.Sequential(nn.Conv3d(3, 6, 3)), ["0"], x)


@pytest.mark.parametrize(
    ("layer", "samples", "order"),
    [(nn.Conv1d(3, 8, 3), (4, 3, 9), "BCT"), (nn.GRU(3, 8), (9, 4, 3), "TBC"), (nn.BatchNorm1d(8), (4, 8, 9), "BCT")],
)
def test_layers_in_another_order_take_seeds_if_it_is_given(layer: nn.Module, samples: tuple[int, ...], order: str) -> None:
    x = torch.randn(samples)
    net = esper.grow(nn.Sequential(layer), ["0"], x, axes={"0": order})
    net.germinate("0", "attention")
    net.begin_epoch()
    found = net(x)
    assert (found[0] if isinstance(found, tuple) else found).shape[order.index("C")] == 8


def test_features_are_contiguous_after_the_slot_as_before() -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (5, 5)), nn.Flatten(1), nn.Linear(150, 2))
    net = esper.grow(module, {"late": "1"}, torch.randn(2, 25, 3), axes={"late": "BHWC"})
    net.germinate("late", "conv_light")
    net.begin_epoch()
    seen: list[bool] = []
    module[2].register_forward_pre_hook(lambda _, given: seen.append(given[0].is_contiguous()))
    net(torch.randn(2, 25, 3)).sum().backward()
    assert seen == [True]


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"2": "BHWC"}, "axes names '2', which is no slot: choose from 0"),
        ({"0": "HWC"}, r"axes: 'HWC' of slot 0 is no order of B, C, H, W \(images\), .* write it as in 'BHWC'"),
        ({0: "BHWC"}, r"axes must be a dict of texts, got \{0: 'BHWC'\}: write axes=\{'0': 'BHWC'\}"),
        ("BHWC", "axes must be a dict of texts, got 'BHWC'"),
        ({"0": "BCT"}, r"axes: 'BCT' does not fit the output of slot 0, of the shape \(2, 6, 5, 3\)"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(axes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        esper.grow(nn.Sequential(nn.Conv2d(3, 6, 3)), ["0"], torch.randn(2, 3, 7, 5), axes=axes)


@pytest.mark.parametrize(
    ("layers", "path"),
    [
        ([Axes(0, 2, 3, 1), nn.LayerNorm(6)], "0"),  # which a layer of channels-last features reads
        ([Axes(0, 2, 3, 1), nn.Linear(6, 6), nn.GELU()], "2"),  # whose input is that of such a layer
    ],
)
def test_channels_last_images_are_known_by_the_layers_around(layers: list[nn.Module], path: str) -> None:
    x, again = torch.randn(2, 6, 6, 6), copy.deepcopy(layers)  # shapes alone do not tell
    with pytest.warns(UserWarning, match=rf"slot after {path}: .* looks channels-last .* write axes=\{{'{path}': 'BHWC'\}}"):
        esper.grow(nn.Sequential(*layers), [path], x)
    net = esper.grow(nn.Sequential(*again), [path], x, axes={path: "BHWC"})
    net.germinate(path, "conv_light")
    net.begin_epoch()
    assert net(x).shape == x.shape


def test_layers_whose_channels_come_second_are_taken_beside_others() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(6, 6, 1)))
    norm = nn.Identity()
    norm.normalized_shape = 6  # of a class of a user's own
    layers = [
        nn.Linear(8, 8),
        nn.Conv2d(3, 3, 3, padding=1),
        nn.Conv2d(3, 6, 3),
        Axes(0, 2, 3, 1),
        nn.Linear(6, 6),
        Axes(0, 3, 1, 2),
        scripted,
        norm,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        esper.grow(nn.Sequential(*layers), ["1", "5"], torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize("norm", [LayerNorm2d(6), nn.LayerNorm([6, 8, 8]), nn.GroupNorm(2, 6)])
def test_norms_of_other_axes_are_no_layers_of_channels_last_images(norm: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        esper.grow(nn.Sequential(nn.Conv2d(3, 6, 1), norm), ["0", "1"], torch.randn(2, 3, 8, 8))


def test_a_linear_layer_along_an_axis_of_images_is_taken_if_the_order_is_given() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Linear(8, 8), nn.Conv2d(6, 6, 1)), torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match="or 'BCHW' if it is not"):
        esper.grow(module, ["1"], x)
    net = esper.grow(module, ["1"], x, axes={"1": "BCHW"})
    net.germinate("1", "conv_light")


def test_an_error_of_a_loss_says_that_the_network_is_in_evaluation_mode() -> None:
    class Detector(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            found = super().forward(input)
            return {"loss": found.sum()} if self.training else found

    net = esper.grow(nn.Sequential(nn.Linear(4, 4), Detector(4, 4)), ["0"], torch.randn(8, 4))
    with pytest.raises(IndexError) as raised:
        net.potential(lambda: net(torch.randn(8, 4))["loss"])
    assert "evaluation mode" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("first", r"did you mean 0\.first\?"), ("0.frist", r"did you mean 0\.first\?"), ("zzz", r"choose from 0, 0\.first, ")],
)
def test_an_unknown_submodule_is_answered_with_the_closest(path: str, sentence: str) -> None:
    inner = nn.Sequential()
    inner.add_module("first", nn.Linear(4, 4))
    with pytest.raises(ValueError, match=f"slots: the module has no submodule '{path}': {sentence}.*named_modules"):
        esper.grow(nn.Sequential(inner), [path], torch.randn(2, 4))


def test_a_submodule_that_is_not_called_is_named() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](x)

    with pytest.raises(ValueError, match=r"slots: layers is not called for the example .* not a mere container"):
        esper.grow(Lists(), ["layers"], torch.randn(2, 4))


def test_an_empty_slot_is_traced_by_torch_fx_and_one_with_a_seed_is_refused() -> None:
    x, module = torch.randn(2, 3, 8, 8), nn.Sequential(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), nn.Flatten())
    net = esper.grow(module, ["0"], x)
    assert torch.equal(torch.fx.symbolic_trace(net.module)(x), net(x))
    net.germinate("0", "norm")
    with pytest.raises(ValueError, match=r"slot 0: torch\.fx would leave its seed out of the graph"):
        torch.fx.symbolic_trace(net.module)


def test_an_empty_slot_takes_whatever_a_submodule_returns() -> None:
    class Varied(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {2: None, 3: x, 4: x, 5: x}[x.dim()]

    net = esper.grow(nn.Sequential(Varied()), ["0"], torch.randn(2, 8, 8, 3), axes={"0": "BHWC"})
    for shape in ((2, 3), (2, 3, 4), (2, 1, 8, 8, 3)):
        net(torch.randn(shape))
    net.germinate("0", "conv_light")
    net.begin_epoch()
    with pytest.raises(ValueError, match=r"slot 0: seeds grow on images here, .* give esper.grow a batch"):
        net(torch.randn(2, 1, 8, 8, 3))


def test_a_checkpoint_needs_its_axes() -> None:
    x = torch.randn(2, 8, 8, 3)
    asked: tuple[Any, ...] = ({"0": "BHWC"}, {"0": "BWHC"}, None)
    one, other, plain = (esper.grow(nn.Sequential(nn.Identity()), ["0"], x, axes=axes) for axes in asked)
    one.germinate("0", "conv_light")
    again = esper.grow(nn.Sequential(nn.Identity()), ["0"], x, axes={"0": "BHWC"})
    again.load_state_dict(one.state_dict())
    for net in (other, plain):
        with pytest.raises(ValueError, match=r"the checkpoint has axes=\{'0': 'BHWC'\}, but this module has axes="):
            net.load_state_dict(one.state_dict())
