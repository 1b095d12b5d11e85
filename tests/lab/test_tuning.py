"""Tuning: gains of trials, proposals, and resuming."""

import json
import math
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus

from esper.cli import command as cli
from esper.cli.command import spelled_out
from esper.cli.failures import Failure
from esper.compare import main as compare_command
from esper.config import ConfigError
from esper.files import fingerprint
from esper.lab.arms import read_arms
from esper.lab.cell import Cell
from esper.lab.design import draw_seeds
from esper.lab.search_space import BASELINE, search_space
from esper.lab.sweepers import TuneSweeper
from esper.lab.tuning import FILE, Trial, Tuning
from esper.sweeps import TuneConfig
from esper.train import main as train_command
from tests.composed import check_sweep

pytest.importorskip("optuna", reason="optuna is not installed")

CONFIG = {"trials": 4, "blocks": 2, "outcome": "accuracy", "score_hosts": 4}
SWEPT = ["agent.learning_rate=tag(log, interval(1e-5, 1e-1))", "agent.hidden=32,64", "agent.epochs=int(interval(1, 8))"]


class Made(Tuning):
    """A tuning with simulated runs: the best rate is 0.001, the best number of epochs is 3, and seeds differ by 20 points."""

    def _outcomes(self, arm: str, overrides: Sequence[str]) -> list[float]:
        values = dict(override.split("=") for override in overrides) or {"agent.learning_rate": "0.1", "agent.epochs": "3"}
        rate, epochs = math.log10(float(values["agent.learning_rate"])), int(values["agent.epochs"])
        return [60 + 20 * block - (rate + 3) ** 2 - (epochs - 3) ** 2 / 4 for block in range(2)]


def tuning(folder: Path, *common: str, **config: Any) -> Made:
    return Made(search_space(TuneConfig(**CONFIG | config), [*common, *SWEPT]), folder)


def run(made: Made) -> Made:
    while trials := made.next():
        made.learn(trials)
    return made


def test_gains_are_paired_differences(tmp_path: Path) -> None:
    made = run(tuning(tmp_path))
    for trial in made.trials:
        rate, epochs = math.log10(float(trial.values["agent.learning_rate"])), int(trial.values["agent.epochs"])
        expected = 4 - (rate + 3) ** 2 - (epochs - 3) ** 2 / 4
        assert trial.gains == pytest.approx([expected, expected])  # without the 20 points of the seeds
    fewer = run(tuning(tmp_path / "fewer", outcome="parameters"))
    assert fewer.trials[0].values == made.trials[0].values
    assert fewer.trials[0].gains == pytest.approx([-gain for gain in made.trials[0].gains])


def test_proposals_improve(tmp_path: Path) -> None:
    made = run(tuning(tmp_path, trials=40))
    best = made.best()
    assert best is not None
    assert best.gain.mean > 3.5  # of 4
    late = [trial.gain.mean for trial in made.trials[20:]]
    assert sum(late) / 20 > sum(trial.gain.mean for trial in made.trials[:10]) / 10


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_interrupted_tuning_resumes_exactly(at_once: int, tmp_path: Path) -> None:
    whole = run(tuning(tmp_path / "whole", trials=17, at_once=at_once))
    for trials in (5, 13, 17):  # interrupted twice, each time with more trials
        parts = run(tuning(tmp_path / "parts", trials=trials, at_once=at_once))
        assert len(parts.trials) == trials
    assert parts.trials == whole.trials
    assert len({str(trial.values) for trial in whole.trials}) > 10


def test_trials_at_once_are_proposed_together(tmp_path: Path) -> None:
    made = tuning(tmp_path, trials=5, at_once=3)
    assert [list(made.next())] == [["trial-000", "trial-001", "trial-002"]]
    made.learn(made.next())
    assert list(made.next()) == ["trial-003", "trial-004"]


