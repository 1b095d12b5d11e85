"""`esper.grow` beside what else PyTorch offers: devices, processes, in-place operations, recurrent layers, random streams."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.growable.slot import on_cpu
from esper.growable.stored import decode
from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.slots import SlotsConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from tests.forked import in_fork
from tests.growable.test_grow import active, batch, grown, loss_of, module, moved


def values(seed: nn.Module | None) -> Tensor:
    assert seed is not None
    return nn.utils.parameters_to_vector(seed.parameters()).detach().clone()


def in_place(*, works: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=works), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize("trunk", ["learning", "frozen"])
def test_code_after_a_slot_may_work_in_place(trunk: str) -> None:
    found, first = [], []
    for works in (False, True):
        net = esper.grow(in_place(works=works), ["1"], batch()[0])
        net.module.requires_grad_(trunk == "learning")
        found.append(net.potential(loss_of(net), ["conv_light", "norm"]))
        torch.manual_seed(1)
        seed = net.germinate("1", ConvLightConfig(init="informed"), loss=loss_of(net))  # pyright: ignore[reportArgumentType]
        born = values(seed)
        moved(seed)
        net.begin_epoch()
        loss_of(net)().backward()
        first.append((born, torch.cat([one.grad.flatten() for one in seed.parameters() if one.grad is not None])))
    assert found[0] == found[1]
    assert all(one.equal(other) for one, other in zip(*first, strict=True))


def test_a_seed_in_a_closed_loop_learns_for_as_long_as_it_may() -> None:
    net = grown(rules=SlotsConfig(incubation=Incubation.closed_loop, learning_epochs=2, min_prune_age=0))
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.1)
    net.attach(optimizer)
    seed, changed = net.germinate("early", "conv_light"), list[bool]()
    for _ in range(4):
        net.begin_epoch()
        before = values(seed)
        loss_of(net)().backward()
        net.incubate(loss_of(net))
        optimizer.step()
        changed.append(not values(seed).equal(before))
    assert changed == [True, True, False, False]
    net.begin_epoch()
    loss_of(net)().backward()
    net.begin_epoch()  # nothing learns in the loop, so no pass is missing


def test_only_slots_in_use_take_seeds() -> None:
    net = grown(rules=SlotsConfig(where=["late"], incubation=Incubation.none))
    net.germinate("late", "norm")
    with pytest.raises(ValueError, match=r"germinate is not permitted: slot early is not in use: add it to rules.where"):
        net.germinate("early", "norm")
    with pytest.raises(ValueError, match=r"rules: where=\[.later.\] names no slot of this module: it has early, late"):
        grown(rules=SlotsConfig(where=["later"]))


def test_a_frozen_fossil_stays_where_it_is_also_if_gradients_are_zeroed() -> None:
    net = grown(rules=SlotsConfig(min_prune_age=0, incubation=Incubation.none, fossils=Fossils.frozen))
    optimizer = torch.optim.Adam(net.module.parameters(), lr=0.1)
    net.attach(optimizer)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss_of(net)().backward()
        optimizer.step()

    active(net)
    step()
    net.contributions(lambda: -float(loss_of(net)()))
    net.advance("early")
    net.fossilize("early")
    kept = values(net.seed("early"))
    net.begin_epoch()
    step()
    assert values(net.seed("early")).equal(kept)


def test_measuring_and_loading_leave_the_random_stream_alone() -> None:
    net, other = active(grown()), grown()
    saved, before = net.state_dict(), torch.get_rng_state()
    net.potential(loss_of(net))
    other.load_state_dict(saved)
    assert torch.get_rng_state().equal(before)


class OnGPU(Tensor):
    """A tensor that NumPy cannot read, as if it were on a GPU."""

    def numpy(self, *_: Any, **__: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any, **__: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.as_subclass(Tensor)


def test_a_checkpoint_may_be_loaded_to_a_gpu_and_may_be_that_of_an_earlier_version() -> None:
    """Earlier versions saved a dictionary with tensors, and fields that are gone."""
    net, other = active(grown()), grown()
    net.contributions(lambda: torch.rand(7, dtype=torch.float64))
    stored = net.get_extra_state()
    state = decode(stored)
    arrays = {name: torch.tensor(values).as_subclass(OnGPU) for name, values in state["state"].items()}
    for saved in (stored.as_subclass(OnGPU), {**state, "state": arrays | {"velocity": torch.zeros(1, 1)}}):
        other.set_extra_state(saved)
        np.testing.assert_equal(decode(other.get_extra_state()), state)


def test_a_network_elsewhere_is_exported_as_a_copy_on_the_cpu() -> None:
    net = active(grown())
    assert on_cpu(net) is net
    with pytest.raises(NotImplementedError, match="meta"):  # what has no data cannot be copied to the CPU, but it was tried
        on_cpu(active(grown()).to("meta"))


def test_files_count_what_they_hold(tmp_path: Path) -> None:
    net = grown(incubation="closed_loop")
    net.germinate("early", "conv_light")
    net.begin_epoch()
    net.export(tmp_path, batch()[0])
    about = json.loads((tmp_path / "topology.json").read_text())
    assert about["seeds"] == []
    assert about["parameters"] == sum(one.numel() for one in module().parameters())


def test_a_seed_takes_the_precision_of_the_layers_around_it() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).double())

    net = esper.grow(Mixed(), ["first", "second"], torch.randn(2, 4))
    found = [next(net.germinate(slot, "mlp_small").parameters()).dtype for slot in ("first", "second")]
    assert found == [torch.float32, torch.float64]
    bare = esper.grow(nn.Sequential(nn.ReLU(), nn.Flatten()), ["0"], batch()[0])
    assert next(bare.germinate("0", "conv_light").parameters()).dtype is torch.float32


@pytest.mark.parametrize("ramp", [math.nan, None, 1.5, "2"])
def test_a_ramp_that_is_no_number_of_epochs_is_one_sentence(ramp: Any) -> None:
    with pytest.raises(ValueError, match="ramp must be a whole number of epochs, at least 0, got"):
        grown().germinate("early", "norm", ramp=ramp)


@pytest.mark.parametrize("alpha", [math.nan, None, 1.5, "1", 0])
def test_an_alpha_that_is_no_weight_is_one_sentence(alpha: Any) -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\], got"):
        grown().germinate("early", "norm", alpha=alpha)


def test_an_optimizer_that_writes_to_the_data_is_seen() -> None:
    net = grown()
    seed = net.germinate("early", "norm")
    net.begin_epoch()
    for parameter in seed.parameters():
        parameter.data.add_(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.begin_epoch()
        net.begin_epoch()


def test_a_refused_call_leaves_no_hook() -> None:
    plain = module()
    with pytest.raises(ValueError, match="no submodule 'nope'"):
        esper.grow(plain, ["1", "nope"], batch()[0])
    assert not any(layer._forward_hooks for layer in plain.modules())


def test_processes_that_do_not_share_a_seed_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.warns(UserWarning, match="this seed is not synchronised across processes"):
        grown().germinate("early", "norm")


class Recurrent(nn.Module):
    """A recurrent layer after a slot; `modes` says whether it was in training mode in each forward pass."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.map, self.lstm = nn.Linear(3, 4), nn.LSTM(4, 4, 2, batch_first=True, dropout=dropout)
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.lstm.training)
        y, _ = self.lstm(self.map(x))
        return y


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recurrent_layers_without_dropout_stay_in_training_mode(dropout: float) -> None:
    """CuDNN computes their gradients in no other."""
    network, x = Recurrent(dropout), torch.randn(5, 6, 3)
    net = esper.grow(network, ["map"], x).eval()
    network.modes.clear()
    net.potential(lambda: net(x).square().mean(), ["lora"])
    assert network.modes == [not dropout]
    assert not network.lstm.training


