"""Mistakes with `esper.grow` are one sentence, and change nothing."""

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import esper
from esper.config import ConfigError
from esper.evaluation import exported
from esper.growable.module import GrowableModule
from esper.growable.stored import decode
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from tests.growable.test_grow import active, batch, grown, loss_of, module


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(self.map(x))


class Second(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[1]


def recurrent() -> GrowableModule:
    return esper.grow(nn.Sequential(nn.LSTM(4, 4, batch_first=True)), ["0"], torch.ones(2, 3, 4))


def sgd() -> torch.optim.SGD:
    """Return an optimizer of a module of its own."""
    return torch.optim.SGD(module().parameters(), lr=0.1)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no slots": (lambda: esper.grow(module(), [], batch()[0]), "slots is empty"),
    "unknown submodule": (lambda: esper.grow(module(), ["conv1"], batch()[0]), "no submodule 'conv1': choose from 0, 1"),
    "shared submodule": (lambda: esper.grow(Twice(), ["map"], torch.ones(2, 4)), "map runs 2 times"),
    "no features": (
        lambda: esper.grow(nn.Sequential(nn.LSTM(4, 4)), ["0"], (pack_sequence([torch.ones(3, 4)]),)),
        "slot 0: the first element of the output of this submodule is a PackedSequence",
    ),
    "no submodules": (lambda: esper.grow(nn.Linear(4, 4), [""], torch.ones(2, 4)), "wrap it in nn.Sequential, and name '0'"),
    "integers": (
        lambda: esper.grow(nn.Sequential(nn.MaxPool2d(2, return_indices=True), Second(), nn.Flatten()), ["1"], batch()[0]),
        "slot 1: the output of this submodule holds torch.int64, but seeds grow on floating-point images",
    ),
    "compiled": (
        lambda: esper.grow(torch.compile(module(), backend="eager"), ["_orig_mod.1"], batch()[0]),  # pyright: ignore
        "is inside a compiled module: call esper.grow first",
    ),
    "incubation": (lambda: grown(incubation="closed"), "choose from straight_through, closed_loop, none"),
    "incubation twice": (lambda: grown(incubation="closed_loop", rules=SlotsConfig()), "set it in rules only"),
    "gate without a measurement": (
        lambda: grown(gates=GatesConfig(max_gradient_norm=1.0)),
        "max_gradient_norm has no effect here",
    ),
    "slot": (lambda: grown().stage("erly"), "there is no slot erly: choose from early, late; did you mean early?"),
    "slot by number": (
        lambda: esper.grow(module(), ["1"], batch()[0]).stage(1),  # pyright: ignore[reportArgumentType]
        "slots have names, got the int 1: write '1'",
    ),
    "no slot": (lambda: grown().prune(None), "there is no slot None: choose from early, late$"),  # pyright: ignore[reportArgumentType]
    "no blueprint": (lambda: grown().germinate("early", None), "must be a name, such as conv_light, or a config, got None"),  # pyright: ignore
    "class of a blueprint": (
        lambda: grown().germinate("early", ConvLightConfig),  # pyright: ignore[reportArgumentType]
        r"got the class ConvLightConfig: write ConvLightConfig\(\)",
    ),
    "no module": (lambda: esper.grow(torch.sin, ["1"], batch()[0]), "module must be a torch.nn.Module, not builtin"),  # pyright: ignore
    "rules": (lambda: grown(rules=3), r"rules must be a SlotsConfig, not int: write rules=SlotsConfig\(...\)"),
    "gates": (lambda: grown(gates={"min_contribution": 0.1}), "gates must be a GatesConfig, not dict"),
    "rate": (lambda: grown().attach(sgd(), lr=-0.1), "lr must be a number of at least 0, got -0.1"),
    "rate as text": (lambda: grown().attach(sgd(), lr="1e-3"), "lr must be a number of at least 0, got '1e-3'"),
    "value as loss": (lambda: grown().potential(torch.ones(())), "loss must be a function, such as lambda: .*, got a Tensor"),  # pyright: ignore
    "detached loss": (lambda: grown().potential(lambda: torch.ones(())), "that depends on the network, without detach"),
    "score per class": (
        lambda: active(grown()).contributions(lambda: torch.ones(8, 10)),
        r"one value per sample, got shape \(8, 10\): average over the other axes",
    ),
    "blueprint": (lambda: grown().germinate("early", "conv_ligt"), "did you mean conv_light?"),
    "blueprint elsewhere": (lambda: grown().germinate("early", "lora"), "lora cannot grow in slot early"),
    "blend": (
        lambda: grown().germinate("early", "norm", blend="plus"),
        "blend='plus' is not known: choose from add, multiply, gate",
    ),
    "alpha": (lambda: grown().germinate("early", "norm", alpha=0.0), r"alpha must be in \(0, 1\]"),
    "ramp": (lambda: grown().germinate("early", "norm", ramp=-1), "ramp must be a whole number of epochs"),
    "informed": (
        lambda: grown().germinate("early", ConvLightConfig(init="informed")),  # pyright: ignore[reportArgumentType]
        r"germinate\(..., loss=function\)",
    ),
    "occupied": (
        lambda: active(grown()).germinate("early", "norm"),
        "germinate is not permitted: slot early holds a seed already, which is training",
    ),
    "nothing to advance": (
        lambda: grown().advance("early"),
        "advance is not permitted: slot early holds no seed: it is dormant",
    ),
    "loss": (
        lambda: grown().potential(lambda: torch.zeros((), requires_grad=True)),
        "the loss does not depend on slot early or late: let loss",
    ),
    "loss of a loop": (
        lambda: active(grown(incubation="closed_loop")).incubate(torch.ones(())),  # pyright: ignore[reportArgumentType]
        "loss must be a function, such as lambda: criterion",
    ),
    "ramp of a seed in training": (
        lambda: active(grown()).prune("early", ramp=2),
        "ramp=2 has no effect in slot early, which is training: advance the seed first, or leave ramp out",
    ),
    "slots as numbers": (lambda: esper.grow(module(), [1], batch()[0]), r"got \[1\]: write slots=\['1'\]"),  # pyright: ignore[reportArgumentType]
    "targets in the example": (
        lambda: esper.grow(module(), ["1"], batch()),
        r"cannot be called with this example \(TypeError: .*: give the module's input alone, without",
    ),
    "number as the example": (
        lambda: esper.grow(module(), ["1"], 3),
        r"cannot be called with this example \(TypeError: conv2d\(\) received an invalid combination [^-]* - got [^-]*\): give",
    ),
    "array as the example": (
        lambda: esper.grow(module(), ["1"], batch()[0].numpy()),
        r"the example is a NumPy array: give a tensor, as in torch.from_numpy\(example\)",
    ),
    "matrices only": (
        lambda: grown().attach(torch.optim.Muon([nn.Parameter(torch.ones(2, 2))])),
        "Muon optimizes matrices only",
    ),
    "slots as text": (lambda: esper.grow(module(), "1", batch()[0]), r"slots must be a list of paths, got '1'"),
    "slot twice": (lambda: esper.grow(module(), ["1", "1"], batch()[0]), "slots names a submodule twice"),
    "grown before": (lambda: esper.grow(grown().module, ["1"], batch()[0]), "submodule '1' has a slot already"),
    "no optimizer": (lambda: grown().attach(None), "attach needs a PyTorch optimizer, got a NoneType"),  # pyright: ignore[reportArgumentType]
    "setting": (
        lambda: grown().attach(sgd(), learning_rate=0.1),
        "SGD has no setting learning_rate: choose from lr, momentum",
    ),
    "one group": (lambda: grown().attach(torch.optim.LBFGS(module().parameters())), "LBFGS takes a single parameter group"),
    "scores": (lambda: active(grown()).contributions(lambda: ["7"]), r"score\(\) must return a number, or a tensor or array"),  # pyright: ignore[reportArgumentType]
    "no function": (lambda: grown().contributions(7.0), "score must be a function"),  # pyright: ignore[reportArgumentType]
    "number as loss": (lambda: grown().potential(lambda: 0.5), "tensor with one number, got 0.5"),  # pyright: ignore[reportArgumentType]
    "losses": (lambda: grown().potential(lambda: torch.ones(3)), r"tensor with one number, got shape \(3,\)"),
    "seed in the optimizer": (
        lambda: (net := active(grown())).attach(torch.optim.SGD(net.parameters(), lr=0.1)),
        "the optimizer has the parameters of the seed in slot early already",
    ),
    "score": (lambda: active(grown()).contributions(lambda: float("nan")), "returned NaN or infinity, so nothing was recorded"),
    "one sample": (lambda: grown().export("/nowhere", batch()[0][:1]), "samples must be at least three, got 1"),
    "samples by name": (lambda: grown().export("/nowhere", {"x": batch()[0]}), "samples must be one tensor, got a dict: before"),  # pyright: ignore
    "two outputs": (lambda: recurrent().export("/nowhere", torch.ones(3, 4, 4)), "returns a tuple, but export needs one tensor"),
    "export": (lambda: grown().export("/nowhere", batch()[0], "tflite"), "format=.tflite. is not known"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_one_sentence(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_mistakes_change_nothing() -> None:
    net = active(grown())
    before = decode(net.get_extra_state())
    calls = [
        lambda: net.germinate("late", "lora"),
        lambda: net.germinate("late", "norm", ramp=-1),
        lambda: net.fossilize("early"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"cannot grow|not permitted|whole number"):
            call()
    assert net.seed("late") is None
    np.testing.assert_equal(decode(net.get_extra_state()), before)


def test_an_emptied_slot_says_when_it_is_free() -> None:
    net = active(grown())
    net.prune("early")
    for left in ("2 net.begin_epoch() calls", "1 net.begin_epoch() call"):
        with pytest.raises(ValueError, match=f"^germinate is not permitted: slot early is free again after {re.escape(left)}$"):
            net.germinate("early", "norm")
        net.begin_epoch()
    net.germinate("early", "norm")


def test_an_optimizer_of_another_module_is_warned_of() -> None:
    with pytest.warns(
        UserWarning, match="has no parameters of the module, so it trains the seeds only: build it from net.module.par"
    ):
        grown().attach(sgd())


def test_a_seed_that_nothing_trains_is_warned_of() -> None:
    net = active(grown())  # which writes to the seed once
    net.begin_epoch()
    net = grown()
    net.germinate("early", "norm")
    net.begin_epoch()
    with pytest.warns(UserWarning, match=r"no optimizer has changed the seed in slot early in an epoch: call net.attach"):
        net.begin_epoch()
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.1)
    net.attach(optimizer)
    net(batch()[0]).sum().backward()
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.begin_epoch()
        net = grown(rules=SlotsConfig(auto_advance=[]))
        net.germinate("early", "norm")
        net.advance("early")
        net.begin_epoch()  # before which no epoch was trained


def test_a_checkpoint_of_other_slots_is_refused() -> None:
    other = esper.grow(module(), ["1"], batch()[0])
    with pytest.raises(ValueError, match="the checkpoint has the slots early=1, late=4, but this module has 1"):
        other.load_state_dict(grown().state_dict())
    moved = esper.grow(module(), {"early": "1", "late": "3"}, batch()[0])
    with pytest.raises(ValueError, match="the checkpoint has the slots early=1, late=4, but this module has early=1, late=3"):
        moved.load_state_dict(grown().state_dict())
    saved = grown().state_dict()
    saved["_extra_state"] = {key: value for key, value in decode(saved["_extra_state"]).items() if key != "paths"}
    moved.load_state_dict(saved)


def test_a_forgotten_begin_epoch_is_said() -> None:
    net = grown()
    assert net.contributions(lambda: 1.0) == {}
    net.germinate("late", "norm")
    with pytest.warns(UserWarning, match=r"the seed in slot late was planted, .* call net\.begin_epoch\(\) before each epoch"):
        assert net.contributions(lambda: 1.0) == {}
    net.begin_epoch()
    assert net.contributions(lambda: 1.0).keys() == {"late"}


def test_a_failed_export_leaves_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exported.NEEDS, "onnx", ("not_there",))
    with pytest.raises(ConfigError, match="format=onnx needs not_there: pip install"):
        grown().export(tmp_path / "new", batch()[0], format="onnx")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(ConfigError):
        grown().export(tmp_path / "old", batch()[0], format="onnx")
    assert (tmp_path / "old").exists()


def test_nothing_goes_on_while_a_seed_is_switched_off() -> None:
    net = active(grown())
    with net.without("early"):
        with pytest.raises(RuntimeError, match=r"contributions\(\) was called in a `with net\.without"):
            net.contributions(lambda: 1.0)
        with net.without("early"), pytest.raises(RuntimeError, match=r"begin_epoch\(\) was called"):
            net.begin_epoch()
        with pytest.raises(RuntimeError, match=r"prune\(\) was called"):
            net.prune("early")
        twin = copy.deepcopy(net)
    twin.begin_epoch()
    net.begin_epoch()
    scores = iter([np.array([1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0])])
    buffer = np.zeros(3)

    def score() -> np.ndarray:
        buffer[:] = next(scores)
        return buffer

    assert net.contributions(score)["early"] == pytest.approx((1 / 3, 1 / 3)), (
        "NumPy's arrays are scores, also one that is reused"
    )


def test_a_second_pass_that_fails_is_still_to_be_done() -> None:
    net = active(grown(incubation="closed_loop"))
    loss_of(net)().backward()
    with pytest.raises(ValueError, match=r"loss\(\) must return the mean loss of a batch, a tensor with one number, got 0.5"):
        net.incubate(lambda: 0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match=r"net.incubate\(loss\) was not called"):
        net.begin_epoch()
    net.incubate(loss_of(net))
    net.begin_epoch()
