"""Blueprints and other choices that users of `esper.grow` name, and their form in checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import IntEnum, StrEnum
from typing import Any, TypeVar, get_type_hints

import numpy as np
from torch import Tensor, nn

from esper.config import did_you_mean
from esper.growable.slot import GrowingSlot
from esper.growable.stored import lasts
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend
from esper.lifecycle.slots import SlotsConfig
from esper.plugins import load_plugins
from esper.seeding import borrowed_stream
from esper.seeds.blueprints.base import BlueprintConfig, required
from esper.seeds.blueprints.registry import BLUEPRINTS, able

Choice = TypeVar("Choice", bound=IntEnum)


def choice(argument: str, kind: type[Choice], name: str) -> Choice:
    """Return the member of an enumeration that has this name in lower case.

    Raises:
        ValueError: there is none.
    """
    names = {one.name.lower(): one for one in kind}
    if name not in names:
        raise ValueError(f"{argument}={name!r} is not known: choose from {', '.join(names)}")
    return names[name]


def whole(argument: str, value: int) -> int:
    """Return a whole number of at least 0.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | np.integer) or value < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{argument} must be a whole number of epochs, at least 0, got {value!r}")
    return int(value)


def able_in(slot: SlotSpec) -> list[str]:
    """Return the names of the blueprints that can be planted in a slot, those of installed packages included."""
    load_plugins([])
    return able([slot])


def blueprint_for(given: str | BlueprintConfig, slot: GrowingSlot) -> BlueprintConfig:
    """Return the config of a blueprint that can grow in a slot.

    Args:
        given: its name, for the default settings, or a config.

    Raises:
        ValueError: the name is not known, a setting is out of range, the seed cannot grow there, or a checkpoint cannot hold it.
    """
    load_plugins([])
    if isinstance(given, str):
        if given not in BLUEPRINTS:
            names = able_in(slot.spec)
            raise ValueError(f"there is no blueprint {given}: choose from {', '.join(names)}{did_you_mean(given, names)}")
        kind = BLUEPRINTS[given]
        if needed := required(kind):
            raise ValueError(
                f"blueprint {given} has no default for {', '.join(needed)}: give its config, as in {kind.__name__}(...)"
            )
        given = kind()
    if not isinstance(given, BlueprintConfig):
        if isinstance(given, type) and issubclass(given, BlueprintConfig):
            raise ValueError(f"a blueprint must be a name or a config, got the class {given.__name__}: write {given.__name__}()")
        raise ValueError(f"a blueprint must be a name, such as conv_light, or a config, got {given!r}")
    again = restored(described(given))  # a setting may be given as a plain string
    for setting in fields(given):
        value = getattr(given, setting.name)
        if is_dataclass(value) or not lasts(primitive(value)):  # a dataclass would become a dict
            raise ValueError(
                f"{type(given).__name__}: checkpoints cannot hold the setting {setting.name}, a {type(value).__name__}: use "
                "numbers, strings and lists"
            )
    again.check("blueprint")
    if obstacle := again.obstacle(slot.spec):
        raise ValueError(f"{described(again)['name']} cannot grow in slot {slot.spec.name}: {obstacle}")
    slot.probe(again)
    return again


def described(blueprint: BlueprintConfig) -> dict[str, Any]:
    """Return a blueprint as primitives: name and settings.

    Raises:
        ValueError: it is not registered, so that no name leads back to it.
    """
    name = next((name for name, kind in BLUEPRINTS.items() if kind is type(blueprint)), None)
    if name is None:
        kind = type(blueprint).__name__
        raise ValueError(
            f"{kind} is not registered, so checkpoints cannot name it: call esper.register('blueprint', 'a_name', {kind})"
        )
    return {
        "name": name,
        "settings": {key: primitive(one) for key, one in asdict(blueprint).items()},
    }


def primitive(value: Any) -> Any:
    """Return a setting as a checkpoint holds it: members of enumerations as strings, tuples as lists."""
    return str(value) if isinstance(value, StrEnum) else list(value) if isinstance(value, tuple) else value


