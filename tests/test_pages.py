"""The pages of docs/: links resolve, and files and examples match a run."""

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import theory_figures
from esper.cli.command import spelled_out
from esper.cli.overrides import check
from esper.config import GROUPS
from esper.evaluate import parse
from tests.composed import check_sweep
from tests.forked import run_forked

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ONLY_AFTER_ANOMALIES = "events.jsonl"
ONLY_WITH_PROFILE = "profile/"


LINKING = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "multirun/README.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_figure_of_the_readme_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "host.png"
    done = run_forked("docs.host_figure", "--quick", "--out", str(out), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", theory_figures.FIGURES)
def test_a_picture_of_the_theory_is_what_its_script_draws(name: str) -> None:
    text = theory_figures.FIGURES[name]()
    assert (ROOT / "docs" / name).read_text() == text, "run python docs/theory_figures.py"
    ElementTree.fromstring(text)


def test_the_theory_names_files_that_exist() -> None:
    named = re.findall(r"`(esper/[\w/.]+)`", (ROOT / "docs" / "theory.md").read_text())
    assert len(named) >= 7
    assert all((ROOT / name).is_file() for name in named)


def test_the_readme_leads_to_every_page() -> None:
    """Those of the configuration have an index of their own."""
    readme, index = (ROOT / "README.md").read_text(), (ROOT / "docs" / "config.md").read_text()
    inside = [page for page in PAGES if page.parent.name == "config"]
    assert not [page.name for page in PAGES if page not in inside and f"(docs/{page.relative_to(ROOT / 'docs')})" not in readme]
    assert not [page.name for page in inside if f"(config/{page.name})" not in index]


def test_every_agent_is_a_baseline_or_said_not_to_be_one() -> None:
    named = set(re.findall(r"`agent=(\w+)", (ROOT / "docs" / "baselines.md").read_text()))
    assert named == set(GROUPS["agent"]) - {"ppo", "ppo_mlp", "schedule", "replay"}


def test_the_experiment_with_baselines_is_valid() -> None:
    (command,) = re.findall(
        r"```bash\npython -m esper.train -m (.*?)```", (ROOT / "docs" / "baselines.md").read_text(), re.DOTALL
    )
    assert len(check_sweep(spelled_out(shlex.split(command.replace("\\\n", " "))))) == 6, "five arms and the control"


def test_the_commands_about_drift_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "howto" / "deployed.md").read_text()
    *_, single, sweep = re.findall(r"```bash\npython -m esper.train (.*?)\n```", page)
    words = [word for word in shlex.split(single) if word != "updates=2"]
    small = ["updates=1", "hosts=4", f"hydra.run.dir={tmp_path}", f"task.pretrain_folder={tmp_path}/hosts"]
    small += ["task.pretrain=1", "task.pretrain_pool=4", "telemetry.page_hosts=0"]
    done = run_forked("esper.train", *words, *small, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(check_sweep(spelled_out(shlex.split(sweep.removeprefix("-m "))))) == 5


def test_the_commands_of_the_first_hour_are_valid() -> None:
    page = (ROOT / "docs" / "first_hour.md").read_text()
    typed = [shlex.split(words) for words in re.findall(r"```bash\npython -m esper.train (.*?)\n```", page)]
    rule, policy, sweep, dear, arrays, growth = typed
    assert check(dear).reward.rent == 2.0  # pyright: ignore[reportAttributeAccessIssue]
    howto, extending = ((ROOT / "docs" / name).read_text() for name in ("howto/data.md", "extending/hosts.md"))
    assert f"python -m esper.train {shlex.join(arrays)}" in howto, "which another test runs"
    assert f"python -m esper.train {shlex.join(growth[:3])}" in extending, "which is tested outside"
    assert check(rule).choice("agent") == "react"
    assert check(policy).choice("task") == "digits_drift"
    assert len(check_sweep(spelled_out(sweep[1:]))) == 3, "two arms and the control"
    (evaluation,) = re.findall(r"```bash\npython -m esper.evaluate (.*?)\n```", page)
    assert parse(shlex.split(evaluation)).hosts == 192


def test_data_from_arrays_and_a_preset_of_a_reward_run_as_the_pages_say(tmp_path: Path) -> None:
    """The files are written as the pages show them, and the commands typed as they stand there, with fewer hosts."""
    howto = {name: (ROOT / "docs" / "howto" / f"{name}.md").read_text() for name in ("data", "reward")}
    (arrays,) = re.findall(r"```python\n(.*?)```", howto["data"], re.DOTALL)
    (preset,) = re.findall(r"```yaml\n(.*?)```", howto["reward"], re.DOTALL)
    (tmp_path / "my_arrays.py").write_text(arrays)
    (tmp_path / "mine" / "reward").mkdir(parents=True)
    (tmp_path / "mine" / "reward" / "dear.yaml").write_text(preset)
    lines = re.findall(r"^python -m esper.train (.*(?:plugins=|--config-dir).*)$", "".join(howto.values()), re.MULTILINE)
    assert len(lines) == 2
    small = ["updates=1", "hosts=2", "steps=6", "agent=schedule", "devices=[cpu]", "telemetry.page_hosts=0"]
    for line in lines:
        typed = [word for word in shlex.split(line) if not word.startswith("updates=")]
        done = run_forked("esper.train", *typed, *small, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder."""
    place = tmp_path_factory.mktemp("run") / "here"
    words = ["hosts=2", "steps=6", "updates=1", "agent=schedule", "devices=[cpu]", f"hydra.run.dir={place}"]
    done = run_forked("esper.train", *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return place


def test_a_run_writes_what_the_page_says(folder: Path) -> None:
    listed = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "files.md").read_text().partition("## ")[0], flags=re.MULTILINE)
    there = [f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir()]
    assert sorted(listed) == sorted([*there, ONLY_AFTER_ANOMALIES, ONLY_WITH_PROFILE])
    assert {path.name for path in (folder / ".hydra").iterdir()} == {"config.yaml", "overrides.yaml", "hydra.yaml"}
    assert "checkpoint_000000.pt" in {path.name for path in (folder / "checkpoints").iterdir()}


def run_snippet(page: str, folder: Path) -> None:
    """Run the Python code of a page on this folder of a run."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    named = "FOLDER"
    assert named in code
    exec(compile(code.replace(named, str(folder)), page, "exec"), {})


def test_germinations_are_read_as_the_first_hour_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippet("first_hour.md", folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"1/[01]/0 r\dc\d \w+ [\d.]+", line) for line in lines)


def test_decisions_are_read_as_the_page_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippet("diagnostics.md", folder)
    lines = capsys.readouterr().out.splitlines()
    decisions = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    assert len(lines) == len({decision["seed"] for decision in decisions}) == 2
    assert all("germinate" in line and "fossilize" in line for line in lines)
