"""All blueprints in all layouts and many widths: identity at birth, gradients, fusion."""

from dataclasses import dataclass, fields

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex

from esper.config import GROUPS
from esper.fusion.fuse import Fleet
from esper.fusion.layout import Layout, members_first, side_by_side
from esper.growable.slot import GrowingSlot
from esper.growable.topology import able_in, blueprint_for, label
from esper.hosts.base import SlotSpec
from esper.notices import UserNotice
from esper.seeds.blueprints import attention
from esper.seeds.blueprints.attention import AttentionConfig, FlexAttentionConfig, _block_mask, by_flex, by_mask
from esper.seeds.blueprints.base import BlueprintConfig, num_groups
from esper.seeds.blueprints.cnn import BottleneckConfig, ConvHeavyConfig, ConvLightConfig, DepthwiseConfig
from esper.seeds.blueprints.dense import LoraConfig, MLPSeedConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.seeds.blueprints.registry import BLUEPRINTS, check_blueprints

TABLE: dict[str, BlueprintConfig] = {
    **{name: kind() for name, kind in BLUEPRINTS.items()},
    "conv_light_5": ConvLightConfig(kernel=5),
    "conv_light_1": ConvLightConfig(kernel=1),
    "depthwise_5": DepthwiseConfig(kernel=5),
    "conv_heavy_5": ConvHeavyConfig(kernel=5),
    "bottleneck_5": BottleneckConfig(kernel=5, reduction=2),
    "attention_1": AttentionConfig(heads=1, reduction=1),
    "attention_both_ways": AttentionConfig(causal=False),
    "lora_3": LoraConfig(rank=3),
    "mlp_1": MLPSeedConfig(expansion=1),
    "flex_attention_1": FlexAttentionConfig(heads=1, window=2),
}
WIDTHS = [1, 2, 3, 5, 7, 12, 16, 17, 32, 33, 48]
SHAPES = {Layout.IMAGES: (5, 4), Layout.VECTORS: (), Layout.SEQUENCES: (6,)}
"""What a sample's features are, besides the channels."""


def samples(slot: SlotSpec, count: int) -> torch.Tensor:
    """Random features `[count, ...]` of one member in the layout of a slot."""
    more, c = SHAPES[slot.layout], slot.channels
    return torch.randn(count, *more, c) if slot.layout is Layout.SEQUENCES else torch.randn(count, c, *more)


def samples_of(x: torch.Tensor, members: int) -> torch.Tensor:
    """Undoes `side_by_side`: `[M, B, ...]`."""
    return x.unflatten(0, (members, -1)) if members_first(x) else x.unflatten(1, (members, -1)).transpose(0, 1)


SLOTS = [SlotSpec("r0c0", width, layout) for layout in Layout for width in WIDTHS]
CASES = [(name, slot) for name, one in TABLE.items() for slot in SLOTS if one.obstacle(slot) is None]
EACH = list(dict.fromkeys((name, slot.layout) for name, slot in CASES))
each_layout = pytest.mark.parametrize(("name", "layout"), EACH, ids=[f"{n}-{layout}" for n, layout in EACH])
"""A blueprint in a layout; the test goes through all widths."""


def branch_of(name: str, slot: SlotSpec) -> nn.Module:
    torch.manual_seed(slot.channels)
    return TABLE[name].branch(slot)


def last_affine(branch: nn.Module) -> nn.Module:
    return [module for module in branch.modules() if list(module.parameters(recurse=False))][-1]


def test_the_table_is_the_group_and_every_layout_has_seeds():
    assert GROUPS["blueprint"] is BLUEPRINTS
    grows = {layout: {name for name, slot in CASES if slot.layout is layout} & set(BLUEPRINTS) for layout in Layout}
    convs = {"conv_small", "conv_light", "conv_heavy", "depthwise", "bottleneck"}
    assert grows[Layout.IMAGES] == {"norm", "attention", *convs}
    assert grows[Layout.VECTORS] == {"norm", "lora", "lora_large", "mlp_small", "mlp"}
    assert grows[Layout.SEQUENCES] == {"norm", "lora", "lora_large", "attention", "mlp_small", "mlp", "flex_attention"}
    odd = {(slot.layout, name) for name, slot in CASES if slot.channels % 2}
    assert odd >= {(layout, name) for layout in Layout for name in grows[layout] - {"attention", "flex_attention"}}


