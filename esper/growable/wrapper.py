"""What a network with slots shows of the module inside it, to code that expects the module itself."""

import inspect
from typing import Any

from torch import nn

LEAVES_SEEDS_OUT = ("save", "save_pretrained", "save_to_hub", "push_to_hub")
"""Methods of models of Hugging Face that would write the module without its seeds."""


class ModuleWrapper(nn.Module):
    """Finds and sets the attributes that only its module has there, as the network of `torch.compile` does."""

    module: nn.Module
    _is_built = False

    def _is_of_module(self, name: str) -> bool:
        """Return whether only the module has an attribute."""
        own = (self.__dict__, type(self).__dict__, self._parameters, self._buffers, self._modules)
        if not self._is_built or name.startswith("_") or any(name in names for names in own) or hasattr(type(self), name):
            return False
        return hasattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_of_module(name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_of_module(name):
            delattr(self.module, name)
        else:
            super().__delattr__(name)

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
