"""Seeds of the user's own blueprints, and what slots do around them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import esper
from esper.config import GROUPS
from esper.seeds.blueprints.base import BlueprintConfig
from tests.growable.test_grow import active, batch, grown, loss_of


@dataclass(kw_only=True, slots=True)
class OwnConfig(BlueprintConfig):
    """A seed made by a function of its number of channels."""

    make: str = "zero"
    size: Any = 3

    def obstacle(self, slot: Any) -> str | None:
        return None

    def branch(self, slot: Any) -> nn.Module:
        return MAKE[self.make](slot.channels)


@dataclass
class Size:
    width: int = 3


def zero(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Blurred(nn.Module):
    """A layer with a constant buffer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.map = zero(nn.Conv2d(channels, channels, 1))
        self.register_buffer("blur", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(self.blur * x)


MAKE: dict[str, Callable[[int], nn.Module]] = {
    "zero": lambda channels: zero(nn.Conv2d(channels, channels, 1)),
    "random": lambda channels: nn.Conv2d(channels, channels, 1),
    "narrow": lambda channels: zero(nn.Conv2d(channels, 1, 1)),
    "normed": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), zero(nn.Conv2d(channels, channels, 1))),
    "behind a norm": lambda channels: nn.Sequential(nn.GroupNorm(1, channels), nn.Conv2d(channels, channels, 1, bias=False)),
    "blurred": lambda channels: Blurred(channels),
    "empty": lambda channels: nn.Identity(),
    "wrong": lambda channels: nn.Linear(3, 3),
}


@pytest.fixture(autouse=True)
def own_blueprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS["blueprint"], "own", OwnConfig)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        ("random", "is not the identity at birth: end it in a layer initialised to zero"),
        ("narrow", r"returns the shape \(2, 1, 6, 6\) for features of the shape \(2, 4, 6, 6\)"),
        ("normed", "changes its buffers, such as running statistics, and must not: use GroupNorm"),
        ("behind a norm", "is not the identity at birth: end it in a layer initialised to zero"),
        ("empty", "has no parameters and cannot learn"),
        ("wrong", r"fails on \(2, 4, 6, 6\) with RuntimeError"),
    ],
)
def test_a_seed_that_cannot_grow_is_refused_before_it_is_planted(make: str, sentence: str) -> None:
    net = grown()
    for call in (
        lambda: net.germinate("early", OwnConfig(make=make)),
        lambda: net.potential(loss_of(net), [OwnConfig(make=make)]),
    ):
        with pytest.raises(ValueError, match=f"^blueprint=OwnConfig: the seed in slot early {sentence}"):
            call()
    assert net.seed("early") is None
    net.germinate("early", OwnConfig())
    net.germinate("late", OwnConfig(make="blurred"))


def test_settings_that_a_checkpoint_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^OwnConfig: checkpoints cannot hold the setting size, a Size: use numbers, strings"):
        grown().germinate("early", OwnConfig(size=Size()))
    grown().germinate("early", OwnConfig(size=[1, 2]))


def test_a_network_without_memory_grows() -> None:
    with torch.device("meta"):
        net = esper.grow(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["1"], torch.empty(2, 4))
        assert {parameter.device.type for parameter in net.germinate("1", "norm").parameters()} == {"meta"}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))
        self.same = self.a

    def forward(self, x: Tensor, every: bool = True) -> tuple[Tensor, ...]:
        return self.a(x), self.b(x), *([self.c(x)] if every else [])


def test_a_loss_need_not_depend_on_every_slot() -> None:
    x = torch.randn(32, 4)
    net = esper.grow(TwoHeads(), (name for name in ("a", "b", "c")), x)  # pyright: ignore[reportArgumentType]
    with pytest.warns(UserWarning, match="the loss does not depend on slot [bc]: its growth potential is NaN"):
        found = net.potential(lambda: net(x, every=False)[0].square().mean(), ["norm"])
    assert found["a"]["norm"] > 0
    assert {found[name]["norm"] > 0 for name in "bc"} == {False}
    with pytest.raises(ValueError, match="the loss does not depend on slot a or b or c"):
        net.potential(lambda: torch.zeros((), requires_grad=True), ["norm"])


def test_a_submodule_has_any_of_its_names() -> None:
    net = esper.grow(TwoHeads(), ["same"], torch.randn(2, 4))
    net.module.b.double()  # pyright: ignore[reportCallIssue]
    net.module.a[1].to(torch.float64)  # pyright: ignore[reportIndexIssue]
    assert {parameter.dtype for parameter in net.germinate("same", "norm").parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="slots names a submodule twice: a, same"):
        esper.grow(TwoHeads(), ["a", "same"], torch.randn(2, 4))


def test_a_submodule_that_is_replaced_later_is_missed_at_once() -> None:
    net = active(grown())
    net.module[1] = nn.Sequential(net.module[1])  # pyright: ignore[reportIndexIssue]
    net.begin_epoch()  # a wrapper keeps the slot
    net.module[1] = nn.GELU()  # pyright: ignore[reportIndexIssue]
    for call in (net.begin_epoch, lambda: net.advance("early"), lambda: net.contributions(lambda: 1.0)):
        with pytest.raises(ValueError, match=r"slot early no longer exists, because submodule 1 was replaced after esper.grow"):
            call()


class Merged(nn.Linear):
    """A layer with a `train` of its own, as LoRA layers have, which merge their weights for evaluation."""

    merged = False

    def train(self, mode: bool = True) -> "Merged":
        self.merged = not mode
        return super().train(mode)


