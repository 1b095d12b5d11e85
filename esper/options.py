"""Base of the configs of all groups."""

from dataclasses import fields, is_dataclass
from inspect import get_annotations
from typing import Any, ClassVar, get_origin


class Option:
    """Base of the config dataclasses of all groups.

    A dataclass takes a class attribute as the default of a key only if it has a type. Without one, the default of the parent
    would stay without a word; with one, what describes a part, such as `default_host` of a task, would become a key.

    Raises:
        TypeError: a subclass sets a key without a type, or gives a type to what is no key.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        typed = get_annotations(cls)
        for parent in (parent for parent in cls.__mro__[1:] if is_dataclass(parent)):
            keys = {field.name: field.type for field in fields(parent)}
            for name in parent.__dataclass_fields__:
                value = vars(cls).get(name)
                if name in keys and name in vars(cls) and name not in typed:
                    kind: Any = keys[name]
                    kind = kind.__name__ if isinstance(kind, type) else kind
                    raise TypeError(
                        f"{cls.__name__}.{name} has no type, so that its default would stay that of {parent.__name__}: write "
                        f"{name}: {kind} = ..."
                    )
                if name not in keys and name in typed and not _of_class(typed[name]):
                    raise TypeError(
                        f"{cls.__name__}.{name} has a type, which would make it a key of the config: leave the type out, as in "
                        f"{name} = {value!r}"
                    )


def _of_class(kind: Any) -> bool:
    """Return whether an annotation marks a class attribute."""
    return "ClassVar" in kind if isinstance(kind, str) else kind is ClassVar or get_origin(kind) is ClassVar
