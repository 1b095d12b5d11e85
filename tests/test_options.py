"""Subclasses of configs: keys have types, and what describes a part has none."""

import sys
from dataclasses import InitVar, dataclass, fields
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import nn

from esper.config import GROUPS, ConfigError
from esper.options import Option
from esper.plugins import register
from esper.task.digits import DigitsConfig
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


@dataclass(kw_only=True)
class Loose(Base):
    """Without slots, with a key and what only its making needs."""

    noise: float = 0.1
    made: InitVar[int] = 0

    def __post_init__(self, made: int) -> None: ...


class Named:
    """Takes an argument of a class statement."""

    def __init_subclass__(cls, name: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.name = name  # pyright: ignore[reportAttributeAccessIssue]


def test_legal_classes_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(kw_only=True, slots=True)
    class Tight(Loose):
        """Slots of inherited keys, which this class makes, are no attributes of its own."""

        like = "mlp"
        made: InitVar[int] = 1

    assert (Tight(names=[]).noise, Tight.like) == (0.1, "mlp")

    @dataclass(kw_only=True)
    class Both(Base, Named, name="both"):
        """Another base with an argument."""

    assert Both.name == "both"  # pyright: ignore[reportAttributeAccessIssue]
    later = "from __future__ import annotations\nfrom typing import ClassVar as CV\nclass Mine(Base):\n    like: CV[str] = 'mlp'"
    monkeypatch.setitem(sys.modules, "mine", module := ModuleType("mine"))
    vars(module)["Base"] = Base
    exec(later, vars(module))


@pytest.mark.usefixtures("own_parts")
def test_parents_that_are_no_dataclasses_set_no_keys() -> None:
    class Forgotten(DigitsConfig):
        batch_size: int = 16

    class Mixin:
        batch_size = 16

    for number, bases in enumerate([(Forgotten,), (Mixin, DigitsConfig)]):
        kind = dataclass(kw_only=True, slots=True)(type("Mine", bases, {}))
        name = bases[0].__name__
        with pytest.raises(
            ConfigError, match=f"batch_size of {name} has no effect, since {name} is no dataclass: put @dataclass"
        ):
            register("task", f"mine{number}", kind)
    text = dataclass(kw_only=True, slots=True)(type("Mine", (DigitsConfig,), {"default_blueprint": "norm"}))
    with pytest.raises(
        ConfigError, match=r"default_blueprint = 'norm' must be several names: write default_blueprint = \('norm',\)"
    ):
        register("task", "text", text)


@pytest.mark.parametrize(
    "line", ["DigitsConfig(batch_size=-1)", "os.path.join(None)", "nn.Linear(3, 'a')", "np.load('nowhere.npy')"]
)
def test_an_error_in_a_library_has_the_place_of_its_call(line: str) -> None:
    code = compile(f"import os\n{line}", "/home/me/mine.py", "exec")
    with pytest.raises(Exception) as raised:  # noqa: PT011
        exec(code, {"DigitsConfig": DigitsConfig, "nn": nn, "np": np})
    assert error_in_words(raised.value).endswith(" (mine.py, line 2)")
