"""Teachers on the command line: agents that need no training, controllers of other runs, and what is refused."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import ConfigError
from esper.training.trainer import Trainer
from tests.training.small_run import config, newest, same, untimed


def run(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    Trainer(config(*overrides), folder).run()
    return untimed(folder)


@pytest.fixture(scope="module")
def bandit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of a bandit."""
    folder = tmp_path_factory.mktemp("bandit")
    Trainer(check(["hosts=4", "steps=3", "updates=2", "telemetry=quiet", "agent=react_bandit"]), folder).run()
    return folder


def test_a_policy_imitates_the_controller_of_a_run_and_resumes_exactly(bandit: Path, tmp_path: Path) -> None:
    teacher = [f"agent.teacher={bandit}", "agent.imitation=0.5"]
    whole = run(tmp_path / "whole", *teacher, "updates=4")
    assert [not math.isnan(record.get("policy/imitation_loss", math.nan)) for record in whole] == [True, True, False, False]
    run(tmp_path / "parts", *teacher, "updates=4", "checkpoints.keep=9")
    for update in (2, 3, 4):
        (tmp_path / "parts" / "checkpoints" / f"checkpoint_{update:06d}.pt").unlink()
    parts = run(tmp_path / "parts", *teacher, "updates=4", "checkpoints.keep=9")
    assert parts == whole
    assert same(newest(tmp_path / "whole")["agent"], newest(tmp_path / "parts")["agent"])
    alone = run(tmp_path / "alone", "updates=4")
    assert alone[0]["policy/return"] == whole[0]["policy/return"], "the policy acts, not its teacher"
    assert alone[1] != whole[1]


def test_a_rule_can_teach(tmp_path: Path) -> None:
    assert run(tmp_path, "agent.teacher=heuristic", "updates=1")[0]["policy/imitation_loss"] > 0


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["agent.teacher=heuristc"], "agent.teacher=heuristc is neither the folder of a run nor an agent that needs no training"),
        (["agent.teacher={bandit}/.hydra"], "agent.teacher={bandit}/.hydra"),
        (["agent.teacher={bandit}", "blueprint=[norm]"], "agent.teacher={bandit}: the ReactBandit learned to choose among"),
        (["agent.teacher=greedy_potential", "env.potential=false"], "agent.teacher=greedy_potential reads growth potential, and"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(bandit: Path, tmp_path: Path, overrides: list[str], sentence: str) -> None:
    asked = config(*(one.format(bandit=bandit) for one in overrides))
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence.format(bandit=bandit))}"):
        Trainer(asked, tmp_path)


def test_a_missing_teacher_is_found_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"^agent\.teacher=heuristc is neither .*\); did you mean heuristic\?$"):
        ready(config("agent.teacher=heuristc"))