def widths(name: str, layout: Layout) -> list[SlotSpec]:
    """Return the slots of a layout in which a blueprint can be planted."""
    return [slot for known, slot in CASES if (known, slot.layout) == (name, layout)]


@each_layout
def test_a_newborn_seed_is_the_identity_and_has_a_nonzero_gradient(name, layout):
    for slot in widths(name, layout):
        branch, h = branch_of(name, slot), 3 * samples(slot, 8)
        assert not list(branch.buffers()), slot
        delta = branch(h)
        assert delta.shape == h.shape, slot
        assert not delta.any(), slot
        assert (h + delta).equal(h), slot
        (delta * torch.randn_like(h)).sum().backward()
        last = last_affine(branch)
        assert not any(parameter.any() for parameter in last.parameters()), slot
        assert all(torch.count_nonzero(parameter.grad) > 0 for parameter in last.parameters()), slot


@each_layout
def test_every_parameter_learns_once_the_last_map_has_moved(name, layout):
    """No parameter is cut off: after one step of the last map all of them have a gradient."""
    for slot in widths(name, layout):
        branch = branch_of(name, slot)
        with torch.no_grad():
            for parameter in last_affine(branch).parameters():
                parameter.add_(torch.randn_like(parameter))
        (branch(samples(slot, 16)) * torch.randn_like(samples(slot, 16))).sum().backward()
        constant = slot.channels == 1 and slot.layout is not Layout.IMAGES  # a layer norm of one number is its bias
        dead = [key for key, parameter in branch.named_parameters() if not parameter.grad.any()]
        assert not dead or constant, slot


@pytest.mark.parametrize(("name", "slot"), [(n, s) for n, s in CASES if s.channels == 12])
def test_a_branch_learns_a_map_it_can_express(name, slot):
    """A few steps towards what a branch of its kind with other weights computes lower the error: nothing blocks the gradient."""
    branch, x = branch_of(name, slot), 3 * samples(slot, 32) + 1
    with torch.no_grad():
        teacher = TABLE[name].branch(slot)
        for parameter in last_affine(teacher).parameters():
            parameter.add_(torch.randn_like(parameter))
        wanted = teacher(x)
    optimiser = torch.optim.Adam(branch.parameters(), 0.02)
    errors = []
    for _ in range(40):
        error = (branch(x) - wanted).square().mean()
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        errors.append(error.item())
    assert errors[-1] < 0.8 * errors[0]


