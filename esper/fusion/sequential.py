"""Sequences of stacked layers, which compute several of them at once on images in batch-last memory."""

# M members, B batch, C channels

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from esper.fusion import batch_last_layers as own
from esper.fusion.batch_last import fits_kernels
from esper.fusion.chain import FlatLayer, Link, chain
from esper.fusion.stacked import StackedBatchNorm2d, StackedConv2d, StackedGroupNorm, StackedMaxPool2d

Step = tuple[Callable[..., Tensor], slice]
"""A function of the features and of some layers, and these layers."""
Columns = Mapping[tuple[nn.Module, str], tuple[slice, tuple[int, ...]]]


class StackedSequential(nn.Sequential):
    """A sequence of stacked layers and layers without parameters; names and parameters are those of the sequence.

    On images in batch-last memory, layers that follow each other are one step: pooling, convolution, batch norm and ReLU, since
    the features of all members exceed the caches, and a step reads and writes them once; and a `chain` of layers without batch
    norm.
    """

    def __init__(self, fused: nn.Sequential) -> None:
        super().__init__()
        self.__dict__.update(fused.__dict__)  # hooks and attributes, too
        self._steps = steps(list(fused))

    def forward(self, input: Tensor) -> Tensor:
        if not fits_kernels(input):
            return super().forward(input)
        layers = list(self)
        for run, part in self._steps:
            input = run(input, *layers[part])
        return input


def steps(layers: Sequence[nn.Module]) -> list[Step]:
    """Return the steps of a sequence."""
    found, place = list[Step](), 0
    while place < len(layers):
        run, count = _next(layers[place:])
        found.append((run, slice(place, place + count)))
        place += count
    return found


def _next(layers: Sequence[nn.Module]) -> tuple[Callable[..., Tensor], int]:
    """Return the function of the next step, and its number of layers."""
    pools = isinstance(layers[0], StackedMaxPool2d) and layers[0].halves
    if _is_block(layers[pools:]):
        return (_pooled_block, 4) if pools else (_block, 3)
    if isinstance(layers[0], StackedBatchNorm2d) and len(layers) > 1 and _is_relu(layers[1]):
        return _norm, 2
    length = 0
    while length < len(layers) and _links(layers[length]) and not _is_block(layers[length:]):
        length += 1
    starts = length > 1 and isinstance(layers[0], StackedConv2d | StackedGroupNorm)
    return (_chain, length) if starts else (_layer, 1)


def flat_layers(module: nn.Module, columns: Columns) -> tuple[FlatLayer, ...]:
    """Return the layers of a fused module that is a chain as a whole, for `flat_chain`; nothing if it is not.

    Args:
        module: the module of a `Fleet`.
        columns: see `Fleet.columns`.
    """
    layers = [layer for layer in module if type(layer) is not nn.Identity] if isinstance(module, StackedSequential) else []
    masked = any(isinstance(layer, StackedConv2d) and layer.mask is not None for layer in layers)
    if not layers or masked or type(layers[0]) is nn.ReLU or not all(_links(layer) for layer in layers):
        return ()
    found = list[FlatLayer]()
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, StackedConv2d | StackedGroupNorm):
            weight, shape = columns[layer, "weight"]
            bias, _ = columns.get((layer, "bias"), (None, ()))
            found.append(FlatLayer(layer.for_one(rectify=_is_relu(following)), weight, shape, bias))
    return tuple(found)


def _is_block(layers: Sequence[nn.Module]) -> bool:
    """Return whether a sequence begins with convolution, batch norm and ReLU."""
    conv, norm, relu = [*layers, *[None] * 3][:3]
    known = isinstance(conv, StackedConv2d) and conv.keeps_size and conv.groups == 1 and isinstance(norm, StackedBatchNorm2d)
    return known and _is_relu(relu)


def _links(layer: nn.Module) -> bool:
    """Return whether a layer can be part of a chain."""
    kept = type(layer) in (StackedGroupNorm, nn.Identity, nn.ReLU) or (isinstance(layer, StackedConv2d) and layer.keeps_size)
    return kept and not is_hooked(layer)


def _is_relu(layer: nn.Module | None) -> bool:
    return type(layer) is nn.ReLU and not is_hooked(layer)


def is_hooked(layer: nn.Module) -> bool:
    """Return whether a layer has hooks, so that it has to be called."""
    return any(vars(layer)[hooks] for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"))


def _layer(x: Tensor, layer: nn.Module) -> Tensor:
    return layer(x)


def _norm(x: Tensor, norm: StackedBatchNorm2d, _: nn.ReLU) -> Tensor:
    return norm(x, rectify=True)


def _chain(x: Tensor, *layers: nn.Module) -> Tensor:
    if not fits_kernels(x):
        for layer in layers:
            x = layer(x)
        return x
    links = list[Link]()
    for place, layer in enumerate(layers):
        if isinstance(layer, StackedConv2d | StackedGroupNorm):
            following = (after for after in layers[place + 1 :] if type(after) is not nn.Identity)
            links.append(layer.link(rectify=_is_relu(next(following, None))))
    return chain(x, links)


def _pooled_block(x: Tensor, pool: StackedMaxPool2d, conv: StackedConv2d, norm: StackedBatchNorm2d, _: nn.ReLU) -> Tensor:
    if norm.training and fits_kernels(x) and min(x.shape[2:]) > 1:
        return _trained(x, conv, norm, pools=True)
    return _block(pool(x), conv, norm, _)


def _block(x: Tensor, conv: StackedConv2d, norm: StackedBatchNorm2d, _: nn.ReLU) -> Tensor:
    if not fits_kernels(x):
        return norm(conv(x), rectify=True)
    if norm.training:
        return _trained(x, conv, norm, pools=False)
    (filters, bias), (weight, shift, mean, var) = conv.filters(), norm.vectors()
    scale = weight * (var + norm.eps).rsqrt()
    shift = shift + ((0.0 if bias is None else bias) - mean) * scale
    return own.convolution(x, filters * scale.view(-1, 1, 1, 1), shift, conv.members, rectify=True)


def _trained(x: Tensor, conv: StackedConv2d, norm: StackedBatchNorm2d, *, pools: bool) -> Tensor:
    how = (norm.momentum, norm.eps)
    return own.block(x, *conv.filters(), *norm.vectors(), *how, members=conv.members, pools=pools)
