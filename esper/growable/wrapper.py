"""What a network with slots shows of the module inside it, to code that expects the module itself."""

import inspect
from typing import Any

from torch import nn

LEAVES_SEEDS_OUT = ("save_pretrained", "push_to_hub")
"""Methods of models of Hugging Face that would write the module without its seeds."""


class ModuleWrapper(nn.Module):
    """Looks up the attributes that it does not have in its module, as the network of `torch.compile` does."""

    module: nn.Module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "module":
                raise
            if name in LEAVES_SEEDS_OUT and hasattr(self.module, name):
                raise AttributeError(
                    f"{name} would leave the seeds out: save state_dict(), or call net.module.{name} for the module without them"
                ) from None
            if not hasattr(self.module, name):
                raise
        return getattr(self.module, name)

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether the module takes the number of items in a batch, and divides its loss by it, as Hugging Face's Trainer asks: by
        the attribute of this name, else if its `forward` takes any keyword arguments."""
        parameters = inspect.signature(self.module.forward).parameters.values()
        return getattr(self.module, "accepts_loss_kwargs", any(one.kind is one.VAR_KEYWORD for one in parameters))
