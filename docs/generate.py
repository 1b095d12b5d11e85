"""Rewrite the tables in docs/ that come from the code.

    python docs/generate.py            rewrite every table
    python docs/generate.py --check    change nothing; exit with status 1 and name the stale pages

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; the text around it is written by hand. A new table is a
function below, a line in `PAGES`, and a pair of marks on its page.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum, StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from esper.checkpoint import CheckpointsConfig
from esper.cli.help import as_typed, field_docs, yaml_names
from esper.cli.transfer import TRANSFERABLE
from esper.config import BROUGHT, CONF, GROUPS, MANY, Config, standalone_agents
from esper.env import actions
from esper.env.actions import Head, HeadsConfig, Op
from esper.env.observation import HOST_FEATURES, Feature, RunScale, slot_table
from esper.evaluate import EvaluateConfig
from esper.lab.runs import OUTCOMES, CompareConfig
from esper.lifecycle.ramps import STEEPNESS, Curve
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import LIVE, TAKES_PART, Stage
from esper.measure.attribution import draw_orders
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.measure.plans import Plan, coalitions
from esper.reward.modes import MODES
from esper.reward.terms import STAGE_VALUE
from esper.seeding import stream
from esper.sweeps import SWEEPS
from esper.telemetry import tags

DOCS = Path(__file__).parent
MARKED = re.compile(r"<!-- generated: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


# ---- Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; bars within cells are escaped."""
    yield _row(head)
    yield "|" + "---|" * len(head)
    yield from map(_row, rows)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).strip().replace("|", "\\|") for cell in cells) + " |"


