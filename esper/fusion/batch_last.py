"""Batch-last memory: images and vectors whose samples lie next to each other, for small networks on a CPU.

Images `[B, C, H, W]` in this layout have the strides of a contiguous `[C, H, W, B]`, and vectors `[B, C]` those of `[C, B]`. Its
layers for images are for small networks: where a group has few channels, PyTorch's own kernels, which vectorise over channels,
take several times as long. The features of M networks lie one after another, so that a linear layer of all is a batch of matrix
products, without copies. Layers recognise the layout by its strides, and return it; all other operations of PyTorch work on it as
on any other.
"""

# G groups, I inputs and O outputs of a group, C channels, H rows, W columns, B batch, K size of a kernel

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float64)
LAYERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.Identity,
    nn.Flatten,
    nn.Conv2d,
    nn.BatchNorm2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.Linear,
    nn.MaxPool2d,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
)
"""Layers of PyTorch that compute images and vectors whatever their strides."""
UNITS = 16
"""Maximum number of units of a linear layer in a host that counts as narrow, if it computes vectors alone. With more, matrix
products take most of the time, which several threads share well."""
NARROW = 32
"""Maximum number of input channels of a convolution in a network that is computed in this layout. With more, PyTorch's kernels
are as fast."""


def is_batch_last(x: Tensor) -> bool:
    """Return whether vectors are in this layout, or images that `fits_kernels`."""
    return fits_kernels(x) or (x.dim() == 2 and x.shape[0] > 1 and x.stride() == (1, x.shape[0]))


def fits_kernels(x: Tensor) -> bool:
    """Return whether Esper's own kernels compute features: images in this layout, on a CPU, in single or double precision."""
    if x.dim() != 4 or x.stride(0) != 1 or not x.is_cpu or x.dtype not in DTYPES:
        return False
    batch, _, height, width = x.shape
    return batch > 1 and x.stride() == (1, height * width * batch, width * batch, batch)


def batch_last(x: Tensor) -> Tensor:
    """Return images or vectors in this layout; a copy if they are in another."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def any_strides(module: nn.Module) -> bool:
    """Return whether all layers compute images and vectors whatever their strides; code from outside may need a certain layout.

    A class says so by a class attribute `any_strides = True`, which its subclasses do not inherit.
    """
    return all(type(layer) in LAYERS or vars(type(layer)).get("any_strides", False) for layer in module.modules())


def suits(host: nn.Module) -> bool:
    """Return whether a host is faster in this layout: all of its layers compute in it, and its convolutions have few channels."""
    convs = [layer for layer in host.modules() if isinstance(layer, nn.Conv2d)]
    return (
        bool(convs)
        and all(any_strides(part) for part in host.children())
        and all(can_convolve(conv) and conv.in_channels // conv.groups <= NARROW for conv in convs)
    )


def flattens(host: nn.Module) -> bool:
    """Return whether a host flattens its samples first, and then computes vectors, whatever their strides, in linear layers.

    PyTorch's own kernels are fast on vectors in this layout.
    """
    first = next((layer for layer in host.modules() if not any(True for _ in layer.children())), host)
    whole = isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1)
    dense = any(isinstance(layer, nn.Linear) for layer in host.modules())
    return whole and dense and all(any_strides(part) for part in host.children())


def can_convolve(conv: nn.Conv2d) -> bool:
    """Return whether `convolution` computes a layer: square kernels of odd size, and images that keep their size."""
    size = conv.kernel_size[0]
    plain = conv.padding_mode == "zeros" and conv.stride == conv.dilation == (1, 1)
    return plain and size % 2 == 1 and conv.kernel_size == (size, size) and conv.padding == (size // 2, size // 2)


def as_array(x: Tensor) -> npt.NDArray[Any]:
    """Return images as an array `[C, H, W, B]`, without copying those in this layout."""
    return x.detach().permute(1, 2, 3, 0).contiguous().numpy()


def as_vector(x: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as a flat array."""
    return x.detach().contiguous().view(-1).numpy()


def new_images(shape: Sequence[int], like: npt.NDArray[Any]) -> tuple[Tensor, npt.NDArray[Any]]:
    """Return new images in this layout, and their memory as an array `[C, H, W, B]` of this shape.

    The images are no view of another tensor, so that the layers that follow may change them in place.
    """
    channels, height, width, batch = shape
    strides = (1, height * width * batch, width * batch, batch)
    images = torch.empty_strided((batch, channels, height, width), strides, dtype=DTYPES[like.dtype == np.float64])
    return images, images.permute(1, 2, 3, 0).numpy()