@pytest.mark.parametrize("members", [1, 8])
@pytest.mark.parametrize(("name", "slot"), [(n, s) for n, s in CASES if s.channels in (3, 12)])
def test_fused_branches_equal_single_branches(float64, name, slot, members):
    branches = [TABLE[name].branch(slot) for _ in range(members)]
    with torch.no_grad():
        for branch in branches:
            for parameter in branch.parameters():
                parameter.normal_()
    fleet = Fleet(branches)
    x_MB = torch.stack([samples(slot, 4) for _ in branches])
    x = side_by_side(x_MB).requires_grad_()
    xs = [part.clone().requires_grad_() for part in x_MB]
    y, wanted = fleet.bind()(x), [branch(part) for branch, part in zip(branches, xs, strict=True)]
    assert torch.allclose(samples_of(y, members), torch.stack(wanted), atol=1e-10)
    pull = torch.randn_like(torch.stack(wanted))
    y.backward(side_by_side(pull))
    torch.autograd.backward(wanted, list(pull))
    assert torch.allclose(samples_of(x.grad, members), torch.stack([part.grad for part in xs]), atol=1e-9)
    gradient = torch.stack([torch.cat([p.grad.flatten() for p in branch.parameters()]) for branch in branches])
    assert torch.allclose(fleet.flat.grad, gradient, atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_channel_attention_keeps_a_gradient(seed):
    """With one hidden unit and features behind a ReLU, half of all draws would be shut by another ReLU."""
    slot = SlotSpec("r0c0", 3)
    torch.manual_seed(seed)
    branch = AttentionConfig().branch(slot)
    with torch.no_grad():
        for parameter in last_affine(branch).parameters():
            parameter.add_(1.0)
    branch(samples(slot, 16).relu()).square().sum().backward()
    assert all(parameter.grad.abs().max() > 1e-4 for parameter in branch.parameters())


@pytest.mark.parametrize("name", ["attention", "flex_attention", "flex_attention_1", "attention_both_ways"])
def test_attention_is_causal_unless_it_is_not_and_limited_to_its_window(name):
    slot = SlotSpec("r0c0", 12, Layout.SEQUENCES)
    branch = branch_of(name, slot)
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.normal_(std=0.3)
    x = torch.randn(1, 40, 12)
    other = x.clone()
    other[0, 20] = torch.randn(12)
    with torch.no_grad():
        changed = (branch(x) - branch(other)).abs().sum(2)[0] > 1e-6
    window = getattr(TABLE[name], "window", 40)
    first = 20 if getattr(TABLE[name], "causal", True) else 0
    assert changed.nonzero()[:, 0].tolist() == list(range(first, min(40, 20 + window)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("positions", "window"), [(16, 5), (1, 3), (130, 16), (7, 100)])
def test_the_window_by_flex_attention_equals_the_window_by_mask(positions, window):
    q, k, v = torch.randn(3, 2, 4, positions, 16)
    assert torch.allclose(by_flex(q, k, v, window), by_mask(q, k, v, window), atol=1e-5)


def test_flex_attention_that_cannot_be_compiled_is_replaced_by_the_mask_once_and_for_all(monkeypatch):
    def refuse(*_, **__):
        calls.append(1)
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore")

    calls, (q, k, v) = [], torch.randn(3, 2, 4, 9, 16)
    monkeypatch.setattr(attention, "_compiles", None)
    monkeypatch.setattr(flex, "flex_attention", refuse)
    with pytest.warns(
        UserNotice, match=r"^blueprint=flex_attention cannot be compiled .*C compiler.*\.\): .*install a C"
    ) as seen:
        found = [attention.by_flex_or_mask(q, k, v, 5) for _ in range(2)]
    assert (len(seen), len(calls)) == (1, 1)
    assert all(one.equal(by_mask(q, k, v, 5)) for one in found)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_other_errors_of_flex_attention_are_raised(monkeypatch):
    def fail(*_, **__):
        raise error

    (q, k, v), compiled = torch.randn(3, 2, 4, 9, 16), flex.flex_attention
    for error, first in ((torch.OutOfMemoryError("CUDA out of memory"), None), (RuntimeError("an illegal memory access"), True)):
        monkeypatch.setattr(attention, "_compiles", None)
        if first:
            monkeypatch.setattr(flex, "flex_attention", compiled)
            attention.by_flex_or_mask(q, k, v, 5)
        monkeypatch.setattr(flex, "flex_attention", fail)
        with pytest.raises(type(error), match=str(error)):
            attention.by_flex_or_mask(q, k, v, 5)
        assert attention._compiles is first


def test_a_window_first_seen_in_a_measurement_can_be_trained():
    with torch.inference_mode():
        mask = _block_mask(19, 4, torch.device("cpu"))
    assert mask is _block_mask(19, 4, torch.device("cpu"))
    assert not mask.kv_num_blocks.is_inference()


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (15, 1), (16, 1), (17, 1), (32, 2), (33, 1), (48, 3), (64, 4), (80, 5)])
def test_groups_divide_the_channels(channels, groups):
    assert num_groups(channels) == groups


