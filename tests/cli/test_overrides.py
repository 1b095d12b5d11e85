"""Overrides: other names of keys, what overrides what, and one sentence per mistake."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hypothesis import example, given, settings
from hypothesis import strategies as st

from esper import config as C
from esper.cli import overrides as checks
from esper.cli.overrides import check
from esper.cli.quoting import quoted, unquoted
from esper.cli.search_path import hydra_at_conf, options_in
from esper.config import ConfigError
from esper.plugins import register
from esper.task.digits import DigitsConfig
from tests.composed import check_sweep, composed_anew, refusal

# Overrides that do not compose, and a pattern of the error.
MALFORMED: list[tuple[str, str]] = [
    ("+seed_root=1", "no key seed_root"),
    ("+reward.coefficient=1", "no key reward.coefficient"),
    ("reward.rnt=1", "no key reward.rnt: did you mean rent\\? reward has .*"),
    ("rent=1", "did you mean reward.rent?"),
    ("sede=1", "no key sede: did you mean seed\\? the config has .*"),
    ("page=false", "no key page: did you mean telemetry.page_hosts=0, for no page\\? the config has .*"),
    ("rewrd=shaped", "no key rewrd: did you mean reward\\? the config has .*"),
    ("++foo=1", "no key foo"),
    ("~foo", "no key foo"),
    ("seed.low=1", "seed is a single value"),
    ("reward=spars", "no option spars in group reward: choose from shaped, simplified, .*; did you mean sparse?"),
    ("reward=null", "no option null in group reward"),
    ("reward=[shaped,sparse]", "reward takes one option"),
    ("reward=shaped,sparse", "add -m"),
    ("blueprint=norm,conv_light", "add -m .* or write 'blueprint=\\[norm,conv_light\\]'"),
    ("blueprint=[norm,conv_lite]", "no option conv_lite .*; did you mean conv_light?"),
    ("devices.cpu.tune=true", "has no effect, since devices=\\[auto\\] is chosen: add 'devices=\\[cpu\\]'"),
    ("blueprint=[norm] blueprint.conv_light.kernel=5", "add 'blueprint=\\[norm,conv_light\\]'"),
    ("experiment=healthi", "no option healthi in group experiment: .*; did you mean healthy?"),
    (
        "experiment=digits_drift agent=wait",
        "^experiment=digits_drift sets agent.twins, which agent=wait does not have: write task=digits_drift instead of exp",
    ),
    ("experiment=mnist5k_drift agent=wait", "^experiment=mnist5k_drift sets agent.* write task=mnist5k_drift instead"),
    ("cluster.workers=2", "no key cluster.workers with the chosen option of cluster: it is one of cluster=processes, ray$"),
    ("agent=bandit agent.teacher=wait", "agent.teacher with the chosen option of agent: it is one of agent=ppo, ppo_mlp$"),
    ("sweep=nothing", "choose from ab, ab_reward"),
    ("devices=[cuda:9]", "no option cuda:9 in group devices"),
    ("devices=[]", "devices is not set: choose"),
    ("reward_mode=nope", "no option nope in group reward_mode: choose from .*shaped"),
    ("reward_mode=spars", "did you mean sparse?"),
    ("reward=shaped reward_mode=sparse", "reward=shaped and reward_mode=sparse choose from the same group: leave one out"),
    ("slots=[r0c0]", r"to name slots, write 'slots.where=\[r0c0\]'"),
    ("slots=r0c1", r"write 'slots.where=\[r0c1\]'"),
    ("slots=[pre,post]", "slots takes one option"),
    ("task.host.kernel=1", "no key task.host: "),
    ("choices.reward=sparse", "no key choices"),
    ("+choices.reward=sparse", "no key choices"),
    ("telemetry.writers=5", "telemetry.writers must be a list in brackets, got 5"),
    ("~reward", "reward is not set: choose one of shaped, simplified, basic, basic_plus, sparse, "),
    ("telemetry.writers.console=false", "since telemetry.writers is a list: write 'telemetry.writers=\\[...\\]'"),
    ("task.label_noise.1=0.3", "task.label_noise.1 is not a key, since task.label_noise is a list"),
    ("~telemetry.writers.0", "telemetry.writers.0 is not a key, since telemetry.writers is a list"),
    ("task.folder=größe", """: quote the value, as in 'task.folder='"'"'größe'"'"''"""),
    ("seed=abc", "seed must be a whole number, got abc"),
    ("updates=1.5", "updates must be a whole number, got 1.5"),
    ("seed=null", "seed must be a whole number, got null"),
    ("seed=1,2", "add -m"),
    ("reward.rent=much", "reward.rent must be a number, got much"),
    ("resume=[1]", "resume must be text or null"),
    ("task.instances=wounded", "task.instances must be one of lesioned, healthy, got wounded"),
    ("task.kinds=5", "task.kinds must be a list in brackets, each text"),
    ("seed=[1", "cannot read 'seed=\\[1'"),
    ("seed", "cannot read 'seed': write key=value, and quote what the shell would split: 'devices"),
    ("=3", "cannot read '=3'"),
    ("task.folder=~/x", "cannot read 'task.folder=~/x': write the path without ~, as in task.folder=/"),
    ("seed=${nowhere}", "nowhere"),
    ("hydra.run.folder=x", "hydra.run.folder"),
]


@pytest.mark.parametrize(("overrides", "pattern"), MALFORMED)
def test_a_malformed_command_is_one_sentence(overrides: str, pattern: str) -> None:
    sentence = str(refusal(overrides))
    assert re.search(pattern, sentence)
    assert "\n" not in sentence


def test_reward_mode_is_a_second_name_of_reward() -> None:
    options = ConfigStore.instance().repo
    assert options["reward_mode"].keys() == options["reward"].keys()
    for name in ("simplified", "online"):
        assert check([f"reward_mode={name}"]) == check([f"reward={name}"])


def test_options_of_a_list_keep_their_own_fields() -> None:
    config = check(["blueprint=[norm,conv_light]", "blueprint.conv_light.kernel=5", "devices=[cuda:1,cpu]"])
    assert [type(node) for node in config.blueprint.values()] == [C.GROUPS["blueprint"][n] for n in ("norm", "conv_light")]
    assert getattr(config.blueprint["conv_light"], "kernel", None) == 5
    assert list(config.devices) == ["cuda:1", "cpu"]


def test_keys_of_a_gpu_have_a_colon_which_is_no_part_of_hydras_grammar() -> None:
    chosen = ["devices=[cuda:0,cuda:1]", "devices.cuda:0.precision=bf16", "devices.cuda:1.members_per_shard=3"]
    config = check(chosen)
    assert [one.precision.name for one in config.devices.values()] == ["bf16", "fp32"]
    assert [one.members_per_shard for one in config.devices.values()] == [0, 3]
    swept = check_sweep([*chosen[:1], "devices.cuda:0.precision=fp32,bf16"])
    assert [one.devices["cuda:0"].precision.name for one in swept] == ["fp32", "bf16"]
    with pytest.raises(C.ConfigError, match=r"^devices.cuda:0.precision has no effect, since devices=\[auto\] is chosen: add"):
        check(chosen[1:2])
    with pytest.raises(C.ConfigError, match=r"^there is no key devices.cuda:0.precisio: did you mean precision\?"):
        check([chosen[0], "devices.cuda:0.precisio=bf16"])


def test_a_process_of_a_launcher_reads_keys_of_a_gpu() -> None:
    """It only imports what the function that it runs needs."""
    code = (
        "from esper.cli.rehearsal import stand_in; stand_in()\n"  # torch would take seconds to import
        "import esper.config as c; from hydra import compose, initialize_config_dir\n"
        "with initialize_config_dir(str(c.CONF.absolute()), version_base='1.3'):\n"
        "    print(compose('config', ['devices=[cuda:0]', 'devices.cuda:0.precision=bf16']).devices)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'precision': <Precision.bf16" in done.stdout


def test_the_command_line_overrides_an_experiment() -> None:
    assert getattr(check(["experiment=healthy"]).task, "instances", None) == "healthy"
    assert getattr(check(["experiment=healthy", "task.instances=lesioned"]).task, "instances", None) == "lesioned"


def test_runs_of_a_sweep_that_choose_alike_share_one_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    compose, composed = checks.compose, list[list[str]]()
    monkeypatch.setattr(checks, "_composed", composed_anew)
    monkeypatch.setattr(checks, "compose", lambda name, **how: composed.append(how["overrides"]) or compose(name, **how))
    configs = check_sweep(["reward=shaped,sparse", "seed=0,1,2", "task.valid_samples=300"])
    assert composed == [["reward=shaped"], ["reward=sparse"]]
    assert [(config.choice("reward"), config.seed) for config in configs] == [
        (r, s) for r in ("shaped", "sparse") for s in (0, 1, 2)
    ]
    assert {config.task.valid_samples for config in configs} == {300} != {check([]).task.valid_samples}


@settings(deadline=None)
@given(st.text(st.sampled_from("a'\"\\ ,=$\n"), max_size=8))
@example("ends in a backslash and a new line\\\n")
def test_a_quoted_value_is_read_back_unchanged(value: str) -> None:
    assert unquoted(quoted(value)) == value


@pytest.mark.parametrize(
    ("preset", "sentence"),
    [
        (
            "defaults: [shaped]\nrnt: 1.0",
            "sets reward.rnt, and there is no such key: did you mean rent? reward has per_host, rent, ",
        ),
        ("defaults: [shapd]", "starts from shapd, and there is no option shapd in group reward: choose from accuracy_minus_rent"),
        ("defaults: [shaped]\nrent: much", "sets reward.rent to a value of another type: Value 'much'"),
        ("rent: 1.0", "sets reward.rent, but starts from no option: put `defaults: [OPTION]` at its top"),
    ],
)
def test_a_mistake_in_a_preset_is_one_sentence(tmp_path: Path, preset: str, sentence: str) -> None:
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "mine.yaml").write_text(preset)
    with options_in(str(tmp_path)), hydra_at_conf(), pytest.raises(ConfigError) as raised:
        check(["reward=mine"])
    assert str(raised.value).startswith(f"the preset reward=mine {sentence}")


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize(("group", "brought"), [("host", "cnm"), ("blueprint", ("norm", "cnm"))])
def test_a_default_of_a_task_that_does_not_exist_is_named(group: str, brought: Any) -> None:
    register("task", "mine", dataclass(kw_only=True, slots=True)(type("Mine", (DigitsConfig,), {f"default_{group}": brought})))
    with (
        hydra_at_conf(),
        pytest.raises(ConfigError, match=f"^task=mine has default_{group} = 'cnm', and there is no option cnm in"),
    ):
        check(["task=mine"])


@pytest.mark.parametrize(
    ("preset", "sentence"),
    [
        ("agent: {learning_rat: 3}", "sets agent.learning_rat, and there is no such key: did you mean learning_rate? agent has "),
        (
            "blueprint: {conv_light: {kernl: 3}}",
            "sets blueprint.conv_light.kernl, and there is no such key: did you mean kernel? ",
        ),
        ("stepz: 3", "sets stepz, and there is no such key: did you mean steps? the config has "),
    ],
)
def test_a_mistake_in_an_experiment_is_one_sentence(tmp_path: Path, preset: str, sentence: str) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{preset}")
    with options_in(str(tmp_path)), hydra_at_conf(), pytest.raises(ConfigError) as raised:
        check(["experiment=mine"])
    assert str(raised.value).startswith(f"the preset experiment=mine {sentence}")
