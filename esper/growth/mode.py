"""Evaluation mode in which gradients can be computed on every device."""

from torch import nn


def set_evaluation(module: nn.Module) -> None:
    """Put a module into evaluation mode, except for recurrent layers without dropout.

    These compute the same in both modes, and cuDNN computes their gradients in training mode only.
    """
    module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase) and not layer.dropout:
            layer.train()
