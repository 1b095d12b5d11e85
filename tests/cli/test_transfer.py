"""Transfer: a trained policy is evaluated with other settings, and every changed setting is named."""

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from esper.cli.overrides import check, check_over
from esper.cli.transfer import _REFUSED, TRANSFERABLE, Transfer, changes, fitted, is_run_override, slug, transferred
from esper.config import Config, ConfigError
from esper.evaluate import main, parse
from esper.evaluation.held_out import Evaluation
from esper.training.config_io import from_plain, to_plain
from esper.training.trainer import Trainer

TINY = ["hosts=4", "steps=3", "updates=1", "telemetry=quiet", "agent.minibatches=2", "agent.hidden=8", "reward.rent=0.7"]
FIVE = ["host.surfaces=[pre,post]"]
"""Hosts with 5 slots instead of 3."""


def trained(folder: Path, *overrides: str) -> Path:
    Trainer(check([*TINY, *overrides]), folder).run()
    return folder


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """A run whose policy has no parameters per slot."""
    return trained(tmp_path_factory.mktemp("alike"), "agent.slot_identity=false", "agent.slot_depth=true")


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A run whose policy has parameters per slot."""
    return trained(tmp_path_factory.mktemp("named"), "agent.slot_identity=true")


@cache
def saved() -> Config:
    """Return a config that differs from the default in most groups."""
    overrides = ["slots=one_seed", "slots.min_prune_age=3", "reward.rent=0.7", "agent.minibatches=2", "task.valid_samples=100"]
    return from_plain(to_plain(check([*overrides, "blueprint=[conv_heavy,norm]"])))


def test_unnamed_settings_stay_as_in_training() -> None:
    config = transferred(saved(), ["steps=40", "host.base_channels=3", "seed=5"])
    assert (config.steps, config.seed) == (40, 5)
    assert getattr(config.host, "base_channels") == 3  # noqa: B009
    assert config.task.valid_samples == 100
    expected = from_plain(to_plain(saved()))
    for name in ("slots", "reward", "agent", "blueprint", "gates", "governor", "hosts"):
        assert getattr(config, name) == getattr(expected, name), name
    assert list(config.blueprint) == ["conv_heavy", "norm"]


def test_a_named_group_comes_with_its_defaults_and_its_keys_are_applied_after() -> None:
    config = transferred(saved(), ["slots.embargo=1", "slots=every_block", "task=digits"])
    assert config.slots == check(["slots=every_block", "slots.embargo=1"]).slots
    assert config.task.valid_samples == 0
    assert getattr(config.reward, "rent") == 0.7  # noqa: B009
    assert type(transferred(saved(), ["reward_mode=sparse"]).reward) is type(check(["reward=sparse"]).reward)


def test_a_named_task_comes_with_its_default_host() -> None:
    trained_on_mlp = from_plain(to_plain(check(["task=digits_mlp", "blueprint=[norm]", "host.width=8"])))
    assert transferred(trained_on_mlp, ["steps=30"]).host == trained_on_mlp.host
    assert transferred(trained_on_mlp, ["task=digits"]).host == check(["task=digits"]).host
    assert transferred(trained_on_mlp, ["task=digits", "host=mlp"]).host == check(["task=digits_mlp"]).host
    only_host = transferred(trained_on_mlp, ["host=cnn", "host.kernel=5"])
    assert (only_host.task, only_host.host) == (trained_on_mlp.task, check(["host.kernel=5"]).host)


def test_the_resumed_run_may_be_gone() -> None:
    resumed = from_plain(to_plain(saved()))
    resumed.resume = "gone"
    assert transferred(resumed, ["steps=30"]).resume is None


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("agent=wait", "agent=wait cannot be changed .*evaluated as it was trained: .* in controllers"),
        ("agent.hidden=8", "agent.hidden=8 cannot be changed"),
        ("updates=3", "updates=3 cannot be changed .*no effect"),
        ("buffer=window", "buffer=window cannot be changed .*no effect"),
        ("buffer.forfeit=prefix", "buffer.forfeit=prefix cannot be changed .*no effect"),
        ("env.potential=false", "env.potential=false cannot be changed .*observe or do other things"),
        ("telemetry=quiet", "no effect"),
        ("resume=x", "no effect"),
        ("experiment=healthy", "preset for training: name groups and keys"),
        ("sweep=ab_reward", "preset for training"),
        ("+task.depth=3", "write key=value"),
        ("~slots", "write key=value"),
        ("hydra.run.dir=x", "write key=value"),
        ("steps=3,4", "steps=3,4 names several values"),
        ("task=mnist5k,digits", "several values"),
        ("task=mnist", "no option mnist in group task: .*did you mean mnist5k"),
        ("host.base_chanels=3", "no key host.base_chanels: .*did you mean base_channels"),
        ("steps=many", "steps must be a whole number, got many"),
        ("steps=0", "steps must be at least 1, got 0"),
        ("slots.where=[r7c7]", "r7c7 is not a slot of this host"),
        ("task=python_text", "conv_heavy"),
        ("devices=[cuda:7]", "cuda:7"),
        ("blueprint=[lora]", "lora"),
        ("seed", "cannot read 'seed'"),
    ],
)
def test_a_change_that_is_not_permitted_is_one_sentence(override: str, sentence: str) -> None:
    assert is_run_override(override)
    with pytest.raises(ConfigError, match=sentence) as caught:
        transferred(saved(), [override])
    assert "\n" not in str(caught.value)


def test_every_key_of_a_run_is_permitted_or_refused_with_its_reason() -> None:
    others = {"choices", "plugins"}  # of the config itself
    assert {entry.name for entry in fields(Config)} - others == {*TRANSFERABLE, *_REFUSED} - {"experiment", "sweep"}


def test_keys_of_the_evaluation_are_no_run_overrides() -> None:
    assert not any(
        map(is_run_override, ("checkpoint=task", "hosts=3", "episode=1", "controllers=[wait]", "schedules=true", "x=1"))
    )
    with pytest.raises(ConfigError, match=r"no key tsk: .*did you mean task\?"):
        parse(["checkpoint=x", "tsk=mnist5k"])


def test_a_transfer_names_both_settings() -> None:
    overrides = ["task=digits_mlp", "blueprint=[norm]", "slots=every_block", "host.width=12", "steps=40"]
    transfer = changes(saved(), transferred(saved(), overrides), overrides)
    assert transfer.title == (
        "transfer from task=digits host=cnn slots=one_seed blueprint=[conv_heavy,norm] steps=20 "
        "to task=digits_mlp host=mlp slots=every_block blueprint=[norm] steps=40 host.width=12"
    )
    again = changes(saved(), transferred(saved(), ["task=digits"]), ["task=digits"])  # the same choice, with its defaults
    assert again.title == "transfer from task.valid_samples=100 to task.valid_samples=0"
    assert again.slug == "task.valid_samples=0"


def test_a_dict_in_a_named_group_is_a_change() -> None:
    overrides = ["task=mnist5k", "blueprint=[norm]", "task.events={kinds:[invert]}"]
    assert "task.events.kinds=[invert]" in changes(saved(), fitted(saved(), overrides), overrides).target


def test_another_seed_is_no_transfer_but_another_file() -> None:
    other = changes(saved(), transferred(saved(), ["seed=9"]), ["seed=9"])
    assert (other.title, other.slug) == ("", "seed=9")
    same = changes(saved(), transferred(saved(), ["steps=20"]), ["steps=20"])
    assert (same.title, same.slug, same.target) == ("", "", ())


def test_the_command_of_the_readme_composes() -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    commands = re.findall(r"`python -m esper.evaluate checkpoint=FOLDER ([^`]+)`", page)
    assert commands
    for overrides in map(str.split, commands):
        assert all(map(is_run_override, overrides))
        assert changes(check([]), check_over(check([]), overrides), overrides).title


def test_long_file_names_are_cut_and_stay_different() -> None:
    slugs = [Transfer(source=(), target=(*["task=digits"] * 12, last)).slug for last in ("steps=1", "steps=2")]
    assert max(map(len, slugs)) <= 80
    assert slugs[0] != slugs[1]
    assert slug(["task.file=d/i.npz"]) != slug(["task.file=d_i.npz"])
    assert slug(["devices=[cpu]", "task.label_noise=[0.1,0.2]"]) == "devices=_cpu__task.label_noise=_0.1_0.2"


@pytest.mark.slow
def test_a_policy_without_slot_identity_transfers_to_more_slots(alike, capsys) -> None:
    evaluation = Evaluation.load(str(alike), hosts=2, overrides=[*FIVE, "slots=every_block"])
    assert evaluation.env.layout.num_slots == 5
    saved = evaluation.agent_state["network"]
    policy = evaluation.controller("policy").state_dict()["network"]
    assert all(policy[name].equal(saved[name]) for name in saved)
    main([f"checkpoint={alike}", "hosts=2", "controllers=[policy]", *FIVE, "slots=every_block"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "transfer from slots=one_seed host.surfaces=[pre] to slots=every_block" in shown
    (path,) = alike.glob("evaluation_*surfaces*.json")
    kept = json.loads(path.read_text())
    assert "slots=every_block" in kept["transfer"]["target"]
    assert [row["controller"] for row in kept["rows"]] == ["policy", "wait"]
    assert not (alike / "evaluation_000001_2_hosts_episode0.json").exists()


def test_a_policy_with_slot_identity_needs_its_slots(named) -> None:
    with pytest.raises(ConfigError, match=r"with the slots r0c0, r0c1, r0c2, but this run has .*agent.slot_identity=false"):
        Evaluation.load(str(named), hosts=2, overrides=FIVE).run(["policy"])
    fits = Evaluation.load(str(named), hosts=2, overrides=["host.base_channels=3", "slots=every_block"])
    assert fits.controller("policy").start(2)
    assert fits.env.layout.num_slots == 3
    assert Evaluation.load(str(named), hosts=2, overrides=FIVE).run(["wait"]).keys() == {"wait"}


@pytest.mark.parametrize("other", [lambda names: names[::-1], lambda names: names[:1], lambda names: [*names, "attention"]])
def test_a_policy_needs_its_blueprints_in_their_order(alike, other) -> None:
    names = other(list(check([]).blueprint))
    with pytest.raises(
        ConfigError, match=r"with the blueprints .*, but this run has .*offer the same blueprints in the same order"
    ):
        Evaluation.load(str(alike), hosts=2, overrides=[f"blueprint=[{','.join(names)}]"]).run(["policy"])


def test_a_refused_evaluation_is_one_line_and_exit_code_2(named, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"checkpoint={named}", "hosts=2", *FIVE])
    assert ended.value.code == 2
    building, sentence = capsys.readouterr().err.splitlines()
    assert building == "building 2 held-out hosts"
    assert "slot_identity" in sentence
    assert not list(named.glob("evaluation*"))
