"""Seeds from outside that would give wrong numbers are refused in one sentence before a run starts; ours pass."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.fusion.fuse import Fleet
from esper.fusion.layout import Layout
from esper.growth.compatibility import check_seeds
from esper.growth.probe import probe_seed
from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import BlueprintConfig, Init, MapConfig, born_as_zero
from esper.seeds.blueprints.registry import BLUEPRINTS

WIDTH = 8
FEATURES = {Layout.IMAGES: (3, WIDTH, 5, 5), Layout.VECTORS: (3, WIDTH), Layout.SEQUENCES: (3, 6, WIDTH)}


class Made(nn.Module):
    """delta(x) = last(inner(first(x))), with a last map of zeros; parts can be replaced."""

    def __init__(self, inner: Callable = torch.relu, first: Callable = lambda x: x, after: Callable = lambda y: y) -> None:
        super().__init__()
        self.map, self.last = nn.Conv2d(WIDTH, WIDTH, 1), born_as_zero(nn.Conv2d(WIDTH, WIDTH, 1))
        self.inner, self.first, self.after = inner, first, after

    def forward(self, x):
        return self.after(self.last(self.inner(self.map(self.first(x)))))


class Counting(Made):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * self.calls


class OneByOne(Made):
    """Counts channels by hand, as one member has them."""

    def forward(self, x):
        return super().forward(x * (1 + torch.arange(x.shape[1]).view(-1, 1, 1)))


def with_weights(change: Callable[[Made], object]) -> Made:
    made = Made()
    change(made)
    return made


def frozen() -> Made:
    return with_weights(lambda made: made.map.requires_grad_(False))


def by_numpy() -> Made:
    return with_weights(lambda made: made.map.weight.data.fill_(np.random.rand()))


def unused() -> Made:
    return with_weights(lambda made: made.register_module("spare", nn.Conv2d(1, 1, 1)))


def noisy_by_numpy(x):
    return x * float(np.random.rand())


WRONG = {
    "dropout": (lambda: Made(F.dropout), "draws random numbers in its forward, so that a resumed run would differ: remove"),
    "dropout_layer": (lambda: nn.Sequential(nn.Dropout(0.1), Made()), "0 is a Dropout, which draws from torch's global random"),
    "rand": (lambda: Made(lambda x: x + torch.rand(1)), "draws random numbers in its forward"),
    "numpy": (
        lambda: Made(noisy_by_numpy),
        "returns a different output for the same input in a second call: remove random numbers",
    ),
    "state": (Counting, "returns a different output for the same input in a second call"),
    "init_by_numpy": (
        by_numpy,
        "draws initial weights from a random stream other than torch's, so that a resumed run would differ",
    ),
    "dtype": (lambda: Made(after=torch.Tensor.double), "returns torch.float64: return torch.float32"),
    "weights": (lambda: Made().double(), "has parameters of torch.float64: use torch.float32"),
    "shape": (
        lambda: Made(after=lambda y: y[:, :, 1:]),
        f"returns the shape (3, {WIDTH}, 4, 5) for features of the shape (3, {WIDTH}, 5, 5): return the same shape",
    ),
    "tuple": (lambda: Made(after=lambda y: (y, y)), "returns a tuple: return a tensor"),
    "detached": (lambda: Made(after=torch.Tensor.detach), "passes no gradient to its input: use it, and remove detach"),
    "closed": (lambda: Made(first=torch.Tensor.detach), "passes no gradient to its input: use it, and remove detach"),
    "cut": (lambda: Made(inner=torch.Tensor.detach), "passes no gradient to its input"),
    "frozen": (frozen, "passes no gradient to its parameter map.weight: use it, and remove detach, no_grad and requires_grad"),
    "unused": (unused, "passes no gradient to its parameter spare.weight: use it"),
    "rectified": (
        lambda: Made(after=torch.relu),
        "has only zero gradients at birth, biases aside: start only its last layer at zero",
    ),
    "zeros_twice": (
        lambda: nn.Sequential(*(born_as_zero(nn.Conv2d(WIDTH, WIDTH, 1)) for _ in range(2))),
        "has only zero gradients at birth, biases aside",
    ),
    "hooked": (
        lambda: with_weights(lambda made: made.map.register_forward_hook(lambda *_: None)),
        "map has a hook, which its stacked form would not call: remove it, or set devices.<name>.members_per_shard=1",
    ),
    "watched": (
        lambda: with_weights(lambda made: made.map.register_full_backward_hook(lambda *_: None)),
        "map has a hook, which its stacked form would not call",
    ),
    "nothing": (lambda: nn.Hardtanh(0.0, 1e-9), "has no parameters and cannot learn: give it some"),
    "nan": (lambda: Made(after=lambda y: y / y), "has an output that is NaN or infinite at birth: correct its forward"),
    "nan_weights": (
        lambda: with_weights(lambda made: made.map.weight.data.fill_(torch.nan)),
        "has initial weights that are NaN or infinite: correct their initialisation",
    ),
    "not_zero": (
        lambda: Made(after=lambda y: y + 1e-6),
        "is not the identity at birth: end it in a layer initialised to zero (born_as_zero)",
    ),
    "batch": (lambda: Made(lambda x: x - x.mean(0)), "mixes the samples of a batch: compute each sample alone, as GroupNorm"),
    "batch_norm": (lambda: nn.Sequential(Made(), nn.BatchNorm2d(WIDTH)), "a branch of Wrong has buffers, such as running"),
    "batch_statistics": (lambda: Made(lambda x: F.batch_norm(x, None, None, training=True)), "mixes the samples of a batch"),
    "hosts": (
        lambda: Made(lambda x: x.softmax(1)),
        "mixes the hosts of a shard, as a view with a fixed number of channels does: see docs/",
    ),
    "channels": (OneByOne, "mixes the hosts of a shard"),
    "item": (lambda: Made(lambda x: x / x.abs().amax().item()), "cannot run under torch.func.vmap (vmap: It looks like you're "),
    "if": (lambda: Made(lambda x: x if x.sum() > 0 else -x), "use torch.where instead of if and .item()"),
    "in_place": (lambda: Made(first=torch.Tensor.exp_), "changes its input in place: use inplace=False"),
    "error": (lambda: Made(first=lambda x: x @ x[:, :, 1:]), " fails on (3, 8, 5, 5) with RuntimeError: "),
    "own_error": (lambda: {}["lost"], " fails on (3, 8, 5, 5) with KeyError: 'lost' (test_wrong_seeds.py, line "),
}
"""What is wrong -> the branch, and the sentence."""


@dataclass(kw_only=True, slots=True)
class Wrong(BlueprintConfig):
    layouts = tuple(Layout)
    make: Callable[[], nn.Module] = field(default=Made)

    def branch(self, slot):
        return self.make()


def probe(blueprint: BlueprintConfig, layout: Layout = Layout.IMAGES, *, signed: bool = True, members: int = 2) -> None:
    features = torch.randn(FEATURES[layout], generator=torch.Generator().manual_seed(0))
    if not signed:  # as after a ReLU, and as after a convolution of images whose channels come last
        features = features.relu().contiguous(
            memory_format=torch.channels_last if features.dim() == 4 else torch.contiguous_format
        )
    check_seeds({"mine": blueprint}, {SlotSpec("r0c0", WIDTH, layout): features}, members, "task=mine host=mine")


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_seed_is_refused_in_one_sentence(kind: str) -> None:
    make, sentence = WRONG[kind]
    with pytest.raises(ValueError, match=re.escape(sentence)) as raised:
        probe(Wrong(make=make))
    assert str(raised.value).startswith("blueprint=mine: ")
    assert "\n" not in str(raised.value)


def test_a_seed_that_detaches_a_part_only_passes() -> None:
    probe(Wrong(make=lambda: Made(lambda x: x * x.sigmoid().detach())))


def test_alone_in_its_program_a_seed_may_count_channels() -> None:
    probe(Wrong(make=OneByOne), members=1)


def test_an_informed_seed_without_a_map_to_inform_is_refused() -> None:
    @dataclass(kw_only=True, slots=True)
    class Short(MapConfig):
        layouts = tuple(Layout)

        def branch(self, slot):
            return nn.Sequential(nn.SiLU(), born_as_zero(nn.Conv2d(WIDTH, WIDTH, 1)))

    probe(Short())
    with pytest.raises(ValueError, match="has no map before its last one to inform: use init=default"):
        probe(Short(init=Init.informed))


@pytest.mark.parametrize("name", list(BLUEPRINTS))
def test_our_seeds_pass_and_no_random_stream_moves(name: str) -> None:
    kind = BLUEPRINTS[name]
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    for layout in kind.layouts:
        for signed in (True, False):
            for members in (1, 2):
                for blueprint in (kind(), kind(init=Init.informed)) if issubclass(kind, MapConfig) else (kind(),):
                    probe(blueprint, layout, signed=signed, members=members)
    assert torch.random.get_rng_state().equal(before[0])
    assert (np.random.get_state()[1] == before[1]).all()


class Excited(nn.Module):
    """A scale per channel from one hidden unit, whose ReLU is 0 everywhere in half of the newborns."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.last = nn.Conv2d(WIDTH, 1, 1), born_as_zero(nn.Conv2d(1, WIDTH, 1, bias=False))

    def forward(self, x):
        return x * self.last(torch.relu(self.map(x.mean((2, 3), keepdim=True))))


@dataclass(kw_only=True, slots=True)
class ExcitedConfig(BlueprintConfig):
    def branch(self, slot: SlotSpec) -> nn.Module:
        return Excited()


@pytest.mark.parametrize("seed", range(4))
def test_a_seed_that_only_some_newborns_can_train_is_accepted(seed: int) -> None:
    features = torch.rand(3, WIDTH, 5, 5, generator=torch.Generator().manual_seed(seed))
    probe_seed(ExcitedConfig(), SlotSpec("r0c0", WIDTH), features, Fleet([Excited(), Excited()]))
