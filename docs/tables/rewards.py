"""Tables of rewards.md: the potential of each stage, and the reward modes."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from docs.tables.markdown import class_doc, lower, table, ticked
from esper.lifecycle.stages import Stage
from esper.reward.modes import MODES
from esper.reward.terms import STAGE_VALUE


def stage_potentials() -> Iterator[str]:
    """Yield the potential of each stage."""
    return table(("stage", "potential"), ((lower(stage), f"{STAGE_VALUE[stage]:g}") for stage in Stage))


def reward_modes() -> Iterator[str]:
    """Yield a section for each reward mode, with its terms and its other keys."""
    for name, mode in MODES.items():
        defaults: dict[str, Any] = {entry.name: entry.default for entry in fields(mode)}
        yield from (f"### {name}", "", class_doc(mode), "")
        rows = (
            (f"`{key}`", f"{term.sign * defaults[key] + 0.0:g}", term.unit, f"`{term.name}`", term.formula, term.source)
            for key, term in mode.pays.items()
        )
        yield from table(("key", "weight", "unit", "component", "formula", "source"), rows)
        yield ""
        if others := [key for key in defaults if key not in (*mode.pays, "per_host")]:
            yield from (f"Other keys: {ticked(f'reward.{key}={defaults[key]}' for key in others)}.", "")
