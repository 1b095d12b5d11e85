"""Tables of config.md and of its pages in config/: the keys of every config, their named values, and the presets."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from docs.tables.markdown import class_doc, table, ticked
from esper.checkpoint import CheckpointsConfig
from esper.cli.help import as_typed, defaults, docs_below, field_docs, yaml_names
from esper.cli.transfer import TRANSFERABLE
from esper.config import BROUGHT, CONF, GROUPS, MANY, Config, standalone_agents
from esper.evaluate import EvaluateConfig
from esper.export import ExportConfig
from esper.lab.outcomes import OUTCOMES, CompareConfig, OutcomeSpec
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.report import ReportConfig
from esper.sweeps import SWEEPS
from esper.telemetry.writers import WRITERS

Row = tuple[str, str, str]
"""Cells of a key: its name, default and meaning."""
HEAD = ("key", "default", "meaning")
SHOWN = 6
"""Options of a group that its row in the index names."""


def root_config() -> Iterator[str]:
    """Yield the keys of the root config, of `checkpoints` and of `counterfactuals`, without the groups."""
    rows = [row for row in _keys(Config, "") if row[0].strip("`") not in GROUPS]
    yield from ("## Keys of every run", "", class_doc(Config), "", *table(HEAD, rows), "")
    yield from section("## checkpoints", CheckpointsConfig, "checkpoints.")
    yield from section("## counterfactuals", CounterfactualsConfig, "counterfactuals.")
    yield from choices("counterfactuals", {"": CounterfactualsConfig})


def index() -> Iterator[str]:
    """Yield a row for each group, with a link to its page."""
    docs, chosen = field_docs(Config), defaults()

    def options(group: str) -> str:
        names = [*GROUPS[group], *yaml_names(group)]
        return ticked(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")

    rows = (
        (f"[{group}](config/{group}.md)", ticked(chosen[group]), options(group), docs[group].split(";")[0].rstrip(".") + ".")
        for group in GROUPS
    )
    return table(("group", "default", "options", "meaning"), rows)


def group_page(group: str) -> Iterator[str]:
    """Yield a section for each option of a group, its presets, and the meaning of named values."""
    options = GROUPS[group]
    if group in MANY:
        several = list(options)[3:5]  # `auto` and `cpu` may be one device
        yield from (f"Several at a time, as in `'{group}=[{','.join(several)}]'`.", "")
    shared = {} if group in MANY else _shared(group, options)
    if shared:
        about = (
            f"Defaults are those of `{group}={defaults()[group][0]}`; each option below lists the defaults and keys that differ."
        )
        yield from ("## Keys of every option", "", about, "", *table(HEAD, shared.values()), "")
    for node in dict.fromkeys(options.values()):
        names = [name for name, other in options.items() if other is node]
        prefix = f"{group}.{names[0]}." if group in MANY else f"{group}."
        yield from section(f"## {ticked(f'{group}={name}' for name in names)}", node, prefix, but=shared.values())
        if group == "task":
            options_of = {other: getattr(node, f"default_{other}") for other in BROUGHT}
            shown = {other: f"[{','.join(one)}]" if other in MANY else one for other, one in options_of.items()}
            brought = ", ".join(f"`{other}={one}`" for other, one in shown.items())
            yield from (f"Comes with {brought}.", "")
    if yaml_names(group):
        yield from ("## Presets", "", *presets(group), "")
    if meanings := list(choices(group, options)):
        yield from ("## Choices", "", "The meaning of named values.", "", *meanings)


def sweeps() -> Iterator[str]:
    """Yield a section for each sweep."""
    for name, node in SWEEPS.items():
        yield from section(f"## `sweep={name}`", node)


def writers() -> Iterator[str]:
    """Yield a section for each telemetry writer that has settings."""
    for name, node in WRITERS.items():
        if fields(node):
            yield from section(f"### `{name}`", node)


def other_commands() -> Iterator[str]:
    """Yield the keys of the evaluation, the comparison, the export and the report."""
    yield from section("## `python -m esper.evaluate checkpoint=FOLDER`", EvaluateConfig)
    yield f"Agents without training: {ticked(standalone_agents())}. Keys of a run that may be overridden: {ticked(TRANSFERABLE)}."
    yield ""
    yield from section("## `python -m esper.compare FOLDER...`", CompareConfig)
    rows = (
        (
            f"`{one.name}`",
            one.unit,
            one.description,
            _margin(one),
            "higher" if one.higher_is_better else "lower",
        )
        for one in OUTCOMES.values()
    )
    yield from table(("outcome", "unit", "meaning", "margin", "better"), rows)
    yield ""
    yield from section("## `python -m esper.export checkpoint=FOLDER`", ExportConfig)
    yield from section("## `python -m esper.report FOLDER...`", ReportConfig)


def choices(group: str, options: Mapping[str, type]) -> Iterator[str]:
    """Yield the meaning of every named value in the options of a group; nothing if there is none."""
    found: dict[type[StrEnum], dict[str, None]] = {}
    for node in options.values():
        for name, hint in get_type_hints(node).items():
            kind = _element(hint)
            if isinstance(kind, type) and issubclass(kind, StrEnum) and docs_below(kind):
                found.setdefault(kind, {})[f"{group}.{name}"] = None
    rows = [(ticked(keys), f"`{kind[name]}`", doc) for kind, keys in found.items() for name, doc in docs_below(kind).items()]
    return table(("key", "value", "meaning"), rows) if rows else iter(())


def presets(group: str) -> Iterator[str]:
    """Yield the comment at the head of each YAML file of a group, without the line for Hydra."""
    for name in yaml_names(group):
        lines = (CONF / group / f"{name}.yaml").read_text().splitlines()
        about = (line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line)
        yield f"* `{group}={name}`: {' '.join(about)}"


def _shared(group: str, options: Mapping[str, type]) -> dict[str, Row]:
    """Return the rows of the default option whose keys, with the same meaning, all options of a group have."""
    rows = {node: {row[0]: row for row in _keys(node, f"{group}.")} for node in options.values()}
    base, *_ = others = [rows[options[defaults()[group][0]]], *rows.values()]
    same = [key for key, row in base.items() if all(key in one and one[key][2] == row[2] for one in others)]
    return {key: base[key] for key in same} if len(rows) > 1 else {}


def section(title: str, node: type, prefix: str = "", but: Collection[Row] = ()) -> Iterator[str]:
    """Yield a title, the docstring of a config, and the rows of its keys but for some."""
    yield from (title, "", class_doc(node), "")
    if keys := [row for row in _keys(node, prefix) if row not in but]:
        yield from (*table(HEAD, keys), "")


def _keys(node: type, prefix: str, value: object = MISSING) -> Iterator[Row]:
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
        if isinstance(kind, type) and issubclass(kind, StrEnum) and not {*kind} <= {*re.findall(r"\w+", meaning)}:
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


def _margin(spec: OutcomeSpec) -> str:
    """Return the default margin of an outcome, with its unit if that is not a pure number."""
    return f"{spec.margin:g} {spec.difference}".removesuffix(" 1")