@pytest.mark.parametrize("blend", ["add", "multiply"])
def test_second_derivatives_are_right(blend: str) -> None:
    net = active(grown(), blend=blend).double().eval()
    x = batch()[0].double().requires_grad_()
    layers, seed = list(net.module.children()), net.seed("early")
    assert seed is not None

    def penalty(out: Tensor) -> tuple[Tensor, ...]:
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, *seed.parameters(), *layers[0].parameters()])

    h = layers[1].forward(layers[0](x))  # without its hook
    h = h * (1 + torch.tanh(seed(h))) if blend == "multiply" else h + seed(h)
    for one, other in zip(penalty(net(x)), penalty(nn.Sequential(*layers[2:])(h)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("incubation", list(Incubation))
def test_a_group_norm_grows_on_channels_last_images(incubation: Incubation, frozen: bool) -> None:
    """In a fork: PyTorch crashes in the backward pass of a group norm on channels-last images that need no gradient."""

    def gradients() -> dict[str, list[Tensor]]:
        found = dict[str, list[Tensor]]()
        for form in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(0)
            layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5)
            module = nn.Sequential(*layers).to(memory_format=form).requires_grad_(not frozen)
            x, y = torch.randn(4, 3, 8, 8).to(memory_format=form), torch.arange(4)
            net = esper.grow(module, slots=["1"], example=x, incubation=incubation.value)
            seed = net.germinate("1", "norm")
            for parameter in seed.parameters():
                parameter.data.add_(0.1)
            net.begin_epoch()
            F.cross_entropy(net(x), y).backward()
            net.incubate(lambda net=net, x=x, y=y: F.cross_entropy(net(x), y))
            found[str(form)] = [parameter.grad for parameter in seed.parameters() if parameter.grad is not None]
        return found

    if frozen and incubation is Incubation.closed_loop:
        pytest.skip("the loss of a frozen module depends on nothing that learns before the second pass")
    one, other = in_fork(gradients).values()
    assert one
    for pair in zip(one, other, strict=True):
        torch.testing.assert_close(*pair)
