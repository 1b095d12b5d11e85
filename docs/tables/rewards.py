"""Tables of rewards.md, the potential of each stage and the modes, and of extending/rewards.md, what terms are made from."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from docs.tables.markdown import class_doc, lower, table, ticked
from esper.cli.help import field_docs
from esper.lifecycle.stages import SlotState, Stage
from esper.measure.counterfactuals import SeedEffects
from esper.reward import table as terms
from esper.reward.modes import MODES
from esper.reward.signals import StepSignals
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


def ready_terms() -> Iterator[str]:
    """Yield the terms of esper.reward.table by their Python names."""
    named = {name: term for name, term in vars(terms).items() if isinstance(term, terms.Term)}
    rows = ((f"`{name}`", term.unit, f"`{term.name}`", ticked(term.reads), term.formula) for name, term in named.items())
    return table(("name", "unit", "component", "fields that it reads", "formula"), rows)


def signals() -> Iterator[str]:
    """Yield what a step measures, by attribute."""
    for kind, of in ((StepSignals, "signals"), (SeedEffects, "signals.effects"), (SlotState, "signals.before and signals.after")):
        yield from (f"`{of}`:".replace(" and ", "` and `"), "")
        yield from table(("attribute", "meaning"), _attributes(kind))
        yield ""


def _attributes(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass with their docstrings; one docstring may stand below two fields."""
    docs, names = field_docs(kind), list[str]()
    for entry in fields(kind):
        names.append(entry.name)
        if entry.name in docs:
            yield ticked(names), docs[entry.name]
            names = []
