"""Teachers on the command line: agents that need no training, controllers of other runs, and what is refused."""

import math
import re
import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from esper.cli import command
from esper.cli.overrides import check
from esper.cli.readiness import _layout, ready
from esper.cli.transfer import transferred
from esper.config import ConfigError
from esper.env.growth_env import GrowthConfig
from esper.lab.design import draw_seeds
from esper.notices import UserNotice
from esper.task.instances import Split
from esper.training.config_io import from_plain
from esper.training.environment import build_env
from esper.training.resume import continued
from esper.training.trainer import Trainer
from tests.training.small_run import TINY, config, newest, same, untimed


def run(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    Trainer(config(*overrides), folder).run()
    return untimed(folder)


@pytest.fixture(scope="module")
def bandit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of a bandit."""
    folder = tmp_path_factory.mktemp("bandit")
    Trainer(check(["hosts=4", "steps=3", "updates=2", "telemetry=quiet", "agent=react_bandit"]), folder).run()
    return folder


@pytest.mark.slow
def test_a_policy_imitates_the_controller_of_a_run_and_resumes_exactly(bandit: Path, tmp_path: Path) -> None:
    teacher = [f"agent.teacher={bandit}", "agent.imitation=0.5"]
    whole = run(tmp_path / "whole", *teacher, "updates=4", "checkpoints.keep=9")
    assert imitated(whole) == [True, True, False, False]
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    forget(tmp_path / "parts", 2, 3, 4)
    parts = run(tmp_path / "parts", *teacher, "updates=4", "checkpoints.keep=9")
    assert parts == whole
    assert same(newest(tmp_path / "whole")["agent"], newest(tmp_path / "parts")["agent"])
    alone = run(tmp_path / "alone", "updates=4")
    assert alone[0]["policy/return"] == whole[0]["policy/return"], "the policy acts, not its teacher"
    assert alone[1] != whole[1]


def test_a_teacher_is_checked_with_the_layout_of_the_run() -> None:
    chosen = config("slots=one_seed", "task=digits_drift", "env.timetable=true", "steps=16")
    with closing(build_env(chosen, split=Split.TRAINING)) as env:
        assert isinstance(chosen.env, GrowthConfig)
        found = _layout(chosen, chosen.env, env.layout.slot_names)
        assert replace(found, seed_params=env.layout.seed_params) == env.layout


def test_a_rule_can_teach(tmp_path: Path) -> None:
    assert run(tmp_path, "agent.teacher=heuristic", "updates=1")[0]["policy/imitation_loss"] > 0


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["agent.teacher=heuristc"], "agent.teacher=heuristc is neither the folder of a run nor an agent that needs no training"),
        (["agent.teacher={bandit}/.hydra"], "agent.teacher={bandit}/.hydra"),
        (["agent.teacher={bandit}", "blueprint=[norm]"], "agent.teacher={bandit}: this policy learned to choose among"),
        (["agent.teacher=greedy_potential", "env.potential=false"], "agent.teacher=greedy_potential reads growth"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(bandit: Path, tmp_path: Path, overrides: list[str], sentence: str) -> None:
    asked = config(*(one.format(bandit=bandit) for one in overrides))
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence.format(bandit=bandit))}"):
        Trainer(asked, tmp_path)


SANDBOX = ("env=sandbox", "steps=6", "checkpoints.keep=9")


def imitated(records: list[dict[str, Any]]) -> list[bool]:
    """Return which updates imitated a teacher."""
    return [not math.isnan(record.get("policy/imitation_loss", math.nan)) for record in records]


def forget(folder: Path, *updates: int) -> None:
    """Remove the checkpoints of these updates, as if the run had been killed before."""
    for update in updates:
        (folder / "checkpoints" / f"checkpoint_{update:06d}.pt").unlink()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The folder of a run of a policy in the sandbox."""
    run(tmp_path / "policy", *SANDBOX, "updates=1")
    return tmp_path / "policy"


def test_a_taught_policy_is_transferred_and_loaded_without_its_teacher(policy: Path, tmp_path: Path) -> None:
    run(tmp_path / "pupil", *SANDBOX, f"agent.teacher={policy}", "updates=1")
    shutil.rmtree(policy)
    saved = from_plain(newest(tmp_path / "pupil")["config"])
    assert transferred(saved, ["steps=8"]).steps == 8
    with pytest.raises(ConfigError, match=r"^agent\.teacher="):
        ready(saved)


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]])
def test_the_teacher_of_every_block_is_checked_before_the_first_run(policy: Path, tmp_path: Path, launcher: list[str]) -> None:
    seeds = draw_seeds(3, 2)
    policy.rename(tmp_path / str(seeds[0]))
    arms = f"arms={{imitating: 'agent.teacher={tmp_path}/${{seed}}', alone: agent=ppo}}"
    words = ["sweep=ab", "blocks=2", "root=3", "aa_control=false", "outcome=return", arms, *SANDBOX, "updates=1"]
    sweep = command.spelled_out([*words, *launcher, f"hydra.sweep.dir={tmp_path / 'sweep'}"])
    with pytest.raises(ConfigError, match=rf"^agent\.teacher={tmp_path}/{seeds[1]} is neither"):
        command._look_ahead(sweep, "config", many=True, show=False)
    shutil.copytree(tmp_path / str(seeds[0]), tmp_path / str(seeds[1]))
    command._look_ahead(sweep, "config", many=True, show=False)


