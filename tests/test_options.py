"""Subclasses of configs: keys have types, and what describes a part has none."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest

from esper.config import GROUPS
from esper.options import Option
from esper.telemetry.writers import WRITERS
from esper.text import error_in_words

KINDS = {kind for table in (*GROUPS.values(), WRITERS) for kind in table.values()}


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__))
def test_a_key_of_any_option_has_a_type(kind: type) -> None:
    for field in fields(kind):
        with pytest.raises(TypeError, match=f"^Mine.{field.name} has no type, so that its default would stay that of "):
            type("Mine", (kind,), {field.name: 7})
        typed = type("Mine", (kind,), {field.name: 7, "__annotations__": {field.name: field.type}})
        changed = {one.name: one for one in fields(dataclass(kw_only=True, slots=True)(typed))}
        assert changed.keys() == {one.name for one in fields(kind)}
        assert changed[field.name].default == 7


@dataclass(kw_only=True, slots=True)
class Base(Option):
    """A key, and what describes the part."""

    like: ClassVar[str] = "cnn"

    size: int = 1
    names: list[str]


@pytest.mark.parametrize("kind", [str, "str"])
def test_what_describes_a_part_has_no_type(kind: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^Mine.like has a type, .* a key of the config: leave the type out, as in like = 'mlp'$"
    ):
        type("Mine", (Base,), {"like": "mlp", "__annotations__": {"like": kind}})
    assert type("Mine", (Base,), {"like": "mlp"}).like == "mlp"  # pyright: ignore[reportAttributeAccessIssue]
    for marked in (ClassVar, ClassVar[str], "ClassVar[str]"):
        type("Mine", (Base,), {"like": "mlp", "__annotations__": {"like": marked}})


@pytest.mark.parametrize(("name", "kind"), [("size", "int"), ("names", r"list\[str\]")])
def test_the_remedy_has_the_type_and_the_error_the_place(name: str, kind: str) -> None:
    with pytest.raises(TypeError, match=f"stay that of Base: write {name}: {kind} = ...$") as raised:
        exec(compile(f"class Mine(Base):\n    {name} = 2", "/home/me/mine.py", "exec"), {"Base": Base})
    assert error_in_words(raised.value).endswith(" = ... (mine.py, line 1)")
