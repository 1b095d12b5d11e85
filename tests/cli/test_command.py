"""Commands as typed, in the process of the tests; test_rehearsal.py and test_disturbed.py run processes of their own."""

import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
import yaml
from hydra import compose
from omegaconf import DictConfig

from esper import config as C
from esper.cli import command as cli
from esper.cli.overrides import check
from esper.cli.quoting import typed_as
from esper.cli.search_path import hydra_at_conf
from esper.lab.design import AnalysisPlan, command_of, design
from esper.notices import UserNotice
from esper.task.data import TaskError
from esper.train import main
from esper.training.run_folder import LOCK

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the checks of a command in this process, with a main that records that it was reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)

    def run(*words: str) -> tuple[int, str, bool]:
        reached: list[bool] = []
        monkeypatch.setattr(sys, "argv", ["esper.train", *words])
        code = 0
        try:
            cli.run(lambda: reached.append(True))
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, capsys.readouterr().err, bool(reached)

    return run


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["sede=1"], "did you mean seed?"),
        (["+reward.foo=1"], "no key reward.foo"),
        (["rewrd=shaped"], "did you mean reward?"),
        (["reward=spars"], "did you mean sparse?"),
        (["host=8"], "did you mean hosts=8?"),
        (["seed=abc"], "whole number"),
        (["reward.rent=-1"], "reward.rent must be"),
        (["seed=[1"], "cannot read"),
        (
            ["--multirun", "seed=1,2", "reward=shaped,spars"],
            rf"no option spars in group reward: choose from {', '.join(C.GROUPS['reward'])}; did you mean sparse\?$",
        ),
        (["hydra.mode=MULTIRUN", "seed=1,-2"], "seed must be at least 0"),
        (["--cfg", "job", "sede=1"], "did you mean seed?"),
        (["reward=shaped", "devices=[cuda:0,cuda:1]"], r"devices=\[cuda:0\] is not on this machine"),
        (["-m", "devices=cpu,cuda:3"], "not on this machine"),
        (["devices=[auto,cpu]"], "same device"),
        (["task=cifar10_baseline"], "task.root"),
        (["slots.where=[r9c9]"], "r9c9 is not a slot"),
        (["agent=schedule", "agent.slot=3"], "agent.slot=3 is not a slot"),
        (
            ["agent=schedule", "agent.slot=0", "slots.where=[r0c1]"],
            "agent.slot=0 is not in use: choose from 1 ",
        ),
        (["hosts=1000000000"], r"needs about \d+ .B of memory.*: lower hosts \(now 1000000000\) or steps \(now 20\)"),
        (["host.base_channels=100000"], r"lower hosts \(now 32\) or host.base_channels \(now 100000\)"),
        (
            ["host.base_channels=1000000", "host.blocks=30", "task.instances=healthy"],
            "exceeds any memory: lower host.base_channels",
        ),
        (["seed=9223372036854775808"], "seed must be at most 9007199254740992"),
        (["reward.rent=1e300"], "reward.rent must be at most 9007199254740992"),
        (["--updates", "3"], "unrecognized arguments: --updates: keys are written without dashes, as in updates=VALUE; see"),
        (["--cfg", "nonsense"], "invalid choice: 'nonsense'"),
        (["--resolve"], "--resolve changes what --cfg prints: add --cfg job"),
        (["-p", "task"], "--package changes what --cfg prints"),
        (["--run", "--multirun"], "--run and --multirun are mutually exclusive"),
        (["-cp", "elsewhere"], "--config-path is not supported: .* --config-dir"),
        (["--experimental-rerun", "x"], "--experimental-rerun is not supported"),
        (["-sc"], "--shell-completion needs a command and a shell"),
        (["--config-dir", "missing"], "--config-dir missing is not a folder"),
        (["--config-dir", __file__], "is not a folder"),
        (["--config-dir", ""], "is not a folder"),
        (["--config-name", ""], "names no config"),
        (["hydra.run.dir="], "hydra.run.dir= names no folder"),
        ([f"hydra.run.dir={__file__}"], "choose another hydra.run.dir"),
        (["slots=post"], "slots=post finds no slot in this host, which has r0c0, r0c1, r0c2: choose slots=all"),
        (
            ["slots=all", "hosts=4", "host.blocks=9", "task.kinds=[ooooooooo]", "counterfactuals.at_end=[factorial]"],
            r"measures 2\^9 settings",
        ),
        (["sweep=ab", "arms=reward: shaped,sparse"], "sweep=ab starts several runs: put -m in front"),
        (["arms=reward: shaped,sparse"], "arms belongs to a sweep: put -m sweep=ab in front"),
        (["-m", "trials=3"], "trials belongs to a sweep: put -m sweep=tune in front"),
        (["-m", "sweep=tune", "tune=agent.gamma: 0..1"], "there is no key tune: "),
        (
            ["-m", "sweep=ab", "arms=reward: shaped,sparse", "block=2"],
            "no key block: did you mean blocks\\? the config has .*",
        ),
        (["-m", "sweep=ab", "arms=reward:", "shaped,sparse"], "quote what the shell would split: arms='reward: shaped,sparse'"),
        (["-m", "sweep=ab", "arms=reward:shaped,sparse"], "lacks a space after the colon: write arms='reward: shaped,sparse'"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "again=false"], "no key again any more: write aa_control"),
        (["agent=replay", "agent.of=ppo"], "no key agent.of any more: write agent.controller"),
        (["-m", "sweep=ab", "plan=nowhere.yaml"], "plan=nowhere.yaml does not exist in "),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "outcome=acuracy"], "did you mean accuracy"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "score_hosts=1"], "score_hosts must be at least 2"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "looks=[24,12]"], r"looks=\[24, 12\] must increase"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "looks=[4,12]"], "each be at least 10"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "against=spars"], "choose from shaped, sparse"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "outcome=return"], "cannot compare arms with different rewards"),
        (["-m", "sweep=ab", "arms={wait: agent=wait, ppo: agent=ppo}", "baselines=[wait]"], "is already an arm"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "blocks=1000000000"], "blocks must be at least 1 and below"),
        (["-m", "sweep=tune", "agent.hidden=16,32", "score_host=8"], "did you mean score_hosts"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "blocks=two"], "esper: blocks must be a whole number, got two"),
        (["-m", "sweep=ab", "arms={a: hosts=2, b: hosts=2}"], "arms a and b have the same overrides"),
        (["-m", "sweep=ab", "arms=reward: shaped,sparse", "agent.hidden=16,32"], "or make arms of them"),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=0", "seed=1,2"], "n_jobs must be 1 to .*, got 0"),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1000000000", "seed=1,2"], "n_jobs must be 1 to"),
        (["-m", "seed=range(0,1000000000)"], r"seed=range\(0,1000000000\) asks for 1000000000 runs: a sweep has 1 to 10000"),
        (["-m", "seed=glob(*)"], "asks for 0 runs"),
        (["-m", "hydra/launcher=jobilb", "seed=1,2"], "did you mean joblib?"),
        (
            ["-m", "hydra/launcher=joblib", "sweep=ab", "arms={a: agent.hidden=8, b: task=cifar10_baseline task.root=nowhere}"],
            "the task needs nowhere/",
        ),
        (["hydra.run.dir=/proc/nowhere/run"], "cannot write to /proc/nowhere/run"),
        (["-m", "hydra.sweep.dir=/dev/null/sweep", "seed=1,2"], "choose another hydra.sweep.dir"),
        (["-m", "seed=1,2", "hydra.sweep.subdir=same"], "gives several runs the folder same: leave it out"),
        (["-m", "seed=1,2", "hydra.sweep.subdir="], "gives several runs the folder"),
        (["-m", "seed=1,2", "hydra.sweep.subdir=${nokey}"], "hydra.sweep.subdir: Interpolation key 'nokey' not found"),
        (["-m", "sweep=ab_reward", "hydra.sweep.subdir=x"], "names the folders of its runs: leave out hydra.sweep.subdir"),
        (["-m", "resume=.", "seed=1,2"], "resume continues one run"),
        (["resume=nowhere"], "resume=nowhere does not exist"),
        (["resume=."], "resume=. holds no checkpoint"),
        (["resume="], "resume= names no folder: write resume=FOLDER"),
        ([f"resume={__file__}"], "test_command.py names no folder: write resume=FOLDER"),
        (
            ["host.blocks=4", "host.pools=3", "task.instances=healthy", "task.batch_size=3", "optimiser.micro_batches=2"],
            "one value per channel: raise task.batch_size, or lower optimiser.micro_batches or host.pools",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_a_mistake_is_one_sentence_and_leaves_no_trace(ask, tmp_path: Path, overrides: list[str], sentence: str) -> None:
    code, err, reached = ask(*overrides)
    assert code == 2
    assert re.search(sentence, err)
    assert len(err.splitlines()) == 1
    assert err.startswith("esper: ")
    assert not reached
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["--cfg", "job", "devices=[cuda:0]"],
        ["--info", "config"],
        ["--hydra-help"],
        ["-sc", "query=bash"],
        ["-m", "sweep=ab_reward"],
        ["hosts=4", "experiment=healthy"],
        ["task=digits_mlp", "task.batch_size=1"],
        ["hydra.run.dir=elsewhere/and/deeper"],
        ["seed=1,2", "-m", "hosts=4"],
        ["seed=1,2", "--multirun"],
        ["seed=1,2", "--multirun", "hydra.sweep.subdir=${hydra.job.override_dirname}"],
        ["seed=1,2", "--multirun", "hydra.sweep.subdir=${hydra:runtime.choices.reward}/seed-${seed}"],
    ],
    ids=" ".join,
)
def test_a_valid_command_reaches_hydra_with_nothing_but_a_lock(ask, tmp_path: Path, overrides: list[str]) -> None:
    assert ask(*overrides) == (0, "", True)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {LOCK}