# ---- refusals


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, kind in BLUEPRINTS.items() for field in kind.sizes])
def test_a_size_below_one_is_refused(name, field):
    with pytest.raises(ValueError, match=rf"blueprint\.mine\.{field} must be in \[1, 1e6\], got 0: the default is"):
        BLUEPRINTS[name](**{field: 0}).check("blueprint.mine")
    assert {entry.name for entry in fields(BLUEPRINTS[name])} - {"init", "causal"} == set(BLUEPRINTS[name].sizes)


@pytest.mark.parametrize("kind", [ConvLightConfig, DepthwiseConfig, ConvHeavyConfig, BottleneckConfig])
def test_an_even_kernel_is_refused(kind):
    with pytest.raises(ValueError, match=r"blueprint\.mine\.kernel must be odd, got 4: use 3 or 5"):
        kind(kernel=4).check("blueprint.mine")


def test_an_incomplete_blueprint_is_refused():
    slot = SlotSpec("r0c0", 2)
    with pytest.raises(TypeError, match=r"define branch\(slot\)"):
        BlueprintConfig().branch(slot)
    with pytest.raises(ValueError, match="it grows in no layout"):
        check_blueprints({"mine": BlueprintConfig()}, [slot], "task=digits")


@dataclass(kw_only=True, slots=True)
class NeedyConfig(NormConfig):
    """Has a setting without a default."""

    width: int


def test_a_blueprint_that_does_not_fit_every_slot_is_refused_with_alternatives(monkeypatch):
    monkeypatch.setitem(BLUEPRINTS, "needy", NeedyConfig)  # is no alternative: it has no defaults
    images, mixed = [SlotSpec("r0c0", 3)], [SlotSpec("r0c0", 8), SlotSpec("r1c0", 8, Layout.SEQUENCES)]
    check_blueprints({"norm": NormConfig(), "conv_light": ConvLightConfig()}, images, "task=digits")
    check_blueprints({"norm": NormConfig(), "attention": AttentionConfig()}, mixed, "task=mine")
    message = (
        r"blueprint=lora cannot grow in the hosts of task=digits: it grows in vectors, sequences, and r0c0 holds images; "
        r"choose from blueprint=\[norm,attention,conv_small,conv_light,conv_heavy,depthwise,bottleneck\]"
    )
    with pytest.raises(ValueError, match=message):
        check_blueprints({"norm": NormConfig(), "lora": LoraConfig()}, images, "task=digits")
    with pytest.raises(ValueError, match=r"blueprint=conv_light .* r1c0 holds sequences; choose .*=\[norm,attention\]"):
        check_blueprints({"conv_light": ConvLightConfig()}, mixed, "task=mine")
    narrow = [SlotSpec("r0c0", 6, Layout.SEQUENCES)]
    message = r"blueprint=mine .*: its heads=4 must divide the width 6 of r0c0; choose from blueprint=\[norm,lora"
    with pytest.raises(ValueError, match=message):
        check_blueprints({"mine": AttentionConfig()}, narrow, "task=mine")
    with pytest.raises(
        ValueError, match=r"heads=3 must divide .* blueprint=\[norm,lora,lora_large,mlp_small,mlp,flex_attention\]$"
    ):
        check_blueprints({"attention": AttentionConfig(heads=3)}, mixed[1:], "task=mine")


def test_a_blueprint_without_defaults_is_given_with_its_settings(monkeypatch):
    monkeypatch.setitem(BLUEPRINTS, "needy", NeedyConfig)
    slot = GrowingSlot(SlotSpec("r0c0", 3), torch.zeros(2, 3, 4, 4))
    given = blueprint_for(NeedyConfig(width=2), slot)
    assert (given, label(given)) == (NeedyConfig(width=2), "needy(width=2)")
    assert "norm" in able_in(slot.spec)
    with pytest.raises(
        ValueError, match=r"blueprint needy has no default for width: give its config, as in NeedyConfig\(\.\.\.\)"
    ):
        blueprint_for("needy", slot)


def test_an_empty_list_of_blueprints_is_refused():
    with pytest.raises(ValueError, match=r"blueprint=\[\] is empty: choose from blueprint=\[norm,"):
        check_blueprints({}, [SlotSpec("r0c0", 3)], "task=digits")
