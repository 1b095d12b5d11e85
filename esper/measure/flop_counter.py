"""FLOPs of PyTorch code while it runs, by the formulas of `torch.utils.flop_counter`."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class FlopCounter(TorchDispatchMode):
    """Counts FLOPs as PyTorch's `FlopCounterMode` does, but does not import torch._dynamo, which takes seconds."""

    def __init__(self, kernels: Mapping[Any, Callable[..., int]] | None = None) -> None:
        """
        Args:
            kernels: FLOPs of kernels that PyTorch has no formula for, each from the arguments of a call and, as `out_val`, its
                output.
        """
        super().__init__()
        self.flops = 0
        """FLOPs so far."""
        self._kernels: dict[Any, Callable[..., int]] = {**flop_registry, **(kernels or {})}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        formula = self._kernels.get(func.overloadpacket)
        if formula is None:
            with self:  # in inference mode, operations that consist of others arrive whole
                out = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if out is NotImplemented else out
        out = func(*args, **kwargs)
        self.flops += formula(*args, **kwargs, out_val=out)
        return out
