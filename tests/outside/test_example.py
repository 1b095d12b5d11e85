"""examples/plugin has a part for every group, and every command runs them by name; tests/lab/test_launch.py has the launchers."""

import os
from pathlib import Path

import pytest

from esper.checkpoint import Checkpoints, load_run
from esper.config import GROUPS
from esper.plugins import CLOSED
from tests.forked import Forked
from tests.outside.example import GROW, LEARN, PARTS, SOURCE, TINY, install

ROOT = Path(__file__).parents[2]
BASELINE = """
from dataclasses import dataclass
import esper
from esper.agent.scripted.base import WaitConfig

@dataclass(kw_only=True, slots=True)
class PatientConfig(WaitConfig):
    '''Waits.'''

esper.register("agent", "patient", PatientConfig)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("example"))


def run(site: Path, module: str, *words: str, code: int = 0) -> str:
    """Run a command in the folder beside the installed package; return all that it printed."""
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]), "OMP_NUM_THREADS": "1"}
    process = Forked(module, *words, cwd=site.parent, env=env)
    shown = "".join(process.communicate())
    assert process.returncode == code, shown
    return shown


@pytest.fixture(scope="module")
def grown(site: Path) -> Path:
    """A run of two updates with host training, the second in another process."""
    run(site, "esper.train", *GROW, *TINY, "agent=plateau", "hydra.run.dir=grown")
    run(site, "esper.train", "resume=grown", "updates=2")
    return site.parent / "grown"


@pytest.fixture(scope="module")
def bet(site: Path) -> Path:
    """A run of two updates without host training."""
    run(site, "esper.train", "env=hints", *LEARN, *TINY, "updates=2", "hydra.run.dir=bet")
    return site.parent / "bet"


def choices(folder: Path) -> dict[str, str]:
    newest = Checkpoints(folder / "checkpoints").latest()
    assert newest is not None
    return load_run(newest)["config"]["options"]


def test_every_group_has_a_part_that_runs(grown: Path, bet: Path) -> None:
    """A new group needs a part in examples/plugin, and its name in PARTS."""
    assert PARTS.keys() == GROUPS.keys() - {*CLOSED} | {"writer"}
    for folder in (grown, bet):
        head, _, *rows = (folder / "table.md").read_text().splitlines()
        assert head.startswith("| update | policy/return |")
        assert [row.split("|")[1].strip() for row in rows] == ["1", "2"], "a resumed run goes on in the table"


@pytest.mark.parametrize("group", PARTS)
def test_a_part_ran(group: str, grown: Path, bet: Path) -> None:
    if group == "writer":
        assert (grown / "table.md").stat().st_size
    else:
        assert any(PARTS[group] in choices(folder)[group] for folder in (grown, bet))


def test_files_are_short(site: Path) -> None:
    files = [*SOURCE.rglob("*.py")]
    assert len(files) > len(PARTS) - 1
    assert not [file for file in files if len(file.read_text().splitlines()) >= 60]


@pytest.mark.slow
def test_its_own_tests_pass(site: Path) -> None:
    shown = run(site, "pytest", "plugin/tests", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-c", os.devnull)
    assert "2 passed" in shown


@pytest.mark.slow
def test_commands_know_the_parts(site: Path, grown: Path, bet: Path) -> None:
    shown = run(site, "esper.train", "--help")
    assert not [part for part in PARTS.values() if part not in shown]
    shown = run(site, "esper.evaluate", f"checkpoint={grown}", "hosts=2", "controllers=[policy,plateau]", "task.noise=0.5")
    assert "plateau" in shown
    assert "transfer from task.noise=1.0 to task.noise=0.5" in " ".join(shown.split())
    assert "policy_greedy" in run(site, "esper.evaluate", f"checkpoint={bet}", "hosts=2")
    assert "page: " in run(site, "esper.report", str(grown), "hosts=2")
    assert "228 parameters" in run(site, "esper.export", f"checkpoint={grown}", "hosts=2")


@pytest.mark.slow
def test_comparisons_import_the_plugins_of_the_command_and_of_the_plan_in_their_workers(site: Path) -> None:
    (site.parent / "mine.py").write_text(BASELINE)
    plan = ["-m", "sweep=ab", "arms=reward: doublings,sparse", "blocks=1", "aa_control=false", "hydra.sweep.dir=ab"]
    words = ["plugins=[mine.py]", "baselines=[patient]", *GROW[:-1], *TINY, "agent=plateau", "hosts=2"]
    run(site, "esper.train", *plan, *words)
    (site.parent / "more.py").write_text(BASELINE.replace("patient", "idle").replace("Patient", "Idle"))
    asked = ["hosts=2", "plugins=[more.py]", "baselines=[patient,idle]"]  # no run has recorded more.py
    shown = run(site, "esper.compare", "ab", *asked, "workers=2")
    assert "doublings - patient" in shown
    assert "doublings - idle" in shown
    (site.parent / "moved").mkdir()
    (site.parent / "mine.py").rename(site.parent / "moved" / "mine.py")
    assert "mine.py] is not found: run from its folder" in run(site, "esper.compare", "ab", "hosts=2", code=2)
    assert "doublings - patient" in run(site, "esper.compare", "ab", "hosts=2", "plugins=[moved/mine.py]")