def test_config_dir_adds_experiments(ask, tmp_path: Path) -> None:
    folder = tmp_path / "größe, mine"  # Hydra reads neither the letters nor the comma unquoted
    own = folder / "experiment"
    own.mkdir(parents=True)
    (own / "tiny.yaml").write_text("# @package _global_\nhosts: 4\n")
    (own / "wrong.yaml").write_text("# @package _global_\nhosts: many\n")
    (own / "broken.yaml").write_text("# @package _global_\nhosts: [\n")
    assert ask("--config-dir", folder.name, "experiment=tiny") == (0, "", True)
    for name, word in (("wrong", "'many'"), ("broken", "broken.yaml")):
        code, err, reached = ask("--config-dir", folder.name, f"experiment={name}")
        assert (code, len(err.splitlines()), reached) == (2, 1, False)
        assert word in err
    (folder / "reward").mkdir()
    (folder / "reward" / "dear.yaml").write_text("defaults: [shaped, _self_]\nrent: 5.0\n")
    arms = "arms=reward: shaped,dear"
    assert ask("--config-dir", folder.name, "-m", "sweep=ab", arms, "score_overrides=steps=30") == (0, "", True)
    recorded = {"overrides": {"hydra": []}, "runtime": {"config_sources": [{"provider": "command-line", "path": "my own"}]}}
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump({"hydra": recorded}))
    again = command_of(design("reward: shaped,dear", blocks=10, root=7), tmp_path)
    assert again.endswith(f" hydra.sweep.dir={tmp_path} --config-dir 'my own'")