def test_no_values_are_tried_twice(tmp_path: Path) -> None:
    """Not with a resume, either; and a tuning ends when none are left."""
    swept, found = ["agent.learning_rate=0.01,0.1,0.001", "agent.epochs=int(interval(3, 4))"], []
    for folder, parts in (("whole", (9,)), ("parts", (2, 3, 9))):
        for trials in parts:
            made = Made(search_space(TuneConfig(**CONFIG | {"trials": trials, "at_once": 2}), swept), tmp_path / folder)
            run(made)
        found.append(made.trials)
    assert found[0] == found[1]
    assert len({str(trial.values) for trial in made.trials}) == len(made.trials) == 6
    assert "all values were tried: none are left for the other trials" in made.table()
    narrow = Made(
        search_space(TuneConfig(**CONFIG), ["agent.learning_rate=interval(0.1, 0.100001)", "agent.epochs=3,4"]), tmp_path
    )
    run(narrow)
    assert {trial.values["agent.learning_rate"] for trial in narrow.trials} == {0.1}, "there is one value of four digits"
    assert len(narrow.trials) == 2
    with pytest.raises(ConfigError, match=r"cannot tune agent.hidden=8,16,8 .it lists 8 twice.: sweep over a key"):
        search_space(TuneConfig(**CONFIG), ["agent.hidden=8,16,8"])


def test_a_tuning_without_a_trial_that_runs_says_so(tmp_path: Path) -> None:
    made = tuning(tmp_path, trials=1)
    trials = made.next()
    trials["trial-000"].fault = "it is too large"
    made.learn(trials)
    assert made.table() == ["none of 1 trial could be run"]


def test_incompatible_values_are_not_run(tmp_path: Path) -> None:
    made = tuning(tmp_path, trials=2)
    trials = made.next()
    trials["trial-000"].fault = "it is too large"
    assert {cell.arm for cell in made.cells(trials)} == {BASELINE}
    made.learn(trials)
    trials = made.next()
    assert {cell.arm for cell in made.cells(trials)} == {BASELINE, "trial-001"}
    made.learn(trials)
    assert "cannot be run: it is too large" in made.line(0)
    assert made.best() is made.trials[1]
    assert not [line for line in made.table() if "trial-000" in line]


def test_a_trial_that_fails_twice_is_left_out(tmp_path: Path) -> None:
    first = tuning(tmp_path, trials=3)
    assert first.left_out(first.next(), {"trial-000": "it is too large"})
    again = tuning(tmp_path, trials=3)
    trials = again.next()
    assert again.left_out(trials, {"trial-000": "another reason"}), "which may be gone next time"
    trials = tuning(tmp_path, trials=3).next()
    resumed = tuning(tmp_path, trials=3)
    assert not resumed.left_out(trials, {"trial-000": "another reason"})
    resumed.learn(trials)
    assert "trial-000: " in resumed.line(0)
    assert resumed.line(0).endswith("cannot be run: another reason")
    assert [*resumed.next()] == ["trial-001"]
    assert resumed.left_out(resumed.next(), {BASELINE: "no disk"})
    assert tuning(tmp_path, trials=3).left_out(trials, {BASELINE: "no disk"}), "without it, there is no gain"


