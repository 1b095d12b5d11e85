"""A host class from a module outside the package, found by its import path."""

import inspect
import pkgutil
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from esper.fusion.layout import Layout
from esper.hosts.base import HostConfig
from esper.ranges import check_ranges
from esper.text import error_in_words

IMPORTED: dict[str, None] = {}
"""Modules of the classes that were imported in this process: a run records their source, as it does that of plugins."""


@dataclass(kw_only=True, slots=True)
class CustomConfig(HostConfig):
    """A host class of your own, called as `MyHost(shape, num_classes)`; see docs/extending/hosts.md. It cannot be lesioned."""

    samples = (Layout.IMAGES, Layout.SEQUENCES)

    path: str = ""
    """Import path of the class, as in my_package.my_module:MyHost. The module must be on Python's search path."""
    context: int = 0
    """Length of the token sequences of a text task [positions], at least 1; 0 for images."""

    def __post_init__(self) -> None:
        if not all(self.path.partition(":")):
            got = self.path or "nothing"
            raise ValueError(f"host.path must name a module and a class, as in my_package.my_module:MyHost, got {got}")
        check_ranges("host", self, {"[0, 1e6]": ["context"]})

    def sequence_length(self) -> int:
        return self.context

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Sequence[bool]) -> nn.Module:
        """Import the class and return an instance.

        Raises:
            ValueError: there is no such class, or its constructor takes other arguments.
        """
        kind = self._imported()
        try:
            return kind(shape, num_classes)
        except TypeError as error:
            if any(frame.filename == inspect.getfile(kind) for frame in traceback.extract_tb(error.__traceback__)):
                raise  # an error in its code, whose traceback has the line
            raise ValueError(f"host.path={self.path} cannot be called as {kind.__name__}(shape, num_classes): {error}") from error

    def _imported(self) -> type[nn.Module]:
        try:
            found = pkgutil.resolve_name(self.path)
        except Exception as error:
            if not isinstance(error, (ModuleNotFoundError, AttributeError, ValueError)):
                raise ValueError(f"host.path={self.path} cannot be imported: {error_in_words(error)}") from error
            module, _, name = self.path.partition(":")
            if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{error.name}."):
                raise ValueError(f"host.path={self.path} imports {error.name}, which is not installed") from error
            remedy = "check the spelling, or add its folder to PYTHONPATH"
            if module.endswith(".py"):
                remedy = f"name the module instead of the file, as in {Path(module).stem}:{name}"
            raise ValueError(f"host.path={self.path}: {error}: {remedy}") from error
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise ValueError(
                f"host.path={self.path} is not a subclass of torch.nn.Module: name one, as in my_package.my_module:MyHost"
            )
        IMPORTED[self.path.partition(":")[0]] = None
        return found
