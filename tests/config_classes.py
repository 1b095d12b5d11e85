"""The dataclasses of the config."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from esper.config import GROUPS, Config


def _found() -> Iterator[type]:
    todo: list[Any] = [Config, *(node for options in GROUPS.values() for node in options.values())]
    seen: set[type] = set()
    while todo:
        node = todo.pop()
        if get_args(node):
            todo += get_args(node)
        elif dataclasses.is_dataclass(node) and node not in seen:
            assert isinstance(node, type)
            seen.add(node)
            yield node
            fields = [hint for hint in get_type_hints(node).values() if get_origin(hint) is not ClassVar]
            todo += [*node.__mro__[1:], *fields]


CLASSES = sorted(_found(), key=lambda node: (node.__module__, node.__name__))
"""The root, the options, their bases, and the dataclasses of their fields."""
