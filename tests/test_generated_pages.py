"""The tables of docs/ are those of the code, and lack no key of the config."""

from dataclasses import fields
from pathlib import Path

import pytest

from docs import generate
from docs.tables.markdown import table
from esper.cli.overrides import check
from esper.config import GROUPS
from esper.env.actions import FREE, VALUES, Head, HeadsConfig
from esper.evaluate import EvaluateConfig
from esper.lab.outcomes import OUTCOMES, CompareConfig
from esper.lifecycle.roles import Incubation
from esper.sweeps import SWEEPS
from esper.telemetry.anomalies import AnomaliesConfig
from esper.telemetry.healthy import HEALTHY
from esper.telemetry.tags import METRICS
from esper.training.config_io import flat, to_plain

DOCS = Path(__file__).parent.parent / "docs"
CONFIG = "".join(page.read_text() for page in (DOCS / "config.md", *sorted((DOCS / "config").glob("*.md"))))
"""The index of the configuration and its pages."""


@pytest.mark.parametrize("page", generate.PAGES)
def test_a_page_is_up_to_date_and_says_how_to_rewrite_it(page: str) -> None:
    text = (DOCS / page).read_text()
    assert generate.rewritten(page) == text, "run python docs/generate.py"
    assert "run `python docs/generate.py`" in text


def test_no_page_has_marks_without_tables() -> None:
    assert sorted(generate.PAGES) == sorted(
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "<!-- generated: " in page.read_text()
    )


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the pages, which the generator works on."""
    for page in generate.PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text((DOCS / page).read_text())
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    return tmp_path


def test_check_names_stale_pages_and_a_rewrite_restores_them(
    copies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {page: generate.PAGES[page] for page in ("actions.md", "lifecycle.md", "metrics.md")}
    monkeypatch.setattr(generate, "PAGES", few)  # all of them take a second each time
    (copies / "metrics.md").write_text((DOCS / "metrics.md").read_text().replace("| pp |", "| points |"))
    (copies / "actions.md").write_text((DOCS / "actions.md").read_text().replace("Before every host epoch", "First"))  # by hand
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    with pytest.raises(SystemExit, match=r"^docs/metrics\.md is stale: run python docs/generate\.py"):
        generate.main()
    monkeypatch.setattr("sys.argv", ["generate.py"])
    generate.main()
    assert capsys.readouterr().out == "docs/metrics.md rewritten\n"
    assert (copies / "metrics.md").read_text() == (DOCS / "metrics.md").read_text()


def test_a_page_without_its_marks_is_refused(copies: Path) -> None:
    (copies / "actions.md").write_text("# Actions\n")
    with pytest.raises(ValueError, match=r"docs/actions\.md must have one pair of marks for each of operations, heads, values"):
        generate.rewritten("actions.md")


def test_bars_within_cells_are_escaped() -> None:
    assert list(table(("a", "b"), [(1, "x|y")])) == ["| a | b |", "|---|---|", "| 1 | x\\|y |"]


@pytest.mark.parametrize(
    "overrides", [[], ["task=python_text", "agent=best_of_random", "slots=deep", "gates=strict", "reward=escrow"]]
)
def test_every_key_of_a_run_is_on_the_page(overrides: list[str]) -> None:
    keys = {*flat(to_plain(check(overrides)))} - {*GROUPS}
    assert not [key for key in keys if f"\n| `{key}` | " not in CONFIG]
    assert not [group for group in GROUPS if f"\n| [{group}](config/{group}.md) | " not in CONFIG]


def test_so_is_every_key_of_sweeps_and_of_the_other_commands() -> None:
    keys = [entry.name for node in (*SWEEPS.values(), EvaluateConfig, CompareConfig) for entry in fields(node)]
    assert {key for key in keys if f"\n| `{key}` | " not in CONFIG} == {"_target_"}, "which is for Hydra"
    assert not [name for name in OUTCOMES if f"\n| `{name}` | " not in CONFIG]


def test_defaults_within_a_config_are_those_of_the_option() -> None:
    section = CONFIG.split("## `task=digits_drift`")[1].split("\n## ")[0]
    assert "| `task.events.count` | `[1,2,3,3]` |" in section
    assert "| `task.events` | below |" in section
    assert "| `task.batch_size` |" not in section, "which is as in every option"
    shared = CONFIG.split("Defaults are those of `task=digits`")[1].split("\n## ")[0]
    assert "| `task.batch_size` | `128` |" in shared
    assert "| `task.events.count` | `[1]` |" in shared


def test_named_values_and_elements_of_lists_are_listed() -> None:
    assert "One of `constant`, `cosine`, `one_cycle`. |" in CONFIG
    assert "straight_through, closed_loop or none. |" in CONFIG
    assert all(f"| `slots.incubation` | `{one}` | " in CONFIG for one in Incubation)
    assert "| `agent.actions[].op` | `germinate` |" in CONFIG


def test_charges_are_negative_and_details_are_marked() -> None:
    assert "| `rent` | -0.5 | host sizes | `rent` |" in (DOCS / "rewards.md").read_text()
    metrics = (DOCS / "metrics.md").read_text()
    assert "| `policy/entropy_<head>` | + | nat |" in metrics
    assert "| `policy/entropy` |  | nat |" in metrics


def test_every_metric_has_healthy_values_on_the_page() -> None:
    assert list(HEALTHY) == [row.tag for row in METRICS]
    rows = (DOCS / "metrics.md").read_text().splitlines()
    for tag, text in HEALTHY.items():
        (line,) = [line for line in rows if line.startswith(f"| `{tag}` |")]
        assert line.endswith(f"| {text} |")
    limits = AnomaliesConfig()
    assert f"Above {limits.ratio:g} (anomaly)" in HEALTHY["policy/ratio_max"]


@pytest.mark.parametrize("head", VALUES, ids=lambda head: head.name)
def test_a_held_head_can_be_freed_as_the_page_says(head: Head) -> None:
    assert head in HeadsConfig().pinned
    assert head not in HeadsConfig(**{"alpha_speed": FREE, head.name.lower(): FREE}).pinned