def test_a_teacher_of_a_later_arm_that_does_not_fit_is_refused_before_the_first_run(bandit: Path, tmp_path: Path) -> None:
    arms = f"arms={{rule: 'agent.teacher=heuristic', learned: 'agent.teacher={bandit}'}}"
    words = command.spelled_out(["sweep=ab", "aa_control=false", "blueprint=[norm]", arms, f"hydra.sweep.dir={tmp_path}"])
    with pytest.raises(ConfigError, match=rf"^agent\.teacher={bandit}: this policy learned to choose among"):
        command._look_ahead(words, "config", many=True, show=False)


def test_a_longer_run_does_not_imitate_again_and_needs_no_teacher_any_more(policy: Path, tmp_path: Path) -> None:
    teacher, folder = [*SANDBOX, f"agent.teacher={policy}", "agent.imitation=0.5"], tmp_path / "pupil"
    assert newest(policy)["teacher"] is None
    run(folder, *teacher, "updates=2")
    assert newest(folder)["teacher"] is None
    shutil.rmtree(policy)
    ready(continued(config(f"resume={folder}", "updates=8"), [f"resume={folder}", "updates=8"]))
    ready(config(*teacher, "updates=8"), folder=folder)
    with pytest.raises(ConfigError, match=r"^agent\.teacher=.* is neither"):
        ready(config(*teacher, "updates=8"), folder=tmp_path / "new")
    words = [*TINY, *teacher, "updates=8,9"]
    sweep = partial(command._look_ahead, config_name="config", many=True, show=False)
    assert sweep([*words, f"hydra.sweep.dir={tmp_path}"])[1], "begun, so that its runs look for themselves"
    with pytest.raises(ConfigError, match=r"^agent\.teacher=.* is neither"):
        sweep([*words, f"hydra.sweep.dir={tmp_path}/new"])
    assert imitated(run(folder, *teacher, "updates=8")) == [True] + [False] * 7


def test_a_resumed_run_has_the_teacher_that_it_had(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    teacher = [*SANDBOX, "agent.teacher=policy", "agent.imitation=1", "updates=3"]
    whole, folder = run(tmp_path / "whole", *teacher), tmp_path / "parts"
    run(folder, *teacher)
    forget(folder, 2, 3)
    run(policy, *SANDBOX, "updates=4")  # the teacher goes on training
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ready(continued(config(f"resume={folder}"), [f"resume={folder}"]))
    assert run(folder, *teacher) == whole

    taught_by = policy / "checkpoints" / "checkpoint_000001.pt"
    assert newest(folder)["teacher"]["file"] == str(taught_by)
    shutil.copy(policy / "checkpoints" / "checkpoint_000004.pt", taught_by)
    for remove, sentence in (
        (False, "has changed since it taught this run"),
        (True, "which has taught this run so far, no longer exists"),
    ):
        if remove:
            taught_by.unlink()
        for start in (lambda: Trainer(config(*teacher), folder), lambda: ready(config(*teacher, f"resume={folder}"))):
            with pytest.raises(ConfigError, match=rf"^agent\.teacher=policy: .*{sentence}: restore that file, or start"):
                start()


def save_teacher(folder: Path, update: int, *overrides: str) -> None:
    """Save what an untrained controller would have after some of two updates."""
    trainer = Trainer(check(["hosts=4", "steps=6", "updates=2", "telemetry=quiet", *overrides]), folder)
    trainer.update = update
    trainer.checkpoints.save(trainer.state_dict(), update)


def test_a_teacher_that_is_still_learning_is_named(tmp_path: Path) -> None:
    taught = config(f"agent.teacher={tmp_path}")
    save_teacher(tmp_path, 0)
    with pytest.raises(ConfigError, match=r"^agent\.teacher=\S+ has not finished an update: let it learn first$"):
        ready(taught)
    save_teacher(tmp_path, 1)
    with pytest.warns(
        UserNotice, match=r"^agent\.teacher=\S+ has finished 1 of its 2 updates, and teaches what it has learned so far"
    ):
        ready(taught)
    save_teacher(tmp_path, 2)
    ready(taught)
    best = tmp_path / "checkpoints" / "checkpoint_000001.pt"
    ready(config(f"agent.teacher={best}"))


@pytest.mark.parametrize(
    ("trained", "taught", "sentence"),
    [
        (None, ["agent.teacher=bandit"], r" must be trained first: run agent=bandit hydra\.run\.dir=FOLDER, and set .*=FOLDER"),
        (None, ["agent.teacher=heuristc"], r" is neither .*\); did you mean heuristic\?"),
        (["agent=schedule", "agent.slot=2", "slots=all"], ["slots=one"], ".*agent.slot=2 is not in use: choose from .*"),
        (
            ["agent=event_oracle", "env.timetable=true", "task=digits_drift", "steps=16"],
            [],
            " reads the timetable of events, .*: add env.timetable=true, with a task that has events, or choose another teacher",
        ),
        (["agent=react_bandit"], ["blueprint=[norm]"], ": this policy learned to choose among .*"),
        (["env.potential=false"], [], " was trained with env.potential=false, and this run has true: make them equal"),
        ([], ["agent.heads.style=free"], r" was trained without agent\.heads\.style=free: leave that out here, or train .*"),
    ],
)
def test_a_teacher_that_does_not_fit_is_found_before_the_run(
    trained: list[str] | None, taught: list[str], sentence: str, tmp_path: Path
) -> None:
    if trained is not None:
        save_teacher(tmp_path, 1, *trained)
        taught = [*taught, f"agent.teacher={tmp_path}"]
    with pytest.raises(ConfigError, match=rf"^agent\.teacher=\S+{sentence}$"):
        ready(config(*taught))
