"""docs/config.md is what the dataclasses say, and lacks none of their keys."""

from dataclasses import fields
from pathlib import Path

import pytest

from esper import reference
from esper.cli.overrides import check
from esper.config import SWEEPS, register
from esper.evaluate import EvaluateConfig
from esper.lab.runs import OUTCOMES, CompareConfig
from esper.lifecycle.roles import Incubation
from esper.training.config_io import flat, to_plain

PAGE = reference.page()
register()


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs" / "config.md"
    assert page.read_text() == PAGE, "write it anew: python -m esper.reference > docs/config.md"


@pytest.mark.parametrize(
    "words", [[], ["task=python_text", "agent=best_of_random", "slots=deep", "gates=strict", "reward=escrow"]]
)
def test_every_key_of_a_run_is_on_the_page(words: list[str]) -> None:
    assert not [key for key in flat(to_plain(check(words))) if f"\n| `{key}` | " not in PAGE]


def test_so_is_every_key_of_sweeps_and_of_the_other_commands() -> None:
    keys = [entry.name for node in (*SWEEPS.values(), EvaluateConfig, CompareConfig) for entry in fields(node)]
    assert {key for key in keys if f"\n| `{key}` | " not in PAGE} == {"_target_"}, "which is for Hydra"
    assert not [name for name in OUTCOMES if f"\n| `{name}` | " not in PAGE]


def test_defaults_within_a_config_are_those_of_the_option() -> None:
    section = PAGE.split("### `task=tinystories`")[1].split("\n### ")[0]
    assert "| `task.host.width` | `384` |" in section
    assert "| `task.host` | below |" in section


def test_values_with_names_are_shown() -> None:
    assert "How a seed learns in training, before it is blended in. Out of `straight_through`, `closed_loop`, `none`." in PAGE
    assert all(f"| `slots.incubation` | `{one}` | " in PAGE for one in Incubation)
    assert "| `agent.actions[].op` | `germinate` |" in PAGE, "what a list holds many of"
    assert "32\\|64\\|128" in PAGE, "a bar would end its cell"