def test_the_plugins_of_a_resumed_run_are_found_by_a_quoted_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(cli, "load_recorded", asked.append)
    for folder in ("plain", "größe, it's mine"):
        (override,) = shlex.split(typed_as("resume", folder))
        assert check([override, "hydra.run.dir=x"]).resume == folder
        assert cli.load_parts([override]) == [override]
    assert asked == [Path("plain"), Path("größe, it's mine")]


def test_bugs_keep_their_traceback(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli, "ready", broken)
    with pytest.raises(ValueError, match="a bug"):
        ask("seed=1")


def test_a_warning_about_a_value_is_one_line(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks are silent; the run itself warns once."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    assert ask("agent.gamma=0.5") == (0, "", True)
    said = warnings.formatwarning("agent.gamma=0.5 hardly looks ahead", UserWarning, "<string>", 4)
    assert said == "warning: agent.gamma=0.5 hardly looks ahead\n"
    assert "file.py:7" in warnings.formatwarning("something else", UserWarning, "file.py", 7)
    notices = [warnings.formatwarning("x.pt is damaged", UserNotice, f"{place}.py", 7) for place in ("train", "resume")]
    assert notices == ["warning: x.pt is damaged\n", ""]


def test_errors_for_the_user_are_one_sentence_in_a_running_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as stop, cli.in_one_sentence():
        raise TaskError("the data\nis gone")
    assert stop.value.code == 2
    assert capsys.readouterr().err == "esper: the data is gone\n"
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit), cli.in_one_sentence():
        raise TaskError("the data is gone")
    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")
    with pytest.raises(ValueError, match="a bug"), cli.in_one_sentence():
        raise ValueError("a bug")