def ticked(names: Iterable[object]) -> str:
    """Return names in backticks, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def yes(fact: bool) -> str:
    """Return yes or no."""
    return "yes" if fact else "no"


def class_doc(node: type) -> str:
    """Return the docstring of a class as one line."""
    return " ".join((node.__doc__ or "").split())


def member_docs(kind: type[Enum]) -> dict[str, str]:
    """Return the string under each member of an enum, as one line each; members without one are left out."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        here.targets[0].id: " ".join(str(below.value.value).split())
        for here, below in pairwise(body.body)
        if isinstance(here, ast.Assign) and isinstance(here.targets[0], ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


# ---- actions.md

OPERATIONS = {
    Op.WAIT: "Do nothing. Always legal.",
    Op.GERMINATE: "Plant a seed of a blueprint in an empty slot, and choose how it will be blended in.",
    Op.SET_ALPHA_TARGET: "Ramp alpha of a seed in blending or holding to another target. Legal only if `alpha_target` is free. "
    "With `slots.switchable=true` it also switches a fossil off, or on again, at once, whatever the other heads say.",
    Op.PRUNE: "Remove a live seed, at once or after a ramp of alpha down to 0.",
    Op.FOSSILIZE: "Keep a seed in holding permanently.",
    Op.ADVANCE: "Move a seed to its next stage, if the gate to that stage is open.",
}
HEADS = {
    Head.OP: "operation",
    Head.SLOT: "slot it applies to",
    Head.BLUEPRINT: "kind of the new seed",
    Head.STYLE: "blend of the seed, for its whole life, and the curve of its first ramp",
    Head.TEMPO: "length of the first ramp",
    Head.ALPHA_TARGET: "end of the ramp",
    Head.ALPHA_SPEED: "length of a later ramp: to another target, or down to a removal",
    Head.ALPHA_CURVE: "shape of a later ramp",
}
RANGES = {
    Head.OP: "the operations above",
    Head.SLOT: "the slots of the host in forward order; legal are those that `slots` puts in use",
    Head.BLUEPRINT: "the options of `blueprint=[...]`, in that order",
}


def operations() -> Iterator[str]:
    """Yield the meaning of each operation, and the heads that are its arguments."""
    taken = {op: [_lower(head) for head in Head if actions.RELEVANT[op, head] and head is not Head.OP] for op in Op}
    return table(("op", "what it does", "arguments"), ((op.name, OPERATIONS[op], ticked(taken[op])) for op in Op))


def heads() -> Iterator[str]:
    """Yield the values of each head, and the value at which it is held by default."""

    def values(head: Head) -> str:
        return RANGES.get(head) or ticked(actions.VALUES.get(head, {}))

    def held(head: Head) -> str:
        return f"`{getattr(HeadsConfig(), _lower(head))}`" if head in actions.VALUES else "free"

    rows = ((f"`{_lower(head)}`", HEADS[head], values(head), held(head)) for head in Head)
    return table(("head", "what it chooses", "values, in the order of their numbers", "held by default at"), rows)


def head_values() -> Iterator[str]:
    """Yield the meaning of the values that do not depend on the config."""
    blends = member_docs(Blend)
    curves = {kind: f"a sigmoid of steepness {k:g}" for kind, k in STEEPNESS.items()}
    curves |= {Curve.LINEAR: "alpha moves in proportion to t", Curve.COSINE: "alpha moves by (1 - cos(pi t)) / 2"}

    def length(epochs: int) -> str:
        return f"{epochs} host epochs" if epochs else "at once"

    meanings = {
        Head.STYLE: {
            name: f"{blends[blend.name]}; first ramp {curve.name.lower()}" for name, (blend, curve) in actions.STYLES.items()
        },
        Head.TEMPO: {name: length(epochs) for name, epochs in actions.TEMPOS.items()},
        Head.ALPHA_TARGET: {name: f"alpha {target:g}" for name, target in actions.ALPHA_TARGETS.items()}
        | {"full": "alpha 1, which a seed must reach before it can be fossilized"},
        Head.ALPHA_SPEED: {name: length(epochs) for name, epochs in actions.ALPHA_SPEEDS.items()},
        Head.ALPHA_CURVE: {name: curves[curve] for name, curve in actions.ALPHA_CURVES.items()},
    }
    rows = ((f"`{_lower(head)}`", f"`{value}`", text) for head, values in meanings.items() for value, text in values.items())
    return table(("head", "value", "meaning"), rows)


def _lower(member: Enum) -> str:
    return member.name.lower()


# ---- observation.md, lifecycle.md, rewards.md, metrics.md


def features(some: Sequence[Feature]) -> Iterator[str]:
    """Yield the features of a host or of a slot."""

    def cells(one: Feature) -> tuple[str, ...]:
        known = f"{one.fill:g}, flagged by {ticked(one.indicators)}" if one.indicators else ""
        if not one.unit:
            return f"`{one.name}`", one.meaning, "", "", "0 or 1", known
        scale = str(one.scale) if isinstance(one.scale, RunScale) else f"{one.scale:g}"
        return f"`{one.name}`", one.meaning, one.unit, scale, f"{one.low:g} to {one.high:.3g}", known

    return table(("feature", "meaning", "unit", "scale", "range", "if never measured"), map(cells, some))


def stages() -> Iterator[str]:
    """Yield the stages with their properties."""
    docs = member_docs(Stage)
    rows = ((_lower(stage), docs.get(stage.name, ""), yes(stage in LIVE), yes(stage in TAKES_PART)) for stage in Stage)
    return table(("stage", "meaning", "live", "computed"), rows)


def stage_potentials() -> Iterator[str]:
    """Yield the potential of each stage."""
    return table(("stage", "potential"), ((_lower(stage), f"{STAGE_VALUE[stage]:g}") for stage in Stage))


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


def metric_names() -> Iterator[str]:
    """Yield the names that a placeholder in angle brackets stands for."""
    return (f"* `<{word}>` is one of {', '.join(names)}." for word, names in tags.WORDS.items())


def metrics() -> Iterator[str]:
    """Yield a section for each group of metrics."""
    for group in tags.groups():
        rows = (
            (f"`{row.tag}`", "+" if row.detail else "", row.unit, row.meaning)
            for row in tags.METRICS
            if row.tag.startswith(f"{group}/")
        )
        yield from (f"## {group}", "", *table(("tag", "", "unit", "meaning"), rows), "")


# ---- counterfactuals.md


class PlanCost(NamedTuple):
    """Number of times each part of a host is computed."""

    settings: int
    """Distinct settings, the current one included."""
    segments: tuple[int, ...]
    """Passes through each segment of the host, one more than there are slots."""
    seeds: tuple[int, ...]
    """Passes through the seed of each slot."""


def plan_cost(settings: Iterable[int], inside: int, slots: int) -> PlanCost:
    """Count the passes of one host under the current setting and others, if shared prefixes are computed once.

    Settings that agree in the first s slots enter segment s as one. A seed is computed once for each of those in which it is on.

    Args:
        settings: coalitions of seeds, as bits.
        inside: the seeds whose alpha is above 0, as bits.
        slots: number of slots.
    """
    every = {inside, *settings}
    into = [{coalition & ((1 << slot) - 1) for coalition in every} for slot in range(slots + 1)]
    on = [{coalition & ((1 << slot) - 1) for coalition in every if coalition >> slot & 1} for slot in range(slots)]
    return PlanCost(settings=len(every), segments=tuple(map(len, into)), seeds=tuple(map(len, on)))


def plans() -> Iterator[str]:
    """Yield the settings of each plan."""
    docs = member_docs(Plan)
    return table(("plan", "settings besides the current one"), ((f"`{plan}`", docs[plan.name]) for plan in Plan))


def plan_costs() -> Iterator[str]:
    """Yield the cost of each plan for hosts with 1 to 6 live seeds."""

    def rows() -> Iterator[Sequence[object]]:
        for seeds in (1, 2, 3, 4, 6):
            inside = (1 << seeds) - 1
            orders = draw_orders(inside, 8, stream(0, "page", seeds))
            for plan in Plan:
                cost = plan_cost(coalitions(plan, inside, 0, orders), inside, seeds)
                segments, branches = (f"{'+'.join(map(str, some))} = {sum(some)}" for some in (cost.segments, cost.seeds))
                yield seeds, f"`{plan}`", cost.settings, segments, branches, cost.settings * (seeds + 1)

    return table(("seeds", "plan", "settings", "segments", "seed branches", "segments without sharing"), rows())


# ---- config.md


def root_config() -> Iterator[str]:
    """Yield the keys of the root config, of `checkpoints` and of `counterfactuals`."""
    yield from section("## Root", Config)
    yield from section("## checkpoints", CheckpointsConfig, "checkpoints.")
    yield from section("## counterfactuals", CounterfactualsConfig, "counterfactuals.")


def groups() -> Iterator[str]:
    """Yield a section for each option of each group."""
    for group, options in GROUPS.items():
        yield from (f"## {group}", "")
        if group in MANY:
            yield from (f"Several at a time, as in `'{group}=[{','.join(list(options)[:2])}]'`.", "")
        for node in dict.fromkeys(options.values()):
            names = [name for name, other in options.items() if other is node]
            prefix = f"{group}.{names[0]}." if group in MANY else f"{group}."
            yield from section(f"### {ticked(f'{group}={name}' for name in names)}", node, prefix)
            if group == "task":
                options_of = {other: getattr(node, f"default_{other}") for other in BROUGHT}
                shown = {other: f"[{','.join(one)}]" if other in MANY else one for other, one in options_of.items()}
                brought = ", ".join(f"`{other}={one}`" for other, one in shown.items())
                yield from (f"Comes with {brought}.", "")


def sweeps() -> Iterator[str]:
    """Yield a section for each sweep."""
    for name, node in SWEEPS.items():
        yield from section(f"### `sweep={name}`", node)


def other_commands() -> Iterator[str]:
    """Yield the keys of the evaluation and the comparison."""
    yield from section("### `python -m esper.evaluate checkpoint=FOLDER`", EvaluateConfig)
    yield f"Agents without training: {ticked(standalone_agents())}. Keys of a run that may be overridden: {ticked(TRANSFERABLE)}."
    yield ""
    yield from section("### `python -m esper.compare FOLDER...`", CompareConfig)
    rows = (
        (f"`{one.name}`", one.unit, one.description, f"{one.margin:g}", "higher" if one.higher_is_better else "lower")
        for one in OUTCOMES.values()
    )
    yield from table(("outcome", "unit", "meaning", "margin", "better"), rows)


def choices() -> Iterator[str]:
    """Yield the meaning of every named value."""
    found: dict[type[StrEnum], dict[str, None]] = {}
    for group, options in {"counterfactuals": {"": CounterfactualsConfig}, **GROUPS}.items():
        for node in options.values():
            for name, hint in get_type_hints(node).items():
                kind = _element(hint)
                if isinstance(kind, type) and issubclass(kind, StrEnum) and member_docs(kind):
                    found.setdefault(kind, {})[f"{group}.{name}"] = None
    rows = ((ticked(keys), f"`{kind[name]}`", doc) for kind, keys in found.items() for name, doc in member_docs(kind).items())
    return table(("key", "value", "meaning"), rows)


def presets() -> Iterator[str]:
    """Yield the comment at the head of each YAML file, without the line for Hydra."""
    for group in (*GROUPS, "experiment", "sweep"):
        for name in yaml_names(group):
            lines = (CONF / group / f"{name}.yaml").read_text().splitlines()
            about = (line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line)
            yield f"* `{group}={name}`: {' '.join(about)}"


def section(title: str, node: type, prefix: str = "") -> Iterator[str]:
    """Yield a title, the docstring of a config, and its keys."""
    yield from (title, "", class_doc(node), "")
    if keys := list(_keys(node, prefix)):
        yield from (*table(("key", "default", "meaning"), keys), "")


def _keys(node: type, prefix: str, value: object = MISSING) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each key, and below a nested config the rows of its own keys.

    Args:
        node: the config.
        prefix: what precedes the name of a key.
        value: the instance whose values are the defaults; without one, the defaults of the class.
    """
    hints, docs = get_type_hints(node), field_docs(node)
    for field in fields(node):
        if field.name.startswith("_"):  # for Hydra
            continue
        key, default = f"{prefix}{field.name}", _default(field) if value is MISSING else getattr(value, field.name)
        kind = _element(hints[field.name])
        meaning = docs.get(field.name, "")
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            meaning += f" {'One' if kind is hints[field.name] else 'Any'} of {ticked(kind)}."
        elsewhere = default == "???" or isinstance(default, CounterfactualsConfig)
        nested = is_dataclass(kind) and not elsewhere
        yield f"`{key}`", _shown(default, nested), meaning
        if nested:
            alone = kind is hints[field.name]
            yield from _keys(kind, f"{key}." if alone else f"{key}[].", default if alone else MISSING)


def _element(hint: Any) -> Any:
    """Return the type of a field, or of the elements of a list."""
    return get_args(hint)[0] if get_origin(hint) is list else hint


def _default(field: "Field[Any]") -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _shown(value: Any, nested: bool) -> str:
    """Return a default as it is typed on the command line, if it can be."""
    if isinstance(value, CounterfactualsConfig) or (nested and is_dataclass(value)):
        return "below"
    if value is MISSING:
        return "required"
    if value == "":
        return "empty"
    return "by group" if value == "???" else f"`{as_typed(value)}`"


# ---- pages

PAGES: dict[str, Mapping[str, Callable[[], Iterator[str]]]] = {
    "actions.md": {"operations": operations, "heads": heads, "values": head_values},
    "config.md": {
        "root": root_config,
        "groups": groups,
        "sweeps": sweeps,
        "commands": other_commands,
        "choices": choices,
        "presets": presets,
    },
    "counterfactuals.md": {"plans": plans, "costs": plan_costs},
    "lifecycle.md": {"stages": stages},
    "metrics.md": {"names": metric_names, "metrics": metrics},
    "observation.md": {
        "host": lambda: features(HOST_FEATURES),
        "slot": lambda: features(slot_table(["BLUEPRINT"])),
    },
    "rewards.md": {"stages": stage_potentials, "modes": reward_modes},
}


def rewritten(page: str) -> str:
    """Return the text of a page with its tables rewritten.

    Raises:
        ValueError: the marks of the page are not those of `PAGES`.
    """
    text, tables = (DOCS / page).read_text(), PAGES[page]
    found = [match[1] for match in MARKED.finditer(text)]
    if sorted(found) != sorted(tables):
        raise ValueError(f"docs/{page} must have one pair of marks for each of {', '.join(tables)}; it has {', '.join(found)}")

    def fill(match: re.Match[str]) -> str:
        body = "\n".join(tables[match[1]]()).strip()
        return f"<!-- generated: {match[1]} -->\n\n{body}\n\n<!-- end -->"

    return MARKED.sub(fill, text)


def main() -> None:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with status 1 if a page is stale")
    check = parser.parse_args().check
    stale = [page for page in PAGES if rewritten(page) != (DOCS / page).read_text()]
    if check and stale:
        names = ", ".join(f"docs/{page}" for page in stale)
        sys.exit(f"{names} {'is' if len(stale) == 1 else 'are'} stale: run python docs/generate.py and commit the result")
    for page in stale:
        (DOCS / page).write_text(rewritten(page))
        print(f"docs/{page} rewritten")


if __name__ == "__main__":
    main()
