"""docs/config.md: every key there is, its default, what it may be and what it means, read from the dataclasses themselves.

`python -m esper.reference > docs/config.md` writes the page anew.
"""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from esper.cli.help import as_typed, field_docs, yaml_names
from esper.cli.transfer import WORLD
from esper.config import CONF, GROUPS, MANY, SWEEPS, UNTRAINED, Config
from esper.evaluate import EvaluateConfig
from esper.lab.runs import OUTCOMES, CompareConfig
from esper.measure.counterfactuals import CounterfactualsConfig
from esper.measure.plans import member_docs

HEAD = """\
# Configuration

Generated from the dataclasses by `python -m esper.reference > docs/config.md`; do not edit by hand.
Choose an option as in `reward=sparse`, set a key as in `reward.rent=0.1`."""


def page() -> str:
    """docs/config.md."""
    lines = [HEAD, "", *_section("## Root", Config), *_section("## counterfactuals", CounterfactualsConfig, "counterfactuals.")]
    for group, options in GROUPS.items():
        many = f"Several at a time, as in `'{group}=[{','.join(list(options)[:2])}]'`." if group in MANY else ""
        lines += [f"## {group}", "", *([many, ""] if many else [])]
        for node in dict.fromkeys(options.values()):
            names = [name for name, other in options.items() if other is node]
            title = ", ".join(f"`{group}={name}`" for name in names)
            lines += _section(f"### {title}", node, f"{group}.{names[0]}." if group in MANY else f"{group}.")
    lines += [
        "## Sweeps",
        "",
        "Typed beside the keys of the runs, as in `-m sweep=ab blocks=12`; `hydra.sweep.dir=FOLDER` says where.",
        "",
    ]
    for name, node in SWEEPS.items():
        lines += _section(f"### `sweep={name}`", node)
    lines += ["## Other commands", "", "Typed as `key=value`; `--help` shows them too.", ""]
    lines += _section("### `python -m esper.evaluate checkpoint=FOLDER`", EvaluateConfig)
    lines += [f"Agents that need no training: {_ticked(UNTRAINED)}. Keys of a run that may be another's: {_ticked(WORLD)}.", ""]
    lines += _section("### `python -m esper.compare FOLDER...`", CompareConfig)
    lines += ["| outcome | unit | meaning | margin | better |", "|---|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.unit} | {one.description} | {one.margin:g} | {'higher' if one.higher_is_better else 'lower'} |"
        for one in OUTCOMES.values()
    ]
    lines.append("")
    lines += ["## Choices", "", "What the values mean that have names.", "", *_choices()]
    lines += ["## Presets", ""]
    for group in ("experiment", "sweep"):
        lines += [f"* `{group}={name}`: {_yaml_comment(group, name)}" for name in yaml_names(group)]
    return "\n".join(lines) + "\n"


def _section(title: str, node: type, prefix: str = "") -> list[str]:
    lines = [title, "", " ".join((node.__doc__ or "").split()), ""]
    if rows := list(_rows(node, prefix)):
        lines += ["| key | default | meaning |", "|---|---|---|", *rows, ""]
    return lines


def _rows(node: type, prefix: str, value: object = MISSING) -> Iterator[str]:
    """A row a key, and below a config within the config the rows of its own keys.

    Args:
        prefix: what stands before the name of a key of this config.
        value: the config that is there by default; without one defaults are those of the class.
    """
    hints, docs = get_type_hints(node), field_docs(node)
    for field in fields(node):
        if field.name.startswith("_"):  # for Hydra
            continue
        key, default = f"{prefix}{field.name}", _default(field) if value is MISSING else getattr(value, field.name)
        kind = _one(hints[field.name])
        meaning = docs.get(field.name, "")
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            meaning += f" {'Out of' if kind is hints[field.name] else 'Any of'} {_ticked(kind)}."
        inner = _within(kind, default)
        yield f"| `{key}` | {_shown(default, inner)} | {_cell(meaning)} |"
        if inner:
            alone = kind is hints[field.name]
            yield from _rows(kind, f"{key}." if alone else f"{key}[].", default if alone else MISSING)


def _cell(text: str) -> str:
    """A cell may not hold the bar that ends it."""
    return text.replace("|", "\\|").strip()


def _ticked(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _one(hint: Any) -> Any:
    """What a field holds, or a list holds many of."""
    return get_args(hint)[0] if get_origin(hint) is list else hint


def _within(kind: Any, default: object) -> bool:
    """Are there keys of its own below it? Groups, and what has a section of its own, stand elsewhere."""
    return is_dataclass(kind) and default != "???" and not isinstance(default, CounterfactualsConfig)


def _default(field: "Field[Any]") -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _shown(value: Any, inner: bool) -> str:
    """A default, as it is typed where it can be."""
    if isinstance(value, CounterfactualsConfig) or (inner and is_dataclass(value)):
        return "below"
    if value is MISSING:
        return "required"
    if value == "":
        return "empty"
    return "by group" if value == "???" else f"`{as_typed(value)}`"


def _choices() -> list[str]:
    """A table of all values that have names, where they say what they mean."""
    found: dict[type[StrEnum], dict[str, None]] = {}
    for group, options in {"counterfactuals": {"": CounterfactualsConfig}, **GROUPS}.items():
        for node in options.values():
            for name, hint in get_type_hints(node).items():
                kind = _one(hint)
                if isinstance(kind, type) and issubclass(kind, StrEnum) and member_docs(kind):
                    found.setdefault(kind, {})[f"`{group}.{name}`"] = None
    lines = ["| key | value | meaning |", "|---|---|---|"]
    for kind, keys in found.items():
        lines += [f"| {', '.join(keys)} | `{kind[name]}` | {_cell(doc)} |" for name, doc in member_docs(kind).items()]
    return [*lines, ""]


def _yaml_comment(group: str, name: str) -> str:
    """The comment at the head of a YAML file, without the line that is for Hydra."""
    lines = (CONF / group / f"{name}.yaml").read_text().splitlines()
    words = [line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line]
    return " ".join(words)


if __name__ == "__main__":
    print(page(), end="")