def test_main_gets_the_checked_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """hydra.main and the checks give equal configs."""
    with hydra_at_conf():
        cfg = compose("config", overrides=["reward=sparse", "hosts=4"])
    assert isinstance(cfg, DictConfig)
    assert C.typed(cfg) == check(["reward=sparse", "hosts=4"])


@pytest.fixture
def main_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs esper.train in this process and returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*overrides: str) -> str:
        monkeypatch.setattr(sys, "argv", ["esper.train", *overrides])
        cli.run(main)
        printed = capsys.readouterr()
        assert "esper:" not in printed.err
        return printed.out

    return run


def test_cfg_job_prints_yaml_that_composes(main_here, tmp_path: Path) -> None:
    shown = yaml.safe_load(main_here("--cfg", "job", "reward=sparse", "devices=[cuda:0,cuda:1]"))
    assert set(shown) == {
        *C.GROUPS,
        "seed",
        "updates",
        "hosts",
        "steps",
        "policy_seed",
        "counterfactuals",
        "checkpoints",
        "resume",
        "plugins",
    }
    assert set(shown["devices"]) == {"cuda:0", "cuda:1"}
    assert not list(tmp_path.iterdir())


def test_help(main_here, tmp_path: Path) -> None:
    shown = main_here("--help")
    assert "\n  seed=0 " in shown
    assert "shaped*, simplified" in shown
    assert not list(tmp_path.iterdir())


TINY = ["updates=2", "hosts=2", "steps=1", "task.epoch_samples=128", "task.valid_samples=20", "agent=wait", "telemetry=quiet"]


def test_a_sweep_makes_a_folder_for_every_run(main_here, tmp_path: Path) -> None:
    main_here("-m", "reward=shaped,sparse", "seed=2", *TINY)
    (sweep,) = (tmp_path / "multirun" / "sweep").iterdir()
    ran = [yaml.safe_load((sweep / str(job) / ".hydra" / "config.yaml").read_text()) for job in range(2)]
    # Both rewards have a rent; only the shaped one has an attribution.
    assert [("attribution" in cfg["reward"], cfg["seed"]) for cfg in ran] == [(True, 2), (False, 2)]
    assert all(list((sweep / str(job)).rglob("metrics.jsonl")) for job in range(2))


