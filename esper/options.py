"""Base of the configs of all groups."""

from dataclasses import fields, is_dataclass
from inspect import get_annotations
from types import MemberDescriptorType
from typing import Any, ClassVar, get_origin


class Option:
    """Base of the config dataclasses of all groups.

    A dataclass takes a class attribute as the default of a key only if it has a type. Without one, the default of the parent
    would stay without a word; with one, what describes a part, such as `default_host` of a task, would become a key.

    Raises:
        TypeError: a subclass sets a key without a type, or gives a type to what is no key.
    """

    __slots__ = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        parents = [parent for parent in cls.__mro__[1:] if "__dataclass_fields__" in vars(parent)]
        inherited = {name for parent in parents for name in vars(parent)["__dataclass_fields__"]}
        if not (found := [name for name in {**vars(cls), **get_annotations(cls)} if name in inherited]):
            return
        typed, known = _annotations(cls), [(parent, _annotations(parent)) for parent in parents]
        for name in found:
            value = vars(cls).get(name)
            parent, kind = next((parent, kinds[name]) for parent, kinds in known if name in kinds)  # the nearest that has it
            if isinstance(value, MemberDescriptorType):  # of a class that `slots=True` makes again
                continue
            if name not in typed and name in keys_of(parent):
                shown = kind.__name__ if isinstance(kind, type) else kind
                raise TypeError(
                    f"{cls.__name__}.{name} has no type, so that its default would stay that of {parent.__name__}: write "
                    f"{name}: {shown} = ..."
                )
            if name in typed and _of_class(kind) and not _of_class(typed[name]):
                raise TypeError(
                    f"{cls.__name__}.{name} has a type, which would make it a key of the config: leave the type out, as in "
                    f"{name} = {value!r}"
                )


def keys_of(kind: Any) -> set[str]:
    """Return the names of the fields of a dataclass; of other classes, none."""
    return {field.name for field in fields(kind)} if is_dataclass(kind) else set()


def _annotations(kind: type) -> dict[str, Any]:
    try:
        return get_annotations(kind, eval_str=True)
    except Exception:  # a name that only type checkers import
        return get_annotations(kind)


def _of_class(kind: Any) -> bool:
    """Return whether an annotation marks a class attribute."""
    return "ClassVar" in kind if isinstance(kind, str) else kind is ClassVar or get_origin(kind) is ClassVar
