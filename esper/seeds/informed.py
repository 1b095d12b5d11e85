"""Informed initial weights: filters from the gradient that a seed would receive.

A branch ends in W2 act(norm(W1 a)), where a is its input or the output of its earlier layers, and W2 = 0 at birth. At first
only W2 has a gradient: the sum over samples and places of dL/dy(p) act(norm(W1 a))(p)^T. Its size depends on W1, the map that
feeds the last one. Without norm and activation it is G W1^T with

    G = sum over samples and places of dL/dy(p) a(p + d)^T      a row for each output channel, a column for each input channel and
                                                                offset d within the kernel

Among orthogonal filters of equal norm c, its squared norm is largest, c^2 times the sum of the largest squared singular values of
G, where the filters are the corresponding right singular vectors of G (Ky Fan 1949). These become the filters of W1:

* They have the norm of those they replace, so that W1 keeps the norm of its default draw.
* A singular vector has no sign. Of v and -v, the one with the larger gradient behind a ReLU is taken; for images the response's
  mean over places is subtracted first, as a norm would.
* G has no more directions than output channels. Further filters repeat the first ones with the other sign (what a ReLU cuts off
  on one side it shows on the other), and those left after that keep their default draw. With that many filters the default draw
  covers all directions, and little is gained.
* A grouped convolution (depthwise: each channel alone) has a G for each group, of the group's inputs.
* Where the gradient is zero or not finite, the default draw is kept.

The seed is exactly the identity at birth, since the last map is zero. All other layers keep their default draw.

GradMax (Evci et al. 2022, https://arxiv.org/abs/2201.05125) solves the same problem for new neurons between two layers of a
network, where the fan-in is zero and the fan-out is set to singular vectors. In our branches the last map is zero and the
fan-in is given, so that the branch as a whole can be inserted, moved and removed. TINY (Verbockhaven et al. 2024,
https://arxiv.org/abs/2405.19816) sets both ends, and whitens G by the covariance of the inputs; we keep the function
unchanged and do not whiten.
"""

# n samples, X samples and places, O outputs, G groups of inputs, R directions, F filters of a group, D numbers of a filter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from esper.seeds.slot_gradients import SlotGradients

Map = nn.Linear | nn.Conv2d


def inform(branch: nn.Module, gradients: SlotGradients) -> None:
    """Set the filters of the map that feeds the last one of a newborn branch, in place, from its slot gradients.

    Args:
        branch: the newborn branch of one member.
        gradients: slot gradients of that member `[1, n, ...]`.
    """
    feeding = feeding_map(branch)
    h, grad = (
        part.flatten(0, 1).to(feeding.weight.device, feeding.weight.dtype) for part in (gradients.features, gradients.grad)
    )
    given: list[Tensor] = []
    hook = feeding.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        branch(h)
        hook.remove()
        feeding.weight.copy_(informed_filters(feeding, given[0], grad))


def feeding_map(branch: nn.Module) -> Map:
    """Return the linear map or convolution before the last one.

    Raises:
        ValueError: there is none, or its outputs are at other positions than the branch's outputs.
    """
    maps = [layer for layer in branch.modules() if isinstance(layer, Map)]
    if len(maps) < 2:
        raise ValueError(f"a {type(branch).__name__} has no map before its last one to inform: use init=default")
    if isinstance(maps[-2], nn.Conv2d) and not _keeps_places(maps[-2]):
        raise ValueError(f"the last convolutions of a {type(branch).__name__} shift positions: use init=default, or stride 1")
    return maps[-2]


def _keeps_places(layer: nn.Conv2d) -> bool:
    same = tuple((size - 1) // 2 for size in layer.kernel_size)
    return layer.stride == layer.dilation == (1, 1) and layer.padding == same and all(size % 2 for size in layer.kernel_size)


def informed_filters(layer: Map, given: Tensor, grad: Tensor) -> Tensor:
    """Return new weights of a feeding map, in the shape of the old.

    Args:
        layer: the map with its default draw.
        given: its inputs for n samples.
        grad: dL/dy at the slot, for the same samples and places.
    """
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    old_GFD = layer.weight.view(groups, -1, layer.weight[0].numel())
    inputs = given.chunk(groups, 1) if isinstance(layer, nn.Conv2d) else (given,)
    new = list[Tensor]()
    for gradient_OD, old_FD, part in zip(input_gradients(layer, given, grad), old_GFD, inputs, strict=True):
        best_RD = directions(gradient_OD)
        signed_RD = best_RD * _signs(layer, best_RD, part, grad)[:, None] if len(best_RD) else best_RD
        new.append(_filters(signed_RD, old_FD))
    return torch.stack(new).view_as(layer.weight)


def input_gradients(layer: Map, given: Tensor, grad: Tensor) -> Tensor:
    """Return G of each group of inputs `[G, O, D]`."""
    if isinstance(layer, nn.Linear):
        return (grad.flatten(0, -2).T @ given.flatten(0, -2))[None]
    size = (grad.shape[1], given.shape[1], *layer.kernel_size)
    whole = conv2d_weight(given, size, grad, padding=layer.padding)  # pyright: ignore[reportArgumentType]
    return whole.unflatten(1, (layer.groups, -1)).transpose(0, 1).flatten(2)


def directions(gradient_OD: Tensor) -> Tensor:
    """Return the right singular vectors of G as rows, largest first, without those whose singular value is float rounding.

    There are none where G is zero or not finite.
    """
    if not gradient_OD.isfinite().all() or not gradient_OD.any():
        return gradient_OD[:0]
    _, strength, rows = torch.linalg.svd(gradient_OD.double(), full_matrices=False)
    return rows[strength > strength[0] * 1e-6].to(gradient_OD.dtype)


def _filters(wanted_RD: Tensor, old_FD: Tensor) -> Tensor:
    """Return filters along the wanted directions; further filters stay the same."""
    new_FD = old_FD.clone()
    both = torch.cat([wanted_RD, -wanted_RD])[: len(old_FD)]
    new_FD[: len(both)] = both * old_FD[: len(both)].square().sum(1).mean().sqrt()
    return new_FD


def _signs(layer: Map, filter_RD: Tensor, given: Tensor, grad: Tensor) -> Tensor:
    """Return 1 or -1 for each filter `[R]`: the sign with the larger gradient behind a ReLU."""
    if isinstance(layer, nn.Linear):
        response_XR, grad_XO = (given @ filter_RD.T).flatten(0, -2), grad.flatten(0, -2)
    else:
        kernel = filter_RD.view(len(filter_RD), given.shape[1], *layer.kernel_size)
        response = F.conv2d(given, kernel, padding=layer.padding)
        response = response - response.mean((2, 3), keepdim=True)
        response_XR, grad_XO = (part.movedim(1, -1).flatten(0, -2) for part in (response, grad))
    up, down = ((grad_XO.T @ (sign * response_XR).relu()).square().sum(0) for sign in (1, -1))
    return torch.where(up >= down, 1.0, -1.0).to(filter_RD.dtype)
