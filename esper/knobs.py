"""The knobs in words: what `--help` shows and what docs/config.md lists, both read from the dataclasses themselves.

`python -m esper.knobs > docs/config.md` writes the page anew.
"""

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from typing import Any

from esper.config import ALIASES, CONF, GROUPS, MANY, Config
from esper.env.counterfactuals import CounterfactualsConfig

# The knobs that matter, in the order of --help; the page lists all of them.
KNOBS = (
    "seed",
    "updates",
    "hosts",
    "steps",
    "resume",
    "task.instances",
    "task.batch_size",
    "task.host_optimiser.learning_rate",
    "slots.max_seeds",
    "gates.min_training",
    "reward.rent",
    "reward.attribution",
    "reward.accuracy_potential",
    "agent.gamma",
    "agent.learning_rate",
    "agent.entropy_coef",
    "agent.epochs",
    "agent.hidden",
    "governor.penalty",
    "telemetry.every",
)

USAGE = """\
  python -m esper.train                                  one run with the defaults
  python -m esper.train reward=sparse hosts=64           another reward, more hosts
  python -m esper.train 'devices=[cuda:0,cuda:1]'        two devices (quoted: the shell reads [...])
  python -m esper.train -m reward=shaped,sparse seed=1,2 four runs, one after another
  python -m esper.train -m sweep=ab_reward               a comparison with seeds that the arms share
  python -m esper.train --cfg job                        the whole config of a run, which is not started"""


@cache
def field_docs(node: type) -> dict[str, str]:
    """The string under each field of a config dataclass and its bases, as one line each."""
    docs: dict[str, str] = {}
    for base in reversed(node.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for here, below in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[here.target.id] = " ".join(str(below.value.value).split())
    return docs


def yaml_names(group: str) -> list[str]:
    """Options of a group that is a folder of YAML files."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def groups() -> dict[str, list[str]]:
    """Every group and its options: of the table, of the aliases, and of the YAML folders."""
    tables = {group: list(options) for group, options in GROUPS.items()}
    aliases = {alias: list(GROUPS[group]) for alias, group in ALIASES.items()}
    return {**tables, **aliases, "experiment": yaml_names("experiment"), "sweep": yaml_names("sweep")}


def help_text(about: str, config: Config) -> str:
    """The page of --help; `config` is what runs by default."""
    lines = [" ".join(about.split()), "", USAGE, "", "Groups (choose one; several where there are brackets):"]
    for group, options in groups().items():
        shown = f"[{', '.join(options)}]" if group in MANY else ", ".join(options)
        lines += textwrap.wrap(f"{group:<12}{shown}", 118, initial_indent="  ", subsequent_indent=" " * 14)
    lines += ["", "Knobs and what they are now (docs/config.md lists all):"]
    for knob in KNOBS:
        owner, value = _look_up(config, knob)
        doc = field_docs(type(owner))[knob.rpartition(".")[2]]
        lines += textwrap.wrap(f"{f'{knob}={as_typed(value)}':<40}{_first_sentence(doc)}", 118, initial_indent="  ",
                               subsequent_indent=" " * 42)  # fmt: skip
    return "\n".join(lines)


def page() -> str:
    """docs/config.md."""
    lines = [
        "# Configuration",
        "",
        "Generated from the dataclasses by `python -m esper.knobs > docs/config.md`; do not edit by hand.",
        "Choose an option as in `reward=sparse`, set a field as in `reward.rent=0.1`.",
        "",
        *_section("## Root", Config),
    ]
    lines += _section("## counterfactuals", CounterfactualsConfig)
    for group, options in GROUPS.items():
        many = f"Several at a time, as in `'{group}=[{','.join(list(options)[:2])}]'`." if group in MANY else ""
        lines += [f"## {group}", "", *([many, ""] if many else [])]
        for node in dict.fromkeys(options.values()):
            names = ", ".join(f"`{group}={name}`" for name, other in options.items() if other is node)
            lines += _section(f"### {names}", node)
    lines += ["## Presets", ""]
    for group in ("experiment", "sweep"):
        lines += [f"* `{group}={name}`: {_yaml_comment(group, name)}" for name in yaml_names(group)]
    return "\n".join(lines) + "\n"


def _section(title: str, node: type) -> list[str]:
    lines = [title, "", " ".join((node.__doc__ or "").split()), ""]
    own: tuple[Field[Any], ...] = fields(node)
    if own:
        docs = field_docs(node)
        lines += ["| field | default | meaning |", "|---|---|---|"]
        for field in own:
            # A cell may not hold the bar that ends it.
            doc = docs.get(field.name, "").replace("|", "\\|")
            lines.append(f"| `{field.name}` | {_default(field)} | {doc} |")
        lines.append("")
    return lines


def _default(field: "Field[Any]") -> str:
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    if isinstance(value, CounterfactualsConfig):
        return "below"
    if value is MISSING:
        return "required"
    return "by group" if value == "???" else f"`{as_typed(value)}`"


def as_typed(value: object) -> str:
    """A value as it is typed."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return "[" + ",".join(map(as_typed, value)) + "]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def _look_up(config: Config, knob: str) -> tuple[Any, Any]:
    """The dataclass that declares a dotted key, and the value of the key."""
    owner: Any = None
    value: Any = config
    for part in knob.split("."):
        owner, value = value, value[part] if isinstance(value, dict) else getattr(value, part)
    return owner, value


def _first_sentence(doc: str) -> str:
    return doc.split(". ")[0].rstrip(".")


def _yaml_comment(group: str, name: str) -> str:
    """The comment at the head of a YAML file, without the line that is for Hydra."""
    lines = (CONF / group / f"{name}.yaml").read_text().splitlines()
    words = [line[1:].strip() for line in lines if line.startswith("#") and "@package" not in line]
    return " ".join(words)


if __name__ == "__main__":
    print(page(), end="")
