"""What a network with slots shows of the module inside it, to code that expects the module itself."""

import inspect
from typing import Any, cast

from torch import nn

from esper.growable.slot import GrowingSlot, StateHook

LEAVES_SEEDS_OUT = ("save", "save_pretrained", "save_to_hub", "push_to_hub")
"""Methods of models of Hugging Face that would write the module without its seeds."""


def _has(module: nn.Module, name: str) -> bool:
    """Return whether a module has an attribute of its own, or of its class."""
    parts = (getattr(module, own) for own in ("__dict__", "_parameters", "_buffers", "_modules"))
    return any(name in names for names in parts) or hasattr(type(module), name)


class ModuleWrapper(nn.Module):
    """Finds and sets the attributes that only its module has there, as the network of `torch.compile` does."""

    module: nn.Module
    slots: nn.ModuleList
    _is_built = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self._is_built:  # in a file of an earlier version
            self._watch()

    def _watch(self) -> None:
        """Pass attributes on from now on, and watch whose state is taken."""
        for slot in cast(list[GrowingSlot], [*self.slots]):
            self.module.register_state_dict_post_hook(StateHook(slot))
        self._is_built = True

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the module, and of the seeds and slots; see `nn.Module.state_dict`."""
        slots = cast(list[GrowingSlot], [*self.slots])
        for slot in slots:
            slot.saving = True
        try:
            return super().state_dict(*args, **kwargs)
        finally:
            for slot in slots:
                slot.saving = False

    def _is_of_module(self, name: str) -> bool:
        """Return whether only the module has an attribute. A property is not computed."""
        if not self._is_built or name.startswith("_") or _has(self, name):
            return False
        return _has(self.module, name)

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
            if not _has(self.module, name) and not hasattr(self.module, name):  # a property would be computed twice
                raise
        return getattr(self.module, name)

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether the module takes the number of items in a batch, and divides its loss by it, as Hugging Face's Trainer asks: by
        the attribute of this name, else if its `forward` takes any keyword arguments."""
        parameters = inspect.signature(self.module.forward).parameters.values()
        return getattr(self.module, "accepts_loss_kwargs", any(one.kind is one.VAR_KEYWORD for one in parameters))

    @accepts_loss_kwargs.setter
    def accepts_loss_kwargs(self, value: bool) -> None:
        cast(Any, self.module).accepts_loss_kwargs = value
