"""Groups and YAML files: every option and preset composes, and every field has a docstring."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import yaml

from esper import config as C
from esper.cli.help import field_docs, yaml_names
from esper.cli.overrides import check
from esper.hosts.base import slot_specs
from esper.ranges import check_ranges
from tests.config_classes import CLASSES

OPTIONS = [(group, name) for group, options in C.GROUPS.items() for name in options]
NEEDED = {
    "agent=event_oracle": ["task=digits_drift", "env.timetable=true"],
    "host=transformer": ["task=python_text"],
    "host=custom": ["host.path=mine:Host", "task.instances=healthy"],
    "buffer=window": ["agent.baseline=critic", "agent.twins=1"],
}
"""Overrides that an option needs."""
TOGETHER = ("optimiser", "gates", "blueprint", "devices", "reward", "governor", "telemetry")
"""Groups whose options fit any of the others' options: the n-th ones of all are composed at once."""


def override(group: str, number: int) -> str:
    """Return the choice of an option by its number, counted around the table."""
    name = [*C.GROUPS[group]][number % len(C.GROUPS[group])]
    return f"{group}=[{name}]" if group in C.MANY else f"{group}={name}"


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_composes_and_is_its_type(group: str, name: str) -> None:
    number = [*C.GROUPS[group]].index(name)
    chosen = [override(other, number) for other in (TOGETHER if group in TOGETHER else [group])]
    part = getattr(check([*chosen, *NEEDED.get(chosen[0], ())]), group)
    node = part[name] if group in C.MANY else part
    assert type(node) is C.GROUPS[group][name]
    assert not isinstance(part, dict) or list(part) == [name]


@pytest.mark.parametrize("name", yaml_names("host"))
def test_every_preset_of_a_host_differs_from_its_default_and_builds(name: str) -> None:
    kind = name.partition("_")[0]
    task = "task=tinystories" if kind == "transformer" else "task=cifar10_baseline"
    host = check([task, f"host={name}"]).host
    assert type(host) is C.GROUPS["host"][kind]
    assert host != check([task, f"host={kind}", *(["host.context=256"] if kind == "transformer" else [])]).host
    assert slot_specs(host.build((3, 32, 32), 10, [False] * host.num_parts()))


@pytest.mark.parametrize("name", yaml_names("experiment"))
def test_every_experiment_changes_something(name: str) -> None:
    assert check([f"experiment={name}"]) != check([])


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.__name__)
def test_every_config_and_field_has_a_docstring(node: type) -> None:
    assert inspect.getdoc(node)
    assert not (node.__doc__ or "").startswith(f"{node.__name__}("), "the docstring made by dataclass only lists the fields"
    assert "__slots__" in vars(node), "without slots, a misspelt key sets a stray attribute"
    missing = [field.name for field in dataclasses.fields(node) if field.name not in field_docs(node)]
    assert not missing, f"no docstring under {', '.join(missing)}"


def test_group_fields_are_left_to_the_groups() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(C.Config)}
    assert all(defaults[group] == "???" for group in C.GROUPS)


def test_no_yaml_hides_a_dataclass() -> None:
    table = {Path(group, f"{name}.yaml") for group, options in C.GROUPS.items() for name in options}
    found = {path.relative_to(C.CONF) for path in C.CONF.rglob("*.yaml")}
    assert not found & table
    assert {path.parts[0] for path in found if len(path.parts) > 1} == {
        *("task", "host", "optimiser", "slots", "env", "experiment", "sweep")
    }
    assert not (C.CONF / "schema.yaml").exists()


def test_yaml_holds_choices_and_the_schema_comes_first() -> None:
    root = yaml.safe_load((C.CONF / "config.yaml").read_text())
    assert root["defaults"][:2] == ["schema", "_self_"]
    assert set(root) == {"defaults", "hydra"}


def test_a_range_of_a_field_that_is_not_there_is_one_sentence():
    @dataclasses.dataclass
    class Mine:
        width = 6  # without an annotation it is no field

    with pytest.raises(ValueError, match=r"^Mine gives width a range or size, but has no such field: correct or annotate it$"):
        check_ranges("mine", Mine(), {"[1, inf]": ["width"]})