def test_a_tuning_goes_on_without_a_trial_that_always_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run fails with a remedy that names the command, which may have changed when it is repeated."""
    full = [True]

    class Sweeper(TuneSweeper):
        folder = tmp_path

        def run_cells(self, title: str, cells: Sequence[Cell], *, before: int = 0, later: int = 0) -> list[JobReturn]:
            told = f"out of memory; resume with {self.arguments['trials']} trials"
            failed = Failure(run="trial-001/block-00", reason=told, machine=full[0])
            values = [failed if cell.folder == failed.run else None for cell in cells]
            return [JobReturn(_return_value=value, status=JobStatus.COMPLETED) for value in values]

        def save_config(self) -> None: ...

        def _fault(self, overrides: list[str]) -> str | None:
            return None

    monkeypatch.setattr("esper.lab.tuning.Tuning", Made)
    asked = {**CONFIG, "root": 0}
    for _ in range(3):  # a full disk is not the fault of the values, however often it ends a run
        with pytest.raises(SystemExit):
            Sweeper(**asked).sweep(SWEPT)
    full[0] = False
    with pytest.raises(SystemExit) as stopped:
        Sweeper(**asked).sweep(SWEPT)
    assert stopped.value.code == 1
    assert "1 of 4 runs failed: trial-001/block-00 (out of memory); " in capsys.readouterr().err
    results = Sweeper(**asked | {"trials": 5}).sweep(SWEPT)
    assert not [one for one in results if isinstance(one.return_value, Failure)], "or the command would fail again"
    shown = capsys.readouterr().out
    assert re.search(r"trial-001: .*: cannot be run: out of memory\n", shown)
    assert "trial-004: " in shown


def test_values_that_do_not_fit_together_are_a_fault() -> None:
    sweeper = TuneSweeper(**CONFIG)
    assert sweeper._fault(["sweep=tune", "agent.hidden=32"]) is None  # pyright: ignore[reportPrivateUsage]
    fault = sweeper._fault(["hosts=4", "agent.minibatches=8"])  # pyright: ignore[reportPrivateUsage]
    assert fault is not None
    assert "agent.minibatches" in fault


def test_the_command_that_confirms_keeps_values_with_spaces(tmp_path: Path) -> None:
    made = tuning(tmp_path)
    made.trials = [Trial(values={"task.folder": "'a b'", "agent.hidden": 32}, gains=[1.0, 1.0])]
    (arms,) = [word for word in shlex.split(made.table()[-1]) if word.startswith("arms=")]
    assert read_arms(arms.removeprefix("arms=")) == {BASELINE: [], "tuned": ["task.folder='a b'", "agent.hidden=32"]}


def test_the_command_that_confirms_needs_no_policy_seed(tmp_path: Path) -> None:
    asked = TuneConfig(**CONFIG | {"trials": 12})
    space = search_space(asked, ["agent=react_bandit", "agent.drop=int(interval(2, 8))"])

    class Drops(Tuning):
        def _outcomes(self, arm: str, overrides: Sequence[str]) -> list[float]:
            return [float(overrides[0].partition("=")[2]) if overrides else 0.0] * 2

    made = Drops(space, tmp_path)
    while trials := made.next():
        made.learn(trials)
    command = shlex.split(made.table()[-1].partition("python -m ")[2])
    assert "aa_control=false" in command
    assert check_sweep(spelled_out(command[2:]))


def test_the_command_that_confirms_the_best_composes(tmp_path: Path) -> None:
    made = run(tuning(tmp_path, "sweep=tune", "task.instances=healthy", trials=12))
    command = shlex.split(made.table()[-1].partition("python -m ")[2])
    assert command[:2] == ["esper.train", "-m"]
    started = {
        "overrides": {"hydra": ["hydra/launcher=joblib"]},
        "runtime": {"config_sources": [{"provider": "command-line", "path": "own"}]},
    }
    (tmp_path / "multirun.yaml").write_text(json.dumps({"hydra": started}))
    assert made.table()[-1].endswith(f"{shlex.join(command)} hydra/launcher=joblib --config-dir own")
    plain, tuned, again = check_sweep(spelled_out(command[2:]))
    best = made.best()
    assert best is not None
    assert tuned.agent.learning_rate == best.values["agent.learning_rate"]  # pyright: ignore[reportAttributeAccessIssue]
    assert plain.agent == again.agent != tuned.agent
    assert {job.task.instances for job in (plain, tuned, again)} == {plain.task.instances}
    (root,) = [int(one.removeprefix("root=")) for one in command if one.startswith("root=")]
    assert plain.seed == draw_seeds(root, 1)[0]
    assert root != made.space.config.root
    assert " outcome=accuracy score_hosts=4 " in made.table()[-1], "as in the tuning"
    usual = run(tuning(tmp_path / "usual", "task.instances=healthy", trials=12, outcome="validation", score_hosts=96))
    assert not {"outcome", "score_hosts"} & {word.partition("=")[0] for word in shlex.split(usual.table()[-1])}


def test_a_folder_holds_one_tuning(tmp_path: Path) -> None:
    run(tuning(tmp_path))
    with pytest.raises(ConfigError, match=r"holds a tuning that differs in root \(there .*, here 1\): repeat its command"):
        tuning(tmp_path, root=1)
    edited = json.loads((tmp_path / FILE).read_text())
    edited["trials"][0]["gains"][0] += 1
    for content in (json.dumps(edited), "{", "[" * 100_000):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(ConfigError, match="is damaged, or was edited: remove it"):
            tuning(tmp_path)


def test_a_tuning_of_an_earlier_version_keeps_its_blocks(tmp_path: Path) -> None:
    state = run(tuning(tmp_path))._identity()  # pyright: ignore[reportPrivateUsage]
    state |= {"trials": [], "seeds": draw_seeds(0, 2)}
    (tmp_path / FILE).write_text(json.dumps(state | {"sha256": fingerprint(state)}))
    assert tuning(tmp_path).space.seeds == draw_seeds(0, 2)


def test_outcomes_that_cannot_be_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean accuracy"):
        tuning(tmp_path, outcome="acuracy")
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "optuna.distributions", None)
    with pytest.raises(ConfigError, match="sweep=tune needs optuna: pip install"):
        tuning(tmp_path)


@pytest.mark.slow
def test_a_tuning_runs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["updates=1", "hosts=4", "steps=2", "task.epoch_samples=128", "telemetry=quiet", "score_hosts=2"]
    tiny += ["blueprint=[norm]", "agent.minibatches=1", "agent.epochs=1"]
    overrides = [
        "sweep=tune",
        "optimiser.learning_rate=tag(log, interval(1e-4, 1e-1))",
        "trials=2",
        "blocks=2",
        "root=5",
    ]
    monkeypatch.chdir(tmp_path)

    def train() -> str:
        monkeypatch.setattr(sys, "argv", ["esper.train", "-m", *overrides, *tiny, "hydra.sweep.dir=here"])
        cli.run(train_command)
        return capsys.readouterr().out

    shown, here = train(), tmp_path / "here"
    assert "here: trial 1 of 2, 0 of 6 runs done" in shown
    assert "here: trial 2 of 2, 4 of 6 runs done" in shown
    state = json.loads((here / FILE).read_text())
    scored = {
        cell.parent.name + cell.name: sum(json.loads(file.read_text())["rows"]["policy"]["validation"]) / 2
        for cell in here.glob("*/block-0*")
        for file in cell.glob("scored_*_2_hosts.json")
    }
    assert len(scored) == 6
    for number, trial in enumerate(state["trials"]):
        arms = [[scored[f"{arm}block-0{block}"] for block in range(2)] for arm in (f"trial-00{number}", BASELINE)]
        assert trial["gains"] == pytest.approx([value - base for value, base in zip(*arms, strict=True)])
    assert any(gain != 0 for trial in state["trials"] for gain in trial["gains"])

    before = (here / FILE).read_text()
    state |= {"trials": state["trials"][:1]}  # as if interrupted in its last run
    del state["sha256"]
    (here / FILE).write_text(json.dumps(state | {"sha256": fingerprint(state)}))
    last = here / "trial-001" / "block-01"
    (last / "checkpoints" / "checkpoint_000001.pt").unlink()
    next(last.glob("scored_*")).unlink()
    kept = [file.stat().st_mtime_ns for file in sorted(here.glob("baseline/*/scored_*"))]
    assert "here: trial 2 of 2, 5 of 6 runs done" in train()
    assert (here / FILE).read_text() == before
    assert [file.stat().st_mtime_ns for file in sorted(here.glob("baseline/*/scored_*"))] == kept
    assert "here: 2 trials finished before; raise trials to add more" in train()
    with pytest.raises(SystemExit):
        compare_command([str(here.parent)])
    assert "here holds a tuning, and its numbers are in tuning.json: compare the best values" in capsys.readouterr().err


def test_an_interval_of_whole_numbers_is_named() -> None:
    assert check_sweep(["sweep=tune", "agent.epochs=tag(log, int(interval(1, 4)))"])
    with pytest.raises(ConfigError, match=r"^agent.epochs takes whole numbers: write .agent.epochs=int\(tag\(log, interval"):
        check_sweep(["sweep=tune", "agent.epochs=tag(log, interval(1, 4))"])


@pytest.mark.parametrize(
    ("swept", "key"),
    [
        ("reward.rent=interval(0, 1)", "reward.rent"),
        ("reward=shaped,sparse", "reward"),
        ("reward_mode=shaped,sparse", "reward"),
        ("task=digits,digits_drift", "reward"),
        ("agent.gamma=0.99,1", "agent.gamma"),
        ("agent.hidden=32,64", None),
    ],
)
def test_values_are_ranked_by_one_return(swept: str, key: str | None) -> None:
    """Whatever the override is called that changes it."""
    command = spelled_out(["sweep=tune", "outcome=return", swept])
    if key is None:
        assert check_sweep(command)
        return
    with pytest.raises(ConfigError, match=f"outcome=return cannot rank values with different rewards.* different {key}: choose"):
        check_sweep(command)
