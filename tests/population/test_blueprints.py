"""Born as nothing, able to learn: one table over all blueprints and many widths."""

import pytest
import torch

from esper.population.blueprints import (
    BlueprintConfig,
    ConvHeavyConfig,
    ConvLightConfig,
    DepthwiseConfig,
    NormConfig,
    num_groups,
)

TABLE = {
    "norm": NormConfig(),
    "conv_light": ConvLightConfig(),
    "conv_light_5": ConvLightConfig(kernel=5),
    "conv_light_1": ConvLightConfig(kernel=1),
    "depthwise": DepthwiseConfig(),
    "depthwise_5": DepthwiseConfig(kernel=5),
    "conv_heavy": ConvHeavyConfig(),
    "conv_heavy_5": ConvHeavyConfig(kernel=5),
}
each_blueprint = pytest.mark.parametrize("blueprint", TABLE.values(), ids=TABLE)
each_width = pytest.mark.parametrize("channels", [1, 2, 3, 5, 7, 16, 17, 32, 33, 48])


def branch_of(blueprint, channels):
    torch.manual_seed(channels)
    return blueprint.branch(channels)


def last_affine(branch):
    return [module for module in branch.modules() if list(module.parameters(recurse=False))][-1]


@each_width
@each_blueprint
def test_is_born_as_the_identity_bit_for_bit(blueprint, channels):
    h = 10 * torch.randn(3, channels, 5, 4)
    delta = branch_of(blueprint, channels)(h)
    assert delta.shape == h.shape
    assert not delta.any()
    assert (h + delta).equal(h)


@each_width
@each_blueprint
def test_its_first_gradient_is_not_zero(blueprint, channels):
    branch = branch_of(blueprint, channels)
    h = torch.randn(8, channels, 5, 4)
    (branch(h) * torch.randn(8, channels, 5, 4)).sum().backward()
    last = last_affine(branch)
    assert torch.count_nonzero(last.weight.grad) > 0
    assert all(not parameter.any() for parameter in last.parameters())


@each_width
@each_blueprint
def test_is_as_large_as_its_formula_says(blueprint, channels):
    branch = branch_of(blueprint, channels)
    assert sum(parameter.numel() for parameter in branch.parameters()) == blueprint.num_parameters(channels)
    assert not list(branch.buffers())


@each_blueprint
def test_learns_a_map_it_can_express(blueprint):
    """A few steps towards delta(x) = norm(x) - x lower the error: nothing blocks the gradient."""
    branch = branch_of(blueprint, 3)
    x = 3 * torch.randn(16, 3, 6, 6) + 1
    wanted = torch.nn.functional.group_norm(x, 1) - x
    optimiser = torch.optim.Adam(branch.parameters(), 0.02)
    errors = []
    for _ in range(30):
        error = (branch(x) - wanted).square().mean()
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        errors.append(error.item())
    assert errors[-1] < 0.9 * errors[0]


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (15, 1), (16, 1), (17, 1), (32, 2), (33, 1), (48, 3), (64, 4), (80, 5)])
def test_groups_divide_the_channels(channels, groups):
    assert num_groups(channels) == groups


@pytest.mark.parametrize("kernel", [0, -1, 2, 4])
@pytest.mark.parametrize(
    "kind", [(ConvLightConfig, "conv_light"), (DepthwiseConfig, "depthwise"), (ConvHeavyConfig, "conv_heavy")]
)
def test_a_kernel_without_a_centre_is_refused(kind, kernel):
    config, name = kind
    with pytest.raises(ValueError, match=rf"blueprint\.{name}\.kernel must be odd and at least 1, got {kernel}"):
        config(kernel=kernel)


def test_a_blueprint_that_is_not_finished_says_what_it_lacks():
    with pytest.raises(TypeError, match=r"define branch\(channels\)"):
        BlueprintConfig().branch(2)
    with pytest.raises(TypeError, match=r"define num_parameters\(channels\)"):
        BlueprintConfig().num_parameters(2)