def test_a_measurement_leaves_layers_as_they_were() -> None:
    module = nn.Sequential(Merged(4, 4), nn.ReLU(), nn.Sequential(Merged(4, 2)))
    module[2].eval()
    x, layers = torch.randn(8, 4), [module[0], module[2][0]]  # pyright: ignore[reportIndexIssue]
    net = esper.grow(module, ["1"], x)
    net.germinate("1", "norm")
    net.contributions(lambda: net(x).mean(1))
    net.potential(lambda: net(x).square().mean(), ["norm"])
    assert [(layer.training, layer.merged) for layer in layers] == [(True, False), (False, True)]  # pyright: ignore[reportAttributeAccessIssue]


class Mixed(nn.Module):
    """A block that norms in single precision and returns bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.map = nn.LayerNorm(4), nn.Linear(4, 4).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.map(self.norm(x.float()).bfloat16())


def test_a_seed_computes_in_its_own_precision_where_a_network_mixes_them() -> None:
    x = torch.randn(8, 4).bfloat16()
    net = esper.grow(nn.Sequential(Mixed(), nn.Linear(4, 2).bfloat16()), ["0"], x)
    seed = net.germinate("0", "mlp")
    net.begin_epoch()
    net(x).float().square().mean().backward()
    assert {parameter.dtype for parameter in seed.parameters()} == {torch.float32}
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in seed.parameters())


def test_a_pass_after_the_second_one_is_no_mistake() -> None:
    net = active(grown(incubation="closed_loop"))
    loss_of(net)().backward()
    net.incubate(loss_of(net))
    loss_of(net)()  # to log it
    net.begin_epoch()
    loss_of(net)().backward()
    with pytest.raises(RuntimeError, match=r"net.incubate\(loss\) was not called"):
        net.begin_epoch()
    with net.without("early"), pytest.raises(RuntimeError, match=r"incubate\(\) was called in a `with net.without"):
        net.incubate(loss_of(net))


@pytest.mark.parametrize("reentrant", [False, True])
def test_reentrant_checkpointing_is_named(reentrant: bool) -> None:
    x, y = batch()
    net = active(grown(incubation="closed_loop"))

    def loss() -> Tensor:
        return nn.functional.cross_entropy(checkpoint(net, x, use_reentrant=reentrant), y)  # pyright: ignore[reportArgumentType]

    for call in (lambda: net.incubate(loss), lambda: net.potential(loss, ["norm"])):
        if reentrant:
            with pytest.raises(ValueError, match="with activation checkpointing, use use_reentrant=False"):
                call()
        else:
            call()


def test_settings_without_effect_are_told() -> None:
    with pytest.warns(UserWarning, match=r"^ramp=5 has no effect with incubation=none, where a seed is active at once"):
        grown().germinate("early", "norm", ramp=5)
    with pytest.raises(RuntimeError, match="DataParallel cannot copy slots to several devices"):
        grown().slots[0]._replicate_for_data_parallel()
    with pytest.raises(ValueError, match="must return a number"):
        grown().contributions(lambda: torch.ones(3, dtype=torch.complex64))


@pytest.mark.filterwarnings("error")
def test_an_optimizer_of_the_seeds_alone_is_no_mistake() -> None:
    net, optimizer = grown(), torch.optim.Adam([{"params": []}])
    net.attach(optimizer)
    active(net)
    with pytest.raises(ValueError, match="this optimizer is attached already: to change settings of seeds, change their groups"):
        net.attach(optimizer, lr=0.1)
    loss_of(net)().backward()
    optimizer.step()
    net.begin_epoch()


def test_a_network_that_an_earlier_version_saved_goes_on() -> None:
    net = active(grown())
    state = {name: value for name, value in net.__getstate__().items() if name not in ("_trained", "_incubated")}
    again = object.__new__(type(net))
    again.__setstate__(state)
    again.begin_epoch()
    slot, parts = net.slots[0], dict(net.slots[0].__dict__)
    for name in ("_shape", "_positive", "probed"):
        del parts[name]
    older = object.__new__(type(slot))
    older.__setstate__(parts)
    older.probe(OwnConfig(make="random"))  # its features are not known


def test_groups_of_seeds_follow_a_checkpoint() -> None:
    """An optimizer loads its state by the position of a group."""
    net = grown()
    optimizer = torch.optim.Adam(net.module.parameters())
    net.attach(optimizer)

    def learn(rate: float) -> None:
        net.begin_epoch()
        optimizer.param_groups[-1]["lr"] = rate
        loss_of(net)().backward()
        optimizer.step()

    net.germinate("late", "norm")
    learn(0.1)
    net.germinate("early", "norm")
    learn(0.2)
    kept, moments = net.state_dict(), optimizer.state_dict()
    moments = {**moments, "state": {rank: dict(one) for rank, one in moments["state"].items()}}
    rates = {slot: rate_of(net, optimizer, slot) for slot in ("early", "late")}
    assert rates == {"early": 0.2, "late": 0.1}
    net.prune("late")
    for _ in range(2):
        net.begin_epoch()
    net.germinate("late", "norm")
    net.load_state_dict(kept)
    optimizer.load_state_dict(moments)
    assert {slot: rate_of(net, optimizer, slot) for slot in ("early", "late")} == rates


def rate_of(net: Any, optimizer: torch.optim.Optimizer, slot: str) -> float:
    """Return the learning rate of the seed in a slot."""
    own = {id(parameter) for parameter in net.seed(slot).parameters()}
    return next(group["lr"] for group in optimizer.param_groups if own & {id(one) for one in group["params"]})
