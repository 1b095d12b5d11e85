"""Whole commands that are refused: keys of another kind of command, and folders that hold something else."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from esper.cli import command as cli
from esper.cli.overrides import check, check_over
from esper.cli.quoting import typed_as
from esper.config import ConfigError
from esper.training.trainer import Trainer
from tests.cli.test_command import ask  # noqa: F401  (a fixture)

ARMS = "arms=reward: shaped,sparse"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hydra.job.chdir=true"], "hydra.job.chdir=true would change what relative paths name: leave it out"),
        (["-m", "seed=1,2", "hydra.job.chdir=true"], "hydra.job.chdir=true would change what relative paths name"),
        (
            ["hydra.sweep.dir=out", "seed=3"],
            "hydra.sweep.dir=out has no effect on a single run: put -m in front, or leave it out",
        ),
        (["hydra/launcher=joblib"], "hydra/launcher=joblib has no effect on a single run: put -m in front"),
        (["-m", "seed=1,2", "hydra.run.dir=x"], "hydra.run.dir=x has no effect on a sweep: name the folder by hydra.sweep.dir"),
        (
            ["-m", "sweep=ab", ARMS, "+blocks=2"],
            r"\+blocks=2 starts with \+, which adds keys that a config lacks: leave the \+ out",
        ),
        (["-m", "+sweep=ab", ARMS], r"\+sweep=ab starts with \+, which adds"),
        (["-m", "sweep=ab,tune", ARMS], "sweep=ab,tune names several sweeps: choose one of ab, "),
        (
            ["-m", "seed=shuffle(range(1,4))"],
            r"seed=shuffle\(range\(1,4\)\) draws another order each time, .*: leave shuffle out",
        ),
        (["hydra.run.dir=2026_11_30"], "hydra.run.dir=2026_11_30 names the folder 20261130: write 'hydra.run.dir="),
        (["resume=1e5"], "resume=1e5 names the folder 100000.0: write 'resume="),
        (["hydra.run.dir=a, b"], "gives several values to one key: write 'hydra.run.dir=.*a, b.* if that is one value"),
        (["resume=a,b"], "resume=a,b gives several values to one key: write 'resume="),
        (["hydra.searchpath=mine"], "hydra.searchpath must be a list of strings"),
        (["~agent.hidden"], "~agent.hidden would remove a key that every run has: leave it out for the default of agent.hidden"),
        (["sweep=null"], "there is no option null in group sweep: choose from ab, "),
        (["~seed"], "~seed would remove a key that every run has"),
        (
            ["--config-name", "nope"],
            "--config-name nope is not a config: choose from config",
        ),
        (
            ["-m", "sweep=ab", ARMS, "--config-name", "config_of_mine", "--config-dir", "."],
            "--config-name config_of_mine would not become part of the plan of sweep=ab: write what it sets into a preset of ",
        ),
        (
            ["-m", "sweep=mine", "blocks=2", "--config-dir", "."],
            r"blocks=2 is short for a key of sweeps named ab... or tune...: write hydra.sweeper.blocks=2$",
        ),
        (["devices=cuda:0,cpu"], r"or write 'devices=\[cuda:0,cpu\]' for all of them in one run"),
    ],
)
def test_a_command_with_a_misplaced_key_is_refused(ask, tmp_path: Path, words: list[str], sentence: str) -> None:  # noqa: F811
    (tmp_path / "config_of_mine.yaml").write_text("defaults: [config, _self_]\n")
    code, err, reached = ask(*words)
    assert (code, reached, err.count("\n")) == (2, False, 1)
    assert re.search(sentence, err), err


@pytest.mark.parametrize(
    ("there", "words", "sentence"),
    [
        ("checkpoints/", ["-m", "seed=1,2", "hydra.sweep.dir=out"], "esper: out holds a run: choose another hydra.s"),
        (
            "checkpoints/",
            ["-m", "sweep=ab", ARMS, "hydra.sweep.dir=out"],
            "esper: out holds a run: choose another hydra.s",
        ),
        ("multirun.yaml", ["hydra.run.dir=out"], "esper: out holds a sweep: choose another hydra.run.dir"),
        ("tuning.json", ["hydra.run.dir=out"], "esper: out holds a sweep: choose another hydra.run.dir"),
        (
            "design.json",
            ["resume=out"],
            "esper: resume=out names no run: out holds several runs: name one of them; to continue all",
        ),
        (
            "design.json",
            ["-m", "seed=1,2", "hydra.sweep.dir=out"],
            r"esper: out holds an experiment \(design.json\): choose a",
        ),
        (
            "tuning.json",
            ["-m", "sweep=ab", ARMS, "hydra.sweep.dir=out"],
            r"esper: out holds a tuning \(tuning.json\): choose another hydra.sweep.dir",
        ),
        (
            "design.json",
            ["-m", "sweep=tune", "agent.hidden=16,32", "hydra.sweep.dir=out"],
            r"esper: out holds an experiment \(design.json\): choose another hydra.sweep.dir",
        ),
        (
            "0/checkpoints/",
            ["-m", "sweep=ab", ARMS, "hydra.sweep.dir=out"],
            "esper: out holds a sweep over values: choose another hydra.sweep.dir",
        ),
        (
            "tuning.json",
            ["--config-dir", "options", "-m", "sweep=tuned", "hydra.sweep.dir=out"],
            r"esper: out holds a tuning \(tuning.json\): choose another hydra.sweep.dir",
        ),
        (
            "design.json",
            ["--config-dir", "options", "-m", "sweep=tuned", "hydra.sweep.dir=out"],
            "esper: out/design.json is damaged",  # so it is read, as that of an experiment that goes on
        ),
        ("0/checkpoints/", ["-m", "seed=1,2", "hydra.sweep.dir=out"], ""),
        ("notes.txt", ["hydra.run.dir=out"], ""),
        ("multirun.yaml", ["-m", "seed=1,2", "hydra.sweep.dir=out"], ""),
    ],
)
def test_a_folder_holds_one_thing(ask, tmp_path: Path, there: str, words: list[str], sentence: str) -> None:  # noqa: F811
    (tmp_path / "out").mkdir()
    preset = tmp_path / "options" / "sweep" / "tuned.yaml"  # an experiment, whatever its name
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ndefaults: [ab, _self_]\nhydra: {sweeper: {arms: 'reward: shaped,sparse'}}\n")
    (tmp_path / "out" / there).mkdir(parents=True) if there.endswith("/") else (tmp_path / "out" / there).write_text("")
    code, err, reached = ask(*words)
    assert (code, reached) == ((2, False) if sentence else (0, True)), err
    assert re.match(sentence, err), err


@pytest.mark.parametrize("plan", ["design.json", "tuning.json"])
def test_a_run_of_an_experiment_keeps_its_length(ask, tmp_path: Path, plan: str) -> None:  # noqa: F811
    overrides = ["hosts=2", "steps=6", "updates=1", "env=sandbox", "telemetry=quiet", "agent=random"]
    cell = tmp_path / "mine" / "shaped" / "block-00"
    Trainer(check(overrides), cell).run()
    (tmp_path / "mine" / plan).write_text("{}")
    for where, words in (("mine", [f"resume={cell.relative_to(tmp_path)}"]), (str(tmp_path / "mine"), [f"resume={cell}"])):
        assert ask(*words, "updates=1") == (0, "", True)
        code, err, reached = ask(*words, "updates=2")
        assert (code, reached) == (2, False)
        assert re.search(f"updates=2 would make .* unlike the other runs of {where}, .*: leave it at updates=1, or copy", err)
    assert ask(*overrides[:2], "updates=2", *overrides[3:], f"hydra.run.dir={cell}")[0] == 2
    elsewhere = tmp_path / "copy"
    cell.rename(elsewhere)
    assert ask(f"resume={elsewhere}", "updates=2") == (0, "", True)


@pytest.mark.parametrize(
    "words",
    [["seed=1", "--cfg", "job", "hosts=4"], ["seed=1", "--config-name", "config", "hosts=4"]],
)
def test_flags_may_stand_anywhere(ask, words: list[str]) -> None:  # noqa: F811
    assert ask(*words) == (0, "", True)


def test_hydra_gets_the_flags_first(ask, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    seen: list[list[str]] = []
    monkeypatch.setattr("esper.cli.command._start", lambda *_: seen.append(sys.argv[1:]))
    ask("seed=1", "--config-dir", ".", "hosts=4", "-m", "sweep=ab", "arms='agent: ppo,wait'")
    (words,) = seen
    assert words[:5] == ["--config-dir", ".", "-m", "seed=1", "hosts=4"]
    assert words[6:] == ["hydra.sweeper.arms='agent: ppo,wait'"], "quotes of Hydra are read"
    assert cli.failures.arguments == ["--config-dir", ".", "-m", "seed=1", "hosts=4", "sweep=ab", "arms='agent: ppo,wait'"]


@pytest.mark.parametrize("value", ["2026_11_30", "001", "1e3", "true", "null", "a b", "it's", "größe", 20, 0.5, True, Path("7")])
def test_values_are_typed_so_that_hydra_reads_them_back(value: object) -> None:
    (override,) = shlex.split(typed_as("key", value))
    read = OverridesParser.create().parse_override(override).value()
    wanted = str(value) if isinstance(value, Path) else value
    assert (read, type(read)) == (wanted, type(wanted))


def test_keys_without_effect_in_the_sandbox_are_refused_in_an_evaluation_too() -> None:
    saved = check(["env=sandbox"])
    with pytest.raises(ConfigError, match=r"^task=mnist5k has no effect with env=sandbox: leave it out$"):
        check_over(saved, ["task=mnist5k"])
    assert check_over(saved, ["steps=9"]).steps == 9


def test_runs_on_this_machine_are_checked_and_those_on_others_are_not(ask) -> None:  # noqa: F811
    for launcher, address, code in (("joblib", (), 2), ("esper_ray", ("null",), 2), ("esper_ray", ("auto",), 0)):
        words = [f"hydra/launcher={launcher}", *(f"hydra.launcher.address={one}" for one in address)]
        assert ask("-m", "seed=1,2", *words, "devices=[cuda:7]")[0] == code, (launcher, address)