def label(blueprint: BlueprintConfig) -> str:
    """Return the name of a blueprint with the settings that are not its defaults, as in conv_light(kernel=5)."""
    own, needed = described(blueprint), required(type(blueprint))
    default = described(type(blueprint)(**{key: getattr(blueprint, key) for key in needed}))["settings"]
    changed = ", ".join(f"{key}={value}" for key, value in own["settings"].items() if key in needed or value != default[key])
    return f"{own['name']}({changed})" if changed else own["name"]


def labelled(asked: Sequence[str | BlueprintConfig], slot: GrowingSlot) -> dict[str, BlueprintConfig]:
    """Return the configs of blueprints that can grow in a slot, by name or, for a config, by its label.

    Raises:
        ValueError: they are not a list, or one of them cannot grow there.
    """
    if isinstance(asked, str):
        raise ValueError(f"blueprints must be a list, got {asked!r}: write blueprints=['{asked}']")
    built = [blueprint_for(one, slot) for one in asked]
    return {one if isinstance(one, str) else label(config): config for one, config in zip(asked, built, strict=True)}


def settings(names: Sequence[str], paths: Sequence[str], slots: Sequence[GrowingSlot], rules: SlotsConfig) -> dict[str, Any]:
    """Return the settings of `esper.grow` without which a checkpoint cannot be loaded."""
    axes = {slot.spec.name: slot.order for slot in slots if slot.order is not None}
    return {"slots": [*names], "paths": [*paths], "axes": axes, "incubation": rules.incubation.value}


def planted(slots: Sequence[GrowingSlot]) -> dict[str, dict[str, Any]]:
    """Return the seeds in some slots as primitives, by the number of the slot."""
    return {
        str(index): {**described(slot.blueprint), "blend": int(slot.blend)}
        for index, slot in enumerate(slots)
        if slot.blueprint is not None
    }


def replant(slots: Sequence[GrowingSlot], seeds: Mapping[str, dict[str, Any]], likes: Sequence[Tensor]) -> None:
    """Plant the seeds that `planted` described. One that is there stays, so that an optimizer keeps its state."""
    with borrowed_stream():  # a seed is drawn, and then overwritten
        for index, (slot, like) in enumerate(zip(slots, likes, strict=True)):
            seed = seeds.get(str(index))
            if seed and (slot.blueprint, slot.blend) == (restored(seed), Blend(seed["blend"])):
                continue
            slot.clear()
            if seed:
                slot.plant(restored(seed), Blend(seed["blend"]), like, None)


def contents(module: nn.Module, slots: Mapping[str, GrowingSlot], samples: Tensor) -> dict[str, Any]:
    """Return what `topology.json` says of a grown network with these slots; seeds at alpha 0 are not part of it."""
    inside = {name: slot for name, slot in slots.items() if slot.role.alpha > 0}
    seeds = [
        {"slot": name, **described(slot.blueprint), "blend": slot.blend.name.lower(), "alpha": slot.role.alpha}
        for name, slot in inside.items()
        if slot.blueprint is not None
    ]
    count = sum(one.numel() for part in (module, *inside.values()) for one in part.parameters())
    given = {"shape": ["batch", *samples.shape[1:]], "dtype": str(samples.dtype).removeprefix("torch.")}
    return {"seeds": seeds, "slots": list(slots), "parameters": count, "input": given}


def restored(description: dict[str, Any]) -> BlueprintConfig:
    """Return the blueprint that `described` described.

    Raises:
        ValueError: its name is not registered.
    """
    load_plugins([])
    if description["name"] not in BLUEPRINTS:
        raise ValueError(
            f"the checkpoint has a seed of blueprint {description['name']}, which is not registered: import the module that "
            "registers it first"
        )
    kind = BLUEPRINTS[description["name"]]
    hints, settings = get_type_hints(kind), dict[str, Any](description["settings"])
    for key, value in settings.items():
        if isinstance(hint := hints.get(key), type) and issubclass(hint, StrEnum):
            settings[key] = hint(value)
    return kind(**settings)
