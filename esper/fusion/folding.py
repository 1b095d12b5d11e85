"""Batch norms as part of the convolutions before them, for networks in evaluation mode."""

import copy
from collections import OrderedDict

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from esper.fusion.layers import MaskedConv2d


def folded(module: nn.Module) -> nn.Module:
    """Return a copy that computes the same in evaluation mode, with fewer layers.

    In every `nn.Sequential`, a `BatchNorm2d` after a `Conv2d` or `MaskedConv2d` becomes part of its weight and bias. Other layers
    stay as they are, classes derived from these included.
    """
    return _folded(copy.deepcopy(module).eval())


def _folded(module: nn.Module) -> nn.Module:
    """Fold a module in place, and return it or what takes its place."""
    children = module.__dict__["_modules"]  # named_children omits the second use of a layer
    for name, child in children.items():
        if child is not None:
            children[name] = _folded(child)
    if type(module) is not nn.Sequential:
        return module
    kept = OrderedDict[str, nn.Module]()
    for name, layer in children.items():
        before = next(reversed(kept), "")
        conv = kept.get(before)
        if isinstance(conv, nn.Conv2d) and type(conv) in (nn.Conv2d, MaskedConv2d) and type(layer) is nn.BatchNorm2d:
            kept[before] = fuse_conv_bn_eval(conv, layer)
        else:
            kept[name] = layer
    return nn.Sequential(kept)
