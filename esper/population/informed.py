"""First weights from the gradient a seed would receive.

A branch delta = W2 act(W1 h) is born with W2 = 0, and then only W2 has a gradient: sum over samples and places of
dL/dy(p) act(W1 h)(p)^T. How large it is depends on what W1 shows it. Leave the activation out, and it is G W1^T with

    G = sum over samples and places of dL/dy(p) h(p + d)^T      one row an output channel, one column an input channel and offset d

Among filters that are orthogonal and of one norm c, its squared norm is largest, c^2 times the sum of the largest squared singular
values of G, where the filters are the right singular vectors of G to them (Ky Fan). So these become the first map's filters:

* Each filter has the root mean square norm of those it replaces, so that the map keeps the norm of its default draw.
* A singular vector has no sign. Of v and -v the one is taken behind which the rectified response, with its mean over each sample
  taken off as a norm would, has the larger gradient.
* G has no more directions than output channels. Filters beyond them repeat the first ones with the other sign (what a ReLU cuts off
  on one side it shows on the other), and what is left after that keeps its default draw.
* A convolution in groups (depthwise: each channel alone) has a G for each group, of the group's inputs.

The seed stays exactly the identity at birth: the last map is zero as ever. What comes before the first map (a layer norm) is part of
h; what comes behind it (norms, further convolutions) keeps its default draw.

GradMax (Evci et al. 2022, https://arxiv.org/abs/2201.05125) solves the same problem for new neurons of a layer between two layers:
there the *fan-in* weights are zero and the fan-out is given by singular vectors. Ours are whole branches whose last map must be zero,
so it is the fan-in that is given. TINY (Verbockhaven et al. 2024, https://arxiv.org/abs/2405.19816) sets both ends, by singular
vectors whitened by the covariance of h and of what the layer cannot do yet; we do not whiten, and change nothing of the function.
"""

# n samples, O outputs, G groups of inputs, F filters of a group, D numbers of a filter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from esper.population.evidence import Evidence

Map = nn.Linear | nn.Conv2d


def inform(branch: nn.Module, felt: Evidence) -> None:
    """Sets the filters of a newborn branch's first map, in place, from what its slot felt.

    Args:
        branch: the branch of one member, born as nothing.
        felt: of that member alone, `[1, n, ...]`.
    """
    first = first_map(branch)
    h, grad = (part.flatten(0, 1).to(first.weight.device, first.weight.dtype) for part in (felt.features, felt.grad))
    given: list[Tensor] = []
    hook = first.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        branch(h)
        hook.remove()
        first.weight.copy_(informed_filters(first, given[0], grad))


def first_map(branch: nn.Module) -> Map:
    """The map of a branch that sees its features first.

    Raises:
        ValueError: there is none whose outputs lie where its inputs lie.
    """
    first = next((layer for layer in branch.modules() if isinstance(layer, Map)), None)
    if first is None:
        raise ValueError(f"a {type(branch).__name__} has no linear or convolutional map to inform: use init=default")
    if isinstance(first, nn.Conv2d) and not _keeps_places(first):
        raise ValueError(f"the first convolution of a {type(branch).__name__} moves places: use init=default, or stride 1")
    return first


def _keeps_places(layer: nn.Conv2d) -> bool:
    same = tuple((size - 1) // 2 for size in layer.kernel_size)
    return layer.stride == layer.dilation == (1, 1) and layer.padding == same and all(size % 2 for size in layer.kernel_size)


def informed_filters(layer: Map, given: Tensor, grad: Tensor) -> Tensor:
    """New weights of a first map, of the shape of the old.

    Args:
        layer: the map with its default draw.
        given: its inputs, of n samples.
        grad: dL/dy at the slot, the same samples and places.
    """
    groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
    old_GFD = layer.weight.view(groups, -1, layer.weight[0].numel())
    inputs = given.chunk(groups, 1) if isinstance(layer, nn.Conv2d) else (given,)
    new = list[Tensor]()
    for felt_OD, old_FD, part in zip(first_gradients(layer, given, grad), old_GFD, inputs, strict=True):
        best_RD = directions(felt_OD)
        new.append(_filters(best_RD * _signs(layer, best_RD, part, grad)[:, None], old_FD))
    return torch.stack(new).view_as(layer.weight)


def first_gradients(layer: Map, given: Tensor, grad: Tensor) -> Tensor:
    """G of each group of inputs `[G, O, D]`."""
    if isinstance(layer, nn.Linear):
        return (grad.flatten(0, -2).T @ given.flatten(0, -2))[None]
    size = (grad.shape[1], given.shape[1], *layer.kernel_size)
    whole = conv2d_weight(given, size, grad, padding=layer.padding)  # pyright: ignore[reportArgumentType]
    return whole.unflatten(1, (layer.groups, -1)).transpose(0, 1).flatten(2)


def directions(felt_OD: Tensor) -> Tensor:
    """Right singular vectors of G, largest first, as rows; those of singular values that are nothing but rounding are left out."""
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
        kernel = filter_RD.view(len(filter_RD), -1, *layer.kernel_size)
        response = F.conv2d(given, kernel, padding=layer.padding)
        response = response - response.mean((2, 3), keepdim=True)
        response_XR, grad_XO = (part.movedim(1, -1).flatten(0, -2) for part in (response, grad))
    up, down = ((grad_XO.T @ (sign * response_XR).relu()).square().sum(0) for sign in (1, -1))
    return torch.where(up >= down, 1.0, -1.0).to(filter_RD.dtype)
