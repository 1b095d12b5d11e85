"""A network with slots among other people's code: it shows the attributes of its module, and others' hooks see its seeds."""

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.growable.module import GrowableModule
from esper.growable.stored import decode, encode
from esper.lifecycle.stages import Stage
from tests.growable.test_grow import active, batch, grown

FEATURES = 8


class Model(nn.Module):
    """A model in the manner of Hugging Face: it takes the number of items in a batch, and can write itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, FEATURES), nn.Linear(FEATURES, 2)
        self.config = {"classes": 2}
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return self.second(self.first(x))

    def generate(self) -> Tensor:
        return self(torch.ones(1, 4))

    @property
    def broken(self) -> int:
        raise ValueError("of the model")

    def stage(self) -> str:
        raise AssertionError("the network has a method of this name")

    def save_pretrained(self) -> None:
        raise AssertionError("the seeds would be left out")


class Plain(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def network(module: nn.Module | None = None) -> GrowableModule:
    """Return a network with a seed that changes its output."""
    net = esper.grow(module or Model(), ["first"], torch.randn(3, 4))
    seed = net.germinate("first", "mlp")
    net.begin_epoch()
    for parameter in seed.parameters():
        nn.init.normal_(parameter)
    return net


def test_attributes_of_the_module_are_found_and_its_methods_compute_with_seeds() -> None:
    net = network()
    assert net.config == {"classes": 2}
    assert torch.equal(net.generate(), net(torch.ones(1, 4)))
    assert net.stage("first") is Stage.TRAINING, "not that of the module"
    with pytest.raises(ValueError, match="of the model"):
        _ = net.broken
    for name in ("none", "_private"):
        net.module.__dict__["_private"] = 1
        assert not hasattr(net, name)
        with pytest.raises(AttributeError, match=f"'GrowableModule' object has no attribute '{name}'"):
            getattr(net, name)


def test_a_method_that_would_leave_seeds_out_is_refused() -> None:
    with pytest.raises(
        AttributeError, match=r"save_pretrained would leave the seeds out: save state_dict\(\), or call net.module"
    ):
        network().save_pretrained()
    with pytest.raises(AttributeError, match="has no attribute 'push_to_hub'"):
        network().push_to_hub()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_find_attributes_too(again: Any) -> None:
    net = network()
    other = again(net)
    assert other.config is other.module.config
    assert other.config is not net.config
    assert torch.equal(other.generate(), net.generate())


@pytest.mark.parametrize(
    ("module", "accepts"),
    [(Model(), True), (Model(accepts_loss_kwargs=False), False), (nn.Sequential(Plain(4, 8)), False)],
)
def test_it_takes_the_number_of_items_if_the_module_does(module: nn.Module, *, accepts: bool) -> None:
    path = "0" if isinstance(module, nn.Sequential) else "first"
    assert esper.grow(module, [path], torch.randn(3, 4)).accepts_loss_kwargs is accepts


def test_hooks_that_note_features_see_seeds_whenever_they_were_registered() -> None:
    module, noted, read = Model(), list[Tensor](), list[Tensor]()
    module.first.register_forward_hook(lambda _, __, output: noted.append(output))
    net = network(module)
    module.first.register_forward_hook(lambda _, __, output: noted.append(output))
    module.second.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    net(torch.randn(3, 4))
    assert torch.equal(noted[-2], read[-1])
    assert torch.equal(noted[-1], read[-1])


def test_a_network_of_an_earlier_version_computes() -> None:
    net = network()
    slot, submodule = net.slots[0], net.module.first
    submodule._forward_hooks.clear()
    submodule._forward_hooks_with_kwargs.clear()
    submodule.register_forward_hook(slot._after)  # as it was, without keyword arguments
    old = torch.load(io.BytesIO(_bytes(net)), weights_only=False)
    x = torch.randn(3, 4)
    assert torch.equal(old(x), net(x))
    with old.without("first"):
        assert not torch.equal(old(x), net(x))


def _bytes(net: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(net, file)
    return file.getvalue()


def test_the_size_of_a_state_depends_on_its_seeds_only() -> None:
    net, (x, _) = active(grown()), batch()
    sizes = set[int]()
    for _ in range(12):  # ages of one and of two digits
        net.contributions(lambda: net(x)[:, 0])
        net.begin_epoch()
        sizes.add(len(net.get_extra_state()))
    assert len(sizes) == 1
    assert len({len(encode({"9" * 100: number})) for number in (1, 123456, -1e-30)}) == 1
    assert decode(net.get_extra_state())["state"] == decode(copy.deepcopy(net).get_extra_state())["state"]


class Cache:
    """A cache of keys and values, as far as a seed asks."""

    def __init__(self, positions: int | None) -> None:
        self.positions = positions

    def get_seq_length(self) -> int:
        if self.positions is None:
            raise ValueError("this cache holds other states")
        return self.positions


class Layer(nn.Linear):
    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize(
    ("blueprint", "positions", "warns"),
    [("attention", 6, True), ("attention", 3, False), ("attention", None, False), ("mlp", 6, False)],
)
def test_an_attention_seed_warns_of_positions_in_a_cache(blueprint: str, positions: int | None, *, warns: bool) -> None:
    net = esper.grow(nn.Sequential(Layer(4, 4)), ["0"], torch.randn(2, 3, 4))
    net.germinate("0", blueprint)
    net.begin_epoch()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        net.module[0](torch.randn(2, 3, 4), cache=Cache(positions))
        net.module[0](torch.randn(2, 3, 4), Cache(positions))
        net(torch.randn(2, 3, 4))
    assert [str(one.message)[:41] for one in told] == ["slot 0: an attention seed got the positio"] * 2 * warns


def test_a_potential_without_a_gradient_is_told() -> None:
    module = Model()
    nn.init.zeros_(module.second.weight)
    net, x = esper.grow(module, ["first"], torch.randn(3, 4)), torch.randn(32, 4)
    with pytest.warns(UserWarning, match=r"the gradient of the loss is 0 at slot first, .* train the network before"):
        found = net.potential(lambda: net(x).square().mean())
    assert set(found["first"].values()) == {0.0}


def test_attributes_of_the_module_are_set_and_deleted_there() -> None:
    net = network(Model(checkpointing=False))
    net.checkpointing = True
    assert net.module.checkpointing is True
    assert "checkpointing" not in net.__dict__
    net.second = nn.Linear(FEATURES, 7)
    assert net(torch.randn(3, 4)).shape == (3, 7)
    assert len([*net.module.parameters()]) == 4
    del net.checkpointing
    assert not hasattr(net.module, "checkpointing")
    net.module._private, net._private = 1, 2
    assert net.module._private == 1
    net.note, net.training = "of the network", True
    assert not hasattr(net.module, "note")
    assert net.__dict__["note"] == "of the network"


def test_the_state_of_the_module_alone_warns_while_there_are_seeds() -> None:
    net = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.state_dict()
        nn.ModuleDict({"part": net}).state_dict()
        torch.optim.swa_utils.AveragedModel(net).state_dict()
        esper.grow(Model(), ["first"], torch.randn(3, 4)).module.state_dict()
    for state_dict in (
        net.module.state_dict,
        nn.ModuleDict({"part": net.module}).state_dict,
        copy.deepcopy(net).module.state_dict,
    ):
        with pytest.warns(
            UserWarning, match=r"this state_dict leaves out the seed in slot first: call state_dict of the network"
        ):
            state_dict()


class Wrapper(nn.Module):
    """Holds a submodule alone, as `torch.compile` does, or with an adapter."""

    def __init__(self, inner: nn.Module, *, adapter: bool) -> None:
        super().__init__()
        self.inner = inner
        if adapter:
            self.adapter = nn.Linear(4, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_a_submodule_that_is_no_longer_the_one_of_the_slot_is_refused() -> None:
    x = torch.randn(8, 4)
    for change in (
        lambda module: Wrapper(module.first, adapter=True),
        lambda module: copy.deepcopy(module.first),  # its hook is that of a copy of the slot
        lambda _: nn.Linear(4, FEATURES),
    ):
        net = network()
        net.module.first = change(net.module)
        for call in (
            net.begin_epoch,
            lambda net=net: net.contributions(lambda: net(x)[:, 0]),
            lambda net=net: net.potential(lambda: net(x).square().mean()),
            lambda net=net: net.incubate(lambda: net(x).square().mean()),
            lambda net=net: net.export("unused", x),
        ):
            with pytest.raises(ValueError, match=r"slot first no longer exists, because submodule first was replaced"):
                call()
    net = network()
    net.module.first = Wrapper(net.module.first, adapter=False)
    net.begin_epoch()


class Gathered(nn.Linear):
    """Notes that it is asked to shard its parameters again, as FSDP keeps them gathered after a pass without gradients."""

    reshards = 0

    def reshard(self) -> None:
        self.reshards += 1


def test_parameters_that_a_pass_gathered_are_sharded_again() -> None:
    layer = Gathered(4, FEATURES)
    esper.grow(nn.Sequential(layer), ["0"], torch.randn(3, 4))
    assert layer.reshards == 1


def test_a_seed_has_the_mode_of_an_optimizer_that_has_one() -> None:
    class Averaging(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self.defaults["train_mode"] = False
            for group in self.param_groups:
                group["train_mode"] = True

    net = esper.grow(Model(), ["first"], torch.randn(3, 4))
    optimizer = Averaging(net.module.parameters())
    net.attach(optimizer)
    net.germinate("first", "mlp")
    assert [group["train_mode"] for group in optimizer.param_groups] == [True, True]


@pytest.mark.parametrize("odd", ["of one byte", "without values"])
def test_a_seed_takes_its_type_and_device_from_weights_that_compute(odd: str) -> None:
    module = Model()
    net = esper.grow(module, ["first"], torch.randn(3, 4))
    module.second.double()
    weight = module.first.weight.data
    module.first.bias = None
    module.first.weight = nn.Parameter(weight.to(torch.float8_e4m3fn) if odd == "of one byte" else weight.to("meta"), False)
    seed = net.germinate("first", "mlp")
    assert {(parameter.dtype, parameter.device.type) for parameter in seed.parameters()} == {(torch.float64, "cpu")}


def test_a_seed_that_is_planted_in_inference_mode_learns() -> None:
    net = esper.grow(Model(), ["first"], torch.randn(3, 4))
    with torch.inference_mode():
        net.germinate("first", "mlp")
    net.begin_epoch()
    net(torch.randn(3, 4)).sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in net.slots.parameters())


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)])
def test_an_attention_seed_takes_no_samples_and_no_positions(shape: tuple[int, ...]) -> None:
    net = esper.grow(nn.Sequential(nn.Tanh()), ["0"], torch.randn(2, 3, 8))
    net.germinate("0", "attention")
    net.begin_epoch()
    assert net(torch.randn(shape)).shape == shape


class Strange:
    """An argument whose attributes are not looked up as usual."""

    def __init__(self, error: Exception) -> None:
        self.__dict__["error"] = error

    def __getattr__(self, name: str) -> Any:
        if name == "get_seq_length":
            raise self.error
        raise AttributeError(name)


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("b"), TypeError("c")])
def test_an_argument_that_is_no_cache_is_passed_on(error: Exception) -> None:
    net = esper.grow(nn.Sequential(Layer(4, 4)), ["0"], torch.randn(2, 3, 4))
    net.germinate("0", "attention")
    net.begin_epoch()
    assert net.module[0](torch.randn(2, 3, 4), cache=Strange(error)).shape == (2, 3, 4)


def test_networks_of_an_earlier_version_pass_attributes_on() -> None:
    net = network(Model(checkpointing=False))
    del net.__dict__["_is_built"]
    net.module._state_dict_hooks.clear()
    old = pickle.loads(pickle.dumps(net))
    old.checkpointing = True
    assert old.module.checkpointing is True
    with pytest.warns(UserWarning, match="leaves out the seed in slot first"):
        old.module.state_dict()


def test_the_state_of_a_compiled_part_is_whole() -> None:
    net = network()
    net.module = torch.compile(net.module, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.state_dict()


class Lazy(Model):
    """Has a property that cannot be computed yet."""

    @property
    def later(self) -> int:
        raise RuntimeError("not ready")

    @later.setter
    def later(self, value: int) -> None:
        self.kept = value


def test_setting_an_attribute_computes_none() -> None:
    net = network(Lazy(accepts_loss_kwargs=True))
    net.later, net.accepts_loss_kwargs = 3, False
    assert net.module.kept == 3
    assert net.module.accepts_loss_kwargs is net.accepts_loss_kwargs is False


@pytest.mark.parametrize(("blueprint", "shape"), [("conv_light", (4, 6, 6)), ("attention", (5, 4)), ("mlp", (4,))])
def test_a_potential_takes_a_sample_without_a_batch(blueprint: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(8, *shape)
    net = esper.grow(nn.Sequential(nn.Tanh(), nn.Tanh()), ["0"], x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few vectors
        alone, batch = (net.potential(lambda some=some: net(some).square().mean(), [blueprint]) for some in (x[0], x[:1]))
    assert alone["0"][blueprint] == pytest.approx(batch["0"][blueprint], rel=1e-4, nan_ok=True)
