"""First weights from the gradient a seed would receive.

A branch ends in W2 act(norm(W1 a)), where a is its input or what its earlier layers make of it, and is born with W2 = 0. At
first only W2 has a gradient: the sum over samples and places of dL/dy(p) act(norm(W1 a))(p)^T. How large it is depends on
what W1, the map that feeds the last one, shows it. Leave norm and activation out, and it is G W1^T with

    G = sum over samples and places of dL/dy(p) a(p + d)^T      a row for each output channel, a column for each input channel and
                                                                offset d within the kernel

Among filters that are orthogonal and of one norm c its squared norm is largest, c^2 times the sum of the largest squared
singular values of G, where the filters are the right singular vectors of G to them (Ky Fan 1949). So these become the filters
of W1:

* They share the norm of those they replace, so that W1 keeps the norm of its default draw.
* A singular vector has no sign. Of v and -v that one is taken behind which a ReLU leaves the larger gradient; for images the
  response's mean over places is taken off before, as a norm would.
* G has no more directions than output channels. Filters beyond them repeat the first ones with the other sign (what a ReLU
  cuts off on one side it shows on the other), and what is left after that keeps its default draw. Where filters are that many
  they show all directions anyhow, and little is won.
* A convolution in groups (depthwise: each channel alone) has a G for each group, of the group's inputs.
* A host that feels nothing there, or is sick, leaves the default draw as it is.

The seed is exactly the identity at birth, since the last map is zero as ever. All other layers keep their default draw.

GradMax (Evci et al. 2022, https://arxiv.org/abs/2201.05125) solves the same problem for new neurons between two layers of a
network, where the fan-in is zero and the fan-out is given by singular vectors. In our branches the last map is zero and the
fan-in is given, so that the branch as a whole can be inserted, moved and removed. TINY (Verbockhaven et al. 2024,
https://arxiv.org/abs/2405.19816) sets both ends, and whitens G by the covariance of the inputs; we change nothing of the
function, and do not whiten.
"""

# n samples, X samples and places, O outputs, G groups of inputs, R directions, F filters of a group, D numbers of a filter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from esper.seeds.slot_gradients import SlotGradients

Map = nn.Linear | nn.Conv2d


def inform(branch: nn.Module, felt: SlotGradients) -> None:
    """Sets the filters of the map that feeds the last one of a newborn branch, in place, from what its slot felt.

    Args:
        branch: the branch of one member, born as nothing.
        felt: of that member alone, `[1, n, ...]`.
    """
    feeding = feeding_map(branch)
    h, grad = (part.flatten(0, 1).to(feeding.weight.device, feeding.weight.dtype) for part in (felt.features, felt.grad))
    given: list[Tensor] = []
    hook = feeding.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        branch(h)
        hook.remove()
        feeding.weight.copy_(informed_filters(feeding, given[0], grad))


def feeding_map(branch: nn.Module) -> Map:
    """The linear map or convolution before the last one.

    Raises:
        ValueError: there is none, or its outputs do not lie where the branch's outputs lie.
    """
    maps = [layer for layer in branch.modules() if isinstance(layer, Map)]
    if len(maps) < 2:
        raise ValueError(f"a {type(branch).__name__} has no map before its last one to inform: use init=default")
    if isinstance(maps[-2], nn.Conv2d) and not _keeps_places(maps[-2]):
        raise ValueError(f"the last convolutions of a {type(branch).__name__} move places: use init=default, or stride 1")
    return maps[-2]


def _keeps_places(layer: nn.Conv2d) -> bool:
    same = tuple((size - 1) // 2 for size in layer.kernel_size)
    return layer.stride == layer.dilation == (1, 1) and layer.padding == same and all(size % 2 for size in layer.kernel_size)


def informed_filters(layer: Map, given: Tensor, grad: Tensor) -> Tensor:
    """New weights of a feeding map, of the shape of the old.

    Args:
        layer: the map with its default draw.
        given: its inputs, of n samples.
        grad: dL/dy at the slot, the same samples and places.
    """
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    old_GFD = layer.weight.view(groups, -1, layer.weight[0].numel())
    inputs = given.chunk(groups, 1) if isinstance(layer, nn.Conv2d) else (given,)
    new = list[Tensor]()
    for felt_OD, old_FD, part in zip(input_gradients(layer, given, grad), old_GFD, inputs, strict=True):
        best_RD = directions(felt_OD)
        signed_RD = best_RD * _signs(layer, best_RD, part, grad)[:, None] if len(best_RD) else best_RD
        new.append(_filters(signed_RD, old_FD))
    return torch.stack(new).view_as(layer.weight)


def input_gradients(layer: Map, given: Tensor, grad: Tensor) -> Tensor:
    """G of each group of inputs `[G, O, D]`."""
    if isinstance(layer, nn.Linear):
        return (grad.flatten(0, -2).T @ given.flatten(0, -2))[None]
    size = (grad.shape[1], given.shape[1], *layer.kernel_size)
    whole = conv2d_weight(given, size, grad, padding=layer.padding)  # pyright: ignore[reportArgumentType]
    return whole.unflatten(1, (layer.groups, -1)).transpose(0, 1).flatten(2)


def directions(felt_OD: Tensor) -> Tensor:
    """Right singular vectors of G, largest first, as rows, without those whose singular values are nothing but rounding.

    A host that is dead there, or sick, gives none.
    """
    if not felt_OD.isfinite().all() or not felt_OD.any():
        return felt_OD[:0]
    _, strength, rows = torch.linalg.svd(felt_OD.double(), full_matrices=False)
    return rows[strength > strength[0] * 1e-6].to(felt_OD.dtype)


def _filters(wanted_RD: Tensor, old_FD: Tensor) -> Tensor:
    """Filters along the wanted directions, with those that lie beyond them as they were."""
    new_FD = old_FD.clone()
    both = torch.cat([wanted_RD, -wanted_RD])[: len(old_FD)]
    new_FD[: len(both)] = both * old_FD[: len(both)].square().sum(1).mean().sqrt()
    return new_FD


def _signs(layer: Map, filter_RD: Tensor, given: Tensor, grad: Tensor) -> Tensor:
    """1 or -1 for each filter `[R]`: on which side its rectified response has the larger gradient."""
    if isinstance(layer, nn.Linear):
        response_XR, grad_XO = (given @ filter_RD.T).flatten(0, -2), grad.flatten(0, -2)
    else:
        kernel = filter_RD.view(len(filter_RD), given.shape[1], *layer.kernel_size)
        response = F.conv2d(given, kernel, padding=layer.padding)
        response = response - response.mean((2, 3), keepdim=True)
        response_XR, grad_XO = (part.movedim(1, -1).flatten(0, -2) for part in (response, grad))
    up, down = ((grad_XO.T @ (sign * response_XR).relu()).square().sum(0) for sign in (1, -1))
    return torch.where(up >= down, 1.0, -1.0).to(filter_RD.dtype)
