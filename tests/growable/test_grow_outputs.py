"""`esper.grow` after submodules whose output is more than a tensor."""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.config import ConfigError
from tests.growable.test_grow import Encoder, moved


class Pair(NamedTuple):
    hidden: Tensor
    rest: Tensor


@dataclass
class Outputs(OrderedDict[str, Tensor]):
    """Stands for an output of Hugging Face: a mapping with attributes, made from keyword arguments."""

    hidden: Tensor
    rest: Tensor

    def __post_init__(self) -> None:
        self.update(hidden=self.hidden, rest=self.rest)


class Packed(nn.Linear):
    """A layer that packs its features, h, with other values."""

    def __init__(self, pack: Callable[[Tensor], Any]) -> None:
        super().__init__(4, 3)
        self.pack = pack

    def forward(self, input: Tensor) -> Any:
        return self.pack(super().forward(input))


class Network(nn.Module):
    def __init__(self, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = Packed(pack), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.packed = self.first(x)
        first, self.second = self.packed.values() if isinstance(self.packed, dict) else self.packed
        return self.last(first) + self.second


@pytest.mark.parametrize(
    "pack",
    [
        lambda h: (h, h.sum()),
        lambda h: [h, h.sum()],
        lambda h: Pair(h, h.sum()),
        lambda h: {"hidden": h, "rest": h.sum()},
        lambda h: Outputs(hidden=h, rest=h.sum()),
    ],
)
def test_seeds_grow_on_the_first_element_of_an_output(pack: Callable[[Tensor], Any]) -> None:
    torch.manual_seed(0)
    x, plain = torch.randn(5, 4), Network(pack)
    before, kind = plain(x), type(plain.packed)
    net = esper.grow(plain, ["first"], x)
    net.germinate("first", "mlp_small")
    net.advance("first")
    seed = net.seed("first")
    assert seed is not None
    moved(seed)
    h, second = nn.Linear.forward(plain.first, x), plain.second
    torch.testing.assert_close(net(x), plain.last(h + seed(h)) + second)
    assert type(plain.packed) is kind
    assert torch.equal(plain.second, second)
    torch.compiler.reset()
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(x), net(x))
    net(x).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in seed.parameters())
    net.prune("first")
    assert torch.equal(net(x), before)


class Recurrent(nn.Module):
    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.lstm, self.after, self.last = nn.LSTM(4, 3, batch_first=True), nn.Identity(), nn.Linear(3, 2)
        self.plain = plain

    def forward(self, x: Tensor) -> Tensor:
        rows, (h, _) = self.lstm(x)
        return self.last((self.after(rows) if self.plain else rows)[:, -1]) + h.mean()


def test_measurements_after_an_lstm_are_those_after_its_sequence() -> None:
    x, y = torch.randn(64, 5, 4), torch.randn(64, 2)
    found: list[tuple[Any, Any]] = []
    for path in ("after", "lstm"):
        torch.manual_seed(0)
        net = esper.grow(Recurrent(path == "after"), {"slot": path}, x)

        def loss(net: nn.Module = net) -> Tensor:
            return (net(x) - y).square().mean()

        potential = net.potential(loss, ["mlp_small"])
        net.germinate("slot", "mlp_small")
        moved(net.seed("slot"))
        net.advance("slot")
        found.append((potential, net.contributions(lambda net=net: -(net(x) - y).square().mean(1))))  # pyright: ignore
    assert found[0] == found[1]
    assert found[0][1]["slot"].value != 0


class Tied(nn.Module):
    """Two layers that share a weight, as those of many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Linear(4, 4), nn.Linear(4, 4)
        self.write.weight = self.read.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.read(x))


class Constants(nn.Module):
    """A layer, and tensors that are neither parameters nor buffers."""

    def __init__(self, autocast: bool) -> None:
        super().__init__()
        self.read, self.constant, self.autocast = nn.Linear(4, 4), torch.randn(4), autocast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            return self.read(x) + self.constant + torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_constants_are_part_of_the_files_and_nested_programs_are_refused(tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    assert esper.grow(Constants(False), ["read"], x).export(tmp_path, x, "safetensors") < 1e-5
    with pytest.raises(ConfigError, match="nested program"):
        esper.grow(Constants(True), ["read"], x).export(tmp_path, x)


def test_a_shared_weight_is_one_weight_of_the_files(tmp_path: Path) -> None:
    net, x = esper.grow(Tied(), ["read"], torch.ones(2, 4)), torch.randn(5, 4)
    assert net.export(tmp_path, x) < 1e-5
    names: dict[str, Any] = {"__file__": str(tmp_path / "network.py")}
    exec((tmp_path / "network.py").read_text(), names)
    found = names["load"](tmp_path)
    torch.testing.assert_close(found(x), net(x))
    assert [tuple(parameter.shape) for parameter in found.parameters()].count((4, 4)) == 1


@pytest.mark.parametrize(("blueprint", "warns"), [("attention", True), ("lora", False)])
def test_an_attention_seed_behind_a_cache_warns(blueprint: str, warns: bool) -> None:
    tokens, mask = torch.randint(0, 11, (3, 5)), torch.zeros(3, 5, dtype=torch.bool)
    net = esper.grow(Encoder(), ["layer"], (tokens, mask))
    net.germinate("layer", blueprint)
    net.begin_epoch()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for length in (1, 2, 3, 1, 2):  # texts that grow from one token, without a cache
            net(tokens[:, :length], mask[:, :length])
        assert not told
        for _ in range(2):
            net(tokens[:, :1], mask[:, :1])
    assert [str(one.message)[-20:] for one in told] == ["with use_cache=False"] * warns
