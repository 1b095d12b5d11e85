"""Layer norm of vectors in batch-last memory, where PyTorch's would copy them row by row, and its result back."""

# M members, C channels of one member, B batch

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def layer_norm(x_MCB: Tensor, weight_MC: Tensor, bias_MC: Tensor | None, eps: float) -> Tensor:
    """Return the layer norm of each sample over its channels, `[M, C, B]`, as `F.layer_norm` does of `[M, B, C]`."""
    return _LayerNorm.apply(x_MCB, weight_MC, bias_MC, eps)  # pyright: ignore[reportReturnType]


class _LayerNorm(torch.autograd.Function):
    """See `layer_norm`."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x_MCB: Tensor, weight_MC: Tensor, bias_MC: Tensor | None, eps: float
    ) -> Tensor:
        unit_MCB = x_MCB - x_MCB.mean(1, keepdim=True)
        inverse_M1B = unit_MCB.square().mean(1, keepdim=True).add_(eps).rsqrt_()
        unit_MCB.mul_(inverse_M1B)
        ctx.save_for_backward(unit_MCB, inverse_M1B, weight_MC)
        ctx.biased = bias_MC is not None
        scaled_MCB = unit_MCB * weight_MC[:, :, None]
        return scaled_MCB if bias_MC is None else scaled_MCB.add_(bias_MC[:, :, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MCB: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        unit_MCB, inverse_M1B, weight_MC = ctx.saved_tensors
        product_MCB, slope_MCB = grad_MCB * unit_MCB, grad_MCB * weight_MC[:, :, None]
        grad_weight_MC = product_MCB.sum(2)
        share_M1B = product_MCB.mul_(weight_MC[:, :, None]).mean(1, keepdim=True)
        mean_M1B = slope_MCB.mean(1, keepdim=True)
        grad_x_MCB = slope_MCB.sub_(mean_M1B).addcmul_(unit_MCB, share_M1B, value=-1.0).mul_(inverse_M1B)
        return grad_x_MCB, grad_weight_MC, grad_MCB.sum(2) if ctx.biased else None, None
