"""A host class from a module outside the package, found by its import path."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import HostConfig, slot_specs


@dataclass(kw_only=True, slots=True)
class CustomConfig(HostConfig):
    """A host class of your own, called as `MyHost(shape, num_classes)`; see docs/extending.md. It cannot be lesioned."""

    samples = (Layout.IMAGES, Layout.SEQUENCES)

    path: str = ""
    """Import path of the class, as in my_package.my_module:MyHost. The module must be on Python's search path."""
    context: int = 0
    """Length of the token sequences of a text task [positions], at least 1; 0 for images."""

    def __post_init__(self) -> None:
        module, _, name = self.path.partition(":")
        if not module or not name:
            got = self.path or "nothing"
            raise ValueError(f"host.path must name a module and a class, as in my_package.my_module:MyHost, got {got}")
        if self.context < 0:
            raise ValueError(f"host.context must be at least 0, got {self.context}")

    def sequence_length(self) -> int:
        return self.context

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Sequence[bool]) -> nn.Module:
        """Import the class and return an instance.

        Raises:
            ValueError: there is no such class, its constructor fails, or the instance is not a host.
        """
        if any(lesioned):
            raise ValueError("host=custom cannot be lesioned: set task.instances=healthy")
        kind = self._imported()
        try:
            host = kind(shape, num_classes)
        except TypeError as error:
            raise ValueError(f"host.path={self.path} cannot be called as {kind.__name__}(shape, num_classes): {error}") from error
        try:
            slot_specs(host)
        except ValueError as error:
            raise ValueError(f"host.path={self.path}: {error}") from error
        return host

    def _imported(self) -> type[nn.Module]:
        module, _, name = self.path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"host.path={self.path}: there is no module {error.name}: check the spelling, or add its folder to PYTHONPATH"
            ) from error
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise ValueError(f"host.path={self.path}: {module} has no class {name} derived from torch.nn.Module")
        return found
