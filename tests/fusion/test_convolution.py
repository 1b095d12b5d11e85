"""What a GPU computes instead of a grouped convolution; both also run on a CPU."""

import pytest
import torch
import torch.nn.functional as F

from esper.fusion.convolution import by_matrices, contained

CASES = {
    "same": (3, 4, 3, 1, 1, 1),
    "stride": (3, 4, 3, 2, 1, 1),
    "pointwise": (4, 2, 1, 1, 0, 1),
    "valid": (2, 3, 3, 1, 0, 1),
    "wide": (2, 3, 5, 2, 2, 1),
    "groups": (4, 6, 3, 1, 1, 2),
}
"""Inputs and outputs of a member, kernel, stride, padding, and groups of a member."""
MEMBERS = 3


def case(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int], tuple[int, int], int]:
    inputs, outputs, kernel, stride, padding, groups = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(2, MEMBERS * inputs, 7, 6, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(MEMBERS * outputs, inputs // groups, kernel, kernel, dtype=torch.float64)
    bias = torch.randn(MEMBERS * outputs, dtype=torch.float64)
    leaves = [part.requires_grad_() for part in (x, weight, bias)]
    return *leaves, (stride, stride), (padding, padding), MEMBERS * groups  # pyright: ignore[reportReturnType]


def grads(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(y, leaves, torch.linspace(-1.0, 2.0, y.numel(), dtype=y.dtype).view(y.shape))


@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_matrix_products_is_a_grouped_convolution(name: str) -> None:
    x, weight, bias, stride, padding, groups = case(name)
    for given in (bias, None):
        found = by_matrices(x, weight, given, stride, padding, groups)
        wanted = F.conv2d(x, weight, given, stride, padding, 1, groups)
        leaves = (x, weight) if given is None else (x, weight, bias)
        assert torch.allclose(found, wanted)
        assert found.is_contiguous(memory_format=torch.channels_last)
        for one, other in zip(grads(found, leaves), grads(wanted, leaves), strict=True):
            assert torch.allclose(one, other)


@pytest.mark.parametrize("name", CASES)
def test_a_contained_convolution_is_a_grouped_convolution(name: str) -> None:
    x, weight, bias, stride, padding, groups = case(name)
    for given in (bias, None):
        found = contained(x, weight, given, stride, padding, (1, 1), groups, MEMBERS)
        wanted = F.conv2d(x, weight, given, stride, padding, 1, groups)
        leaves = (x, weight) if given is None else (x, weight, bias)
        assert torch.allclose(found, wanted)
        for one, other in zip(grads(found, leaves), grads(wanted, leaves), strict=True):
            assert torch.allclose(one, other)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["x", "weight", "grad"])
def test_a_member_that_is_not_finite_is_so_alone(where: str, value: float) -> None:
    x, weight, bias, stride, padding, groups = case("groups")
    with torch.no_grad():
        if where != "grad":
            (x[0, 4] if where == "x" else weight[6]).fill_(value)  # of the second member
    y = contained(x, weight, bias, stride, padding, (1, 1), groups, MEMBERS)
    pull = torch.ones_like(y)
    if where == "grad":
        pull[1, 7] = value
    finite = [part.isfinite() for part in (y, *torch.autograd.grad(y, (x, weight, bias), pull))]
    for part, axis in zip(finite, (1, 1, 0, 0), strict=True):
        by_member = [one.all().item() for one in part.chunk(MEMBERS, axis)]
        assert by_member == [True, part is finite[0] and where == "grad", True]