def test_runs_that_repeat_another_one_are_warned_about(
    main_here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "create", lambda _: sys.exit("here the sweep would begin"))
    with pytest.raises(SystemExit):
        main_here("-m", "reward=shaped,sparse", "seed=2,2", *TINY)
    assert capsys.readouterr().err == (
        "warning: 2 runs of 4 repeat another one, with the same values and seeds: remove values that are listed twice\n"
    )
    with pytest.raises(SystemExit):
        main_here("-m", "reward=shaped,sparse", "seed=2,3", *TINY)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_an_experiment_in_blocks_is_stopped_and_resumed(main_here, tmp_path: Path) -> None:
    tiny = ["agent=best_of_random" if one == "agent=wait" else one for one in TINY]  # an A/A control needs a policy seed
    overrides = ["-m", "sweep=ab", "arms=reward: shaped,sparse", "blocks=1", "root=7", "hydra.sweep.dir=mine", *tiny]
    shown = main_here(*overrides, "hydra/launcher=basic")
    assert "mine: 3 arms x 1 block, 0 of 3 runs done" in shown
    assert " hydra/launcher=basic hydra.sweep.dir=mine\n" in shown.partition("to get one, run: ")[2]
    cells = [tmp_path / "mine" / arm / "block-00" for arm in ("shaped", "sparse", "aa_control")]
    weights = [cell / "checkpoints" / "checkpoint_000002.pt" for cell in cells]
    assert all(path.is_file() for path in weights)
    weights[1].unlink()  # as if stopped after its first update
    assert "2 of 3 runs done" in main_here(*overrides)
    assert all(path.is_file() for path in weights)
    shown = main_here(*overrides[:6], *reversed(tiny))  # the order of keys does not matter
    assert "afterwards, esper.compare scores 3 policies on 96 held-out hosts each, which takes about 24 times as long" in shown
    assert "compare them with: python -m esper.compare mine\nit first scores the policies, once, which takes about " in shown
    before = (tmp_path / "mine" / "multirun.yaml").read_bytes()
    with pytest.raises(SystemExit):
        main_here(*overrides, "margin=2")
    assert (tmp_path / "mine" / "multirun.yaml").read_bytes() == before, "a refused command changes nothing"
    other = ["sweep=ab", *tiny, "hosts=5"]
    with pytest.raises(C.ConfigError, match=r"differs in overrides \(\[\] there, \[hosts=5\] here\)"):
        design("reward: shaped,sparse", blocks=1, root=7, common=other, plan=AnalysisPlan(looks=[10])).save(tmp_path / "mine")


def test_keys_of_a_resumed_run_belong_to_its_options(main_here, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.csv").write_text("x,y\n" + "".join(f"{row},{row % 7}\n" for row in range(400)))
    heuristic = [one for one in TINY if not one.startswith(("agent=", "updates="))] + ["agent=heuristic", "agent.patience=3"]
    main_here(*heuristic, "updates=1", "task=table", "task.file=old.csv", "hydra.run.dir=run")
    (tmp_path / "old.csv").rename(tmp_path / "new.csv")
    again = ["resume=run", "agent.patience=3", "task.epoch_samples=128"]
    main_here(*again, "updates=2", "task.file=new.csv")
    assert "agent=heuristic" in yaml.safe_load((tmp_path / "run" / "run.json").read_text())[-1]["command"]
    for word, refused in (("agent.patience=4", "the run has agent.patience=3"), ("task.file=old.csv", "needs old.csv in")):
        with pytest.raises(SystemExit):
            main_here("resume=run", "updates=3", word)
        assert refused in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_in_the_folder_of_another_starts_no_run(main_here, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_here("-m", "reward=shaped,sparse", *TINY, "hydra.sweep.dir=s")
    with pytest.raises(SystemExit):
        main_here("-m", "reward=shaped,basic,online", *TINY, "hydra.sweep.dir=s")
    assert "s holds another sweep, whose run 1 has reward=sparse: choose another hydra.sweep.dir" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir()) == ["0", "1"]
    main_here("-m", "reward=shaped,sparse", *TINY, "updates=3", "hydra.sweep.dir=s")
