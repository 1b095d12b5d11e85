"""A small experiment on disk, for the tests of several files."""

from pathlib import Path

import pytest

from esper.cli.overrides import check
from esper.lab.design import AnalysisPlan, design
from esper.training.trainer import Trainer
from tests.lab.small_runs import TINY


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take most of a report's time."""
    monkeypatch.setattr("esper.lab.report.draw", lambda *_: [])


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms and an A/A control in two blocks; one run is missing."""
    folder = tmp_path_factory.mktemp("experiment") / "own"
    plan = AnalysisPlan(score_hosts=2, question="Which <reward>?\n")
    planned = design("reward: shaped,sparse", blocks=2, root=1, common=TINY, plan=plan)
    planned.save(folder)
    for cell in planned.cells:
        if (cell.arm, cell.block) != ("sparse", 1):
            Trainer(check(list(cell.overrides)), folder / cell.folder, name=cell.folder, plan=planned.digest).run()
    return folder
