"""The table of groups, the YAML files and the rules: every option composes, and every rule fires."""

import ast
import dataclasses
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import pytest
import yaml
from omegaconf import DictConfig

import esper
from esper import config as C
from esper.cli import help as help_page
from esper.cli import overrides
from esper.cli.overrides import check, check_over, check_sweep
from esper.governor.watchdog import StrictWatchdogConfig, TolerantWatchdogConfig, WatchdogConfig
from esper.hosts.base import slot_specs
from esper.hosts.cnn import CNNConfig
from esper.hosts.custom import CustomConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.task.digits import DigitsConfig

OPTIONS = [(group, name) for group, options in C.GROUPS.items() for name in options]
CUSTOM = "host=custom host.path=mine:Host task.instances=healthy"
NEEDED = {
    "agent=event_oracle": ["task=digits_drift", "env.timetable=true"],
    "host=transformer": ["task=python_text"],
    "host=custom": CUSTOM.split()[1:],
    "buffer=window": ["agent.baseline=critic", "agent.twins=1"],
}
"""Overrides that an option needs."""

# Overrides that break a rule, and part of the sentence. Every rule of every config has a line here.
BAD: list[tuple[str, str]] = [
    ("host.frozen=true task.pretrain=1 gates=strict", "needs gradients of the host, and host.frozen=true computes none"),
    ("env=sandbox slots.switchable=true", "env=sandbox needs slots.switchable=false"),
    ("task.pretrain=-1", "task.pretrain must be at least 0"),
    ("task.pretrain_pool=0", "task.pretrain_pool must be at least 1"),
    ("seed=-1", "seed must be at least 0"),
    ("updates=0", "updates must be at least 1"),
    ("hosts=0", "hosts must be at least 1"),
    ("steps=-3", "steps must be at least 1"),
    ("agent=wait buffer.forfeit=prefix", "has no effect, since this agent does not learn from a buffer"),
    ("buffer=window", "buffer=window needs agent.baseline=critic"),
    ("buffer=window buffer.rollouts=1", "buffer.rollouts must be at least 2"),
    ("env=sandbox env.light_accuracy=0.2", "env.light_accuracy"),
    ("env=sandbox env.keep_bonus=-1", "env.keep_bonus"),
    ("env=sandbox steps=30", "steps=30 is too long"),
    ("env=sandbox slots=all", "slots.max_seeds=1"),
    ("env=sandbox slots.prune_below=0.5", "slots.prune_below=null"),
    ("env=sandbox slots.where=[r9c9]", "r9c9 is not a slot"),
    ("env=sandbox agent.heads.style=gated", "leave agent.heads out"),
    ("env=sandbox agent.heads.tempo=free", "leave agent.heads out"),
    ("counterfactuals.orders=1", "counterfactuals.orders must be at least 2"),
    ("hosts=1 devices=[cpu,cuda]", "hosts=1 cannot be dealt to 2 devices"),
    ("task.batch_size=0", "task.batch_size"),
    ("task.host_optimiser.learning_rate=0", "task.host_optimiser.learning_rate"),
    ("task.seed_optimiser.momentum=1", "task.seed_optimiser.momentum"),
    ("task.seed_optimiser.weight_decay=-1", "task.seed_optimiser.weight_decay"),
    ("task.host_optimiser.max_norm=0", "task.host_optimiser.max_norm"),
    ("host.blocks=0", "host.blocks"),
    ("host.base_channels=0", "host.base_channels"),
    ("task=cifar10_baseline host.pools=4", "host.pools"),
    ("host.kernel=2", "host.kernel"),
    ("host.norm_momentum=0", "host.norm_momentum"),
    ("agent.twins=0", "agent.twins"),
    ("agent.twins=1", "agent.baseline"),
    ("agent.twins=5", "hosts"),
    ("host.norm_momentum=1.5", "host.norm_momentum"),
    ("host.surfaces=[top]", "host.surfaces"),
    ("task=digits_mlp host.width=0", "host.width"),
    ("task=digits_mlp host.lesion_keeps=1", "host.lesion_keeps"),
    ("task=python_text host.heads=0", "host.heads"),
    ("task=python_text host.heads=3", "host.width=32 must be a multiple of host.heads=3: use 33"),
    ("task=python_text host.slot_layers=[0,7]", "host.slot_layers"),
    ("task=python_text host.surfaces=[pre]", "host.surfaces"),
    ("host.surfaces=[post] host.pools=0", "host.surfaces"),
    ("task.kinds=[xo]", "task.kinds"),
    ("task=python_text task.kinds=[xoo]", "task.kinds must name at least one kind with 2 letters"),
    ("task=cifar10_scale task.instances=lesioned", "task.kinds must name at least one kind with 5 letters"),
    ("task=python_text host=mlp", "task=python_text cannot take host=mlp, which does not read sequences: leave host out"),
    ("task=digits host=transformer", "for the task's default, or choose host=cnn or host=mlp or host=custom"),
    ("host=custom task.instances=healthy", "host.path must name a module and a class, as in my_package.my_module:MyHost"),
    (f"{CUSTOM} host.context=-1", "host.context must be in [0, 1e6], got -1"),
    (f"{CUSTOM} host.context=8", "host.context=8 has no effect on images: leave it out"),
    (f"{CUSTOM} task.instances=lesioned", "task.instances=lesioned needs a host with parts to lesion"),
    (f"task=python_text {CUSTOM}", "host.context must be at least 1 for a text task"),
    ("task.epoch_samples=5", "task.epoch_samples must be 0 or at least task.batch_size=128"),
    ("task.valid_samples=-1", "task.valid_samples"),
    ("task.label_noise=[0,1]", "task.label_noise must list at least one value, each from 0 to below 1"),
    ("task.data_share=[0]", "task.data_share"),
    ("task.rate_factor=[]", "task.rate_factor"),
    ("task.classes=[1]", "task.classes"),
    ("task.events.kinds=[melt]", "task.events.kinds must list kinds out of invert, rotate"),
    ("task=python_text task.events.kinds=[turn]", "kinds out of prose, swapcase, relabel, mislabel, slow, fast, each"),
    ("task.events.kinds=[turn,turn]", "each at most once, got [turn]"),
    ("task.events.count=[]", "task.events.count must list at least one value, each at least 0, got []"),
    ("task.events.ramp=[-1]", "task.events.ramp must list at least one value, each at least 0, got [-1]"),
    ("task.events.gap=0", "task.events.gap must be at least 1, got 0"),
    ("task.events.replay=0", "task.events.replay must be in (0, 1], got 0"),
    ("task.events.first=9 task.events.last=8", "task.events.last=8 is before task.events.first=9"),
    ("task.events.count=[3] task.events.ramp=[2] task.events.gap=5", "count=3 needs 14 host epochs"),
    ("task.events.kinds=[turn] task.events.count=[2]", "a second event of the same kind would change nothing"),
    ("task=digits_drift task.events.passing=[mirror]", "task.events.passing=[mirror] never happens"),
    ("task=digits_drift task.events.lasts=[0]", "task.events.passing needs task.events.lasts of at least 1"),
    ("task=digits_drift steps=10", "task.events.last=14 must be below steps=10"),
    ("task.data_share=[0.5] task.events.kinds=[leave]", "task.data_share cannot limit arriving and leaving classes"),
    ("task=mnist5k task.crop_padding=-1", "task.crop_padding"),
    ("task=tinystories task.stories=0", "task.stories"),
    ("task=tinystories task.valid_stories=1", "task.valid_stories"),
    ("slots.where=[r0c0,r0c0]", "slots.where"),
    ("slots.max_seeds=-1", "slots.max_seeds"),
    ("slots.auto_advance=[dormant]", "slots.auto_advance"),
    ("slots.prune_after=-1", "slots.prune_after"),
    ("slots.prune_after=3", "slots.prune_after=3 is below slots.min_prune_age=5"),
    ("slots=pre slots.prune_below=nan", "slots.prune_below"),
    ("gates.min_training=0", "gates.min_training"),
    ("gates=strict gates.max_gradient_norm=0", "gates.max_gradient_norm"),
    ("gates.min_improvement=inf", "gates.min_improvement"),
    ("gates.contribution_z=1", "gates.contribution_z=1.0 has no effect"),
    ("agent.heads.tempo=quick", "agent.heads.tempo=quick is not known: choose one of fast, standard, slow, free"),
    ("agent=wait agent.heads.alpha_curve=cosine", "agent.heads.alpha_curve=cosine has no effect"),
    ("slots=one_seed slots.min_prune_age=-1", "slots.min_prune_age"),
    ("slots.embargo=-1", "slots.embargo"),
    ("blueprint.conv_light.kernel=2", "blueprint.conv_light.kernel"),
    ("blueprint.depthwise.kernel=0", "blueprint.depthwise.kernel"),
    ("blueprint=[conv_heavy] blueprint.conv_heavy.kernel=4", "blueprint.conv_heavy.kernel"),
    ("blueprint=[bottleneck] blueprint.bottleneck.kernel=4", "blueprint.bottleneck.kernel"),
    ("blueprint=[bottleneck] blueprint.bottleneck.reduction=0", "blueprint.bottleneck.reduction"),
    ("blueprint=[attention] blueprint.attention.heads=0", "blueprint.attention.heads"),
    ("blueprint=[flex_attention] blueprint.flex_attention.window=0", "blueprint.flex_attention.window"),
    ("blueprint=[lora] blueprint.lora.rank=0", "blueprint.lora.rank"),
    ("blueprint=[lora_large] blueprint.lora_large.rank=0", "blueprint.lora_large.rank"),
    ("blueprint=[mlp] blueprint.mlp.expansion=0", "blueprint.mlp.expansion"),
    ("blueprint=[mlp_small] blueprint.mlp_small.expansion=0", "blueprint.mlp_small.expansion"),
    ("devices.auto.members_per_shard=-1", "members_per_shard"),
    ("reward.rent=-1", "reward.rent"),
    ("reward=sparse reward.terminal=nan", "reward.terminal"),
    ("hosts=2", "agent.minibatches=4 exceeds hosts=2"),
    ("agent=schedule blueprint=[norm] agent.blueprint=depthwise", "agent.blueprint=depthwise is not available"),
    ("agent=schedule agent.at=20", "agent.at=20 is after the end of the episode, steps=20"),
    ("agent=wait agent.gamma=2", "agent.gamma"),
    ("agent.learning_rate=0", "agent.learning_rate"),
    ("agent.entropy_coef=-1", "agent.entropy_coef"),
    ("agent.minibatches=0", "agent.minibatches"),
    ("agent.chunk=-1", "agent.chunk"),
    ("agent.chunk=6", "agent.chunk=6 does not divide steps=20: choose one of 1, 2, 4, 5, 10, 20, or 0"),
    ("agent=ppo_mlp agent.value_coef=-1", "agent.value_coef"),
    ("agent.clip=1", "agent.clip"),
    ("agent.lam=1.1", "agent.lam"),
    ("agent.popart_step=-1", "agent.popart_step"),
    ("agent=random agent.wait_weight=-1", "agent.wait_weight"),
    ("agent=schedule agent.slot=-1", "agent.slot"),
    ("agent=schedule agent.at=-1", "agent.at"),
    ("agent=schedule agent.at=1 agent.actions=[{blueprint:norm}]", "agent.at=1 has no effect with agent.actions"),
    ("agent=schedule agent.actions=[{op:plant}]", "op=plant, which is not known: choose one of germinate"),
    ("agent=schedule agent.actions=[{blueprint:norm,at:-1}]", "agent.actions has at=-1"),
    ("agent=schedule agent.actions=[{at:2}]", "agent.actions has op=germinate without blueprint"),
    ("agent=schedule agent.actions=[{op:prune,tempo:slow}]", "tempo=slow, which has no effect with op=prune"),
    ("agent=schedule agent.actions=[{blueprint:norm,tempo:quick}]", "tempo=quick, which is not known: choose one of fast"),
    ("agent=schedule agent.actions=[{blueprint:norm,tempo:slow}]", "agent.heads.tempo=fast fixes it"),
    ("agent=schedule agent.actions=[{op:set_alpha_target,alpha_target:full}]", "set agent.heads.alpha_target=free"),
    ("agent=schedule agent.actions=[{blueprint:attention}]", "blueprint=attention in agent.actions is not available"),
    (
        "agent=schedule slots.incubation=none agent.heads.tempo=free agent.actions=[{blueprint:norm,tempo:fast}]",
        "tempo=fast in agent.actions has no effect with slots.incubation=none",
    ),
    ("agent=periodic agent.first=-1", "agent.first"),
    ("agent=periodic agent.every=0", "agent.every"),
    ("agent=best_of_random agent.most=-1", "agent.most"),
    ("env.timetable=true", "env.timetable=true has no effect, since task.events.kinds is empty"),
    ("agent=react env=sandbox", "agent=react reads measurements of hosts, and env=sandbox has none: choose another agent"),
    ("agent=event_oracle task=digits_drift", "agent=event_oracle must know the events: add env.timetable=true"),
    ("agent=event_oracle env=sandbox", "agent=event_oracle must know the events"),
    ("agent=react_bandit agent.drop=0", "agent.drop must be"),
    ("agent=bandit agent.exploration=2", "agent.exploration"),
    ("slots.learning_epochs=-1", "slots.learning_epochs"),
    ("agent=best_of_random agent.latest=-1", "agent.latest"),
    ("agent=best_of_random agent.latest=20", "agent.latest=20 is after the end of the episode, steps=20"),
    ("agent=heuristic agent.patience=-1", "agent.patience"),
    ("agent=heuristic agent.threshold=inf", "agent.threshold"),
    ("agent=greedy_potential agent.at=0", "agent.at"),
    ("agent=greedy_potential agent.threshold=-1", "agent.threshold"),
    ("agent=greedy_potential agent.errors=nan", "agent.errors"),
    ("reward=basic_plus reward.min_steps=0", "reward.min_steps"),
    ("reward=escrow reward.window=0", "reward.window"),
    ("reward=escrow reward.most=0", "reward.most"),
    ("reward.per_host=5", "reward.per_host must give numbers of hosts by mode, as in '{shaped:16,sparse:16}', got 5"),
    ("reward.per_host={shaped:16,spars:16}", "reward.per_host has an unknown mode spars: choose from shaped"),
    ("reward.per_host={shaped:32,sparse:0}", "reward.per_host must give each mode at least 1 host, got sparse"),
    ("reward=basic reward.per_host={shaped:16,sparse:16}", "reward.per_host has no hosts for reward=basic"),
    ("reward.per_host={shaped:8,sparse:8}", "reward.per_host pays shaped:8 + sparse:8 = 16 hosts, and hosts=32: make them equal"),
    ("agent.twins=4 reward.per_host={shaped:18,sparse:14}", "reward.per_host must give shaped a multiple of agent.twins=4"),
    ("governor.chance_multiple=1", "governor.chance_multiple"),
    ("governor.penalty=-1", "governor.penalty"),
    ("governor.best_multiple=1", "governor.best_multiple must be finite and above 1, got 1.0: the default is 3.0"),
    (
        "governor=strict governor.best_multiple=1",
        "governor.best_multiple must be finite and above 1, got 1.0: the default is 2.0",
    ),
    ("governor.deviations=0", "governor.deviations"),
    ("governor.least_spread=-1", "governor.least_spread"),
    ("governor.window=2", "governor.window"),
    ("governor.patience=0", "governor.patience"),
    ("governor.good_share=1", "governor.good_share"),
    ("governor.chance_share=-1", "governor.chance_share"),
    ("governor.good_share=0.95", "governor.good_share=0.95 and governor.chance_share=0.065 overlap"),
    ("governor.recovery=0", "governor.recovery"),
    ("governor.max_falls=0", "governor.max_falls"),
    ("telemetry.every=0", "telemetry.every"),
    ("telemetry.writers=[jsonl,cvs]", "telemetry.writers=cvs is not known: choose from jsonl, tensorboard, console"),
    ("telemetry.writers=[jsonl,jsonl]", "telemetry.writers names jsonl twice"),
    ("telemetry.writers=[{jsonl:{},console:{}}]", "telemetry.writers must hold names, or settings"),
    ("telemetry.writers=[{jsonl:{path:x}}]", "telemetry.writers=jsonl does not take {'path': 'x'}"),
    ("telemetry.detail_every=0", "telemetry.detail_every"),
    ("telemetry.anomalies.ratio=1", "telemetry.anomalies.ratio must be above 1, got 1.0: the default is 20.0"),
    ("telemetry.anomalies.gradient_below=200", "telemetry.anomalies.gradient_below must be below gradient_above=100.0"),
]

# Overrides that do not compose, and a pattern of the sentence.
MALFORMED: list[tuple[str, str]] = [
    ("+seed_root=1", "no key seed_root"),
    ("+reward.coefficient=1", "no key reward.coefficient"),
    ("reward.rnt=1", "no key reward.rnt: reward has .*; did you mean rent?"),
    ("rent=1", "did you mean reward.rent?"),
    ("sede=1", "no key sede: .*; did you mean seed?"),
    ("rewrd=shaped", "no key rewrd: .*; did you mean reward?"),
    ("++foo=1", "no key foo"),
    ("~foo", "no key foo"),
    ("seed.low=1", "seed is a single value"),
    ("reward=spars", "no option spars in group reward: choose from shaped, simplified, .*; did you mean sparse?"),
    ("reward=null", "no option null in group reward"),
    ("reward=[shaped,sparse]", "reward takes one option"),
    ("reward=shaped,sparse", "add -m"),
    ("blueprint=norm,conv_light", "add -m .* or write 'blueprint=\\[norm,conv_light\\]'"),
    ("blueprint=[norm,conv_lite]", "no option conv_lite .*; did you mean conv_light?"),
    ("blueprint=[norm] blueprint.conv_light.kernel=5", "add 'blueprint=\\[norm,conv_light\\]'"),
    ("experiment=healthi", "no option healthi in group experiment: .*; did you mean healthy?"),
    ("sweep=nothing", "choose from ab, ab_reward"),
    ("devices=[cuda:9]", "no option cuda:9 in group devices"),
    ("devices=[]", "devices is not set: choose"),
    ("reward_mode=nope", "no option nope in group reward_mode: choose from .*shaped"),
    ("reward_mode=spars", "did you mean sparse?"),
    ("reward=shaped reward_mode=sparse", "reward=shaped and reward_mode=sparse choose from the same group: leave one out"),
    ("slots=[r0c0]", r"to name slots, write 'slots.where=\[r0c0\]'"),
    ("slots=r0c1", r"write 'slots.where=\[r0c1\]'"),
    ("slots=[pre,post]", "slots takes one option"),
    ("telemetry.console=false", r"no key telemetry.console any more: write telemetry.writers"),
    ("choices.reward=sparse", "no key choices"),
    ("+choices.reward=sparse", "no key choices"),
    ("telemetry.writers=5", "telemetry.writers must be a list, each any value, got 5"),
    ("~reward", "reward is not set: choose one of shaped, simplified, basic, basic_plus, sparse, "),
    ("seed=abc", "seed must be a whole number, got abc"),
    ("updates=1.5", "updates must be a whole number, got 1.5"),
    ("seed=null", "seed must be a whole number, got null"),
    ("seed=1,2", "add -m"),
    ("reward.rent=much", "reward.rent must be a number, got much"),
    ("resume=[1]", "resume must be text or null"),
    ("task.instances=wounded", "task.instances must be one of lesioned, healthy, got wounded"),
    ("task.kinds=5", "task.kinds must be a list, each text"),
    ("seed=[1", "cannot read 'seed=\\[1'"),
    ("seed", "cannot read 'seed': write key=value"),
    ("=3", "cannot read '=3'"),
    ("seed=${nowhere}", "nowhere"),
    ("hydra.run.folder=x", "hydra.run.folder"),
]


@pytest.fixture(scope="module", autouse=True)
def composed_once() -> Iterator[None]:
    """Equal choices of groups are composed once for all tests of this file; keys are applied to a copy."""
    original = overrides._composed
    compose = cache(lambda groups, name: original(list(groups), name))

    def composed(groups: list[str], name: str) -> tuple[DictConfig, dict[str, Any]]:
        return deepcopy(compose(tuple(groups), name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overrides, "_composed", composed)
        yield


def refusal(words: str) -> C.ConfigError:
    """Return the error of these overrides."""
    with pytest.raises(C.ConfigError) as raised:
        check(words.split())
    return raised.value


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_composes_and_is_its_type(group: str, name: str) -> None:
    word = f"{group}=[{name}]" if group in C.MANY else f"{group}={name}"
    part = getattr(check([word, *NEEDED.get(word, ())]), group)
    node = part[name] if group in C.MANY else part
    assert type(node) is C.GROUPS[group][name]
    assert not isinstance(part, dict) or list(part) == [name]


@pytest.mark.parametrize("name", help_page.yaml_names("task"))
def test_every_preset_of_a_task_has_another_host(name: str) -> None:
    config = check([f"task={name}"])
    base = check([f"task={C.table_name('task', type(config.task))}"])
    assert (config.task == base.task) == (not config.host.frozen), "a world of deployed hosts has keys of its own"
    assert config.host != base.host
    chosen = check([f"task={name}", "slots=one_seed", "env=growth", "reward=sparse", "blueprint=[norm]"])
    plain = check(["slots=one_seed", "env=growth", "reward=sparse"])
    assert (chosen.slots, chosen.env, chosen.reward) == (plain.slots, plain.env, plain.reward), "what is chosen holds"
    assert list(chosen.blueprint) == ["norm"]


@pytest.mark.parametrize("name", help_page.yaml_names("host"))
def test_every_preset_of_a_host_differs_from_its_default_and_builds(name: str) -> None:
    kind = name.partition("_")[0]
    task = "task=tinystories" if kind == "transformer" else "task=cifar10_baseline"
    host = check([task, f"host={name}"]).host
    assert type(host) is C.GROUPS["host"][kind]
    assert host != check([task, f"host={kind}", *(["host.context=256"] if kind == "transformer" else [])]).host
    assert slot_specs(host.build((3, 32, 32), 10, [False] * host.num_parts()))


@pytest.mark.parametrize("name", list(C.GROUPS["task"]))
def test_a_task_comes_with_its_default_host_and_takes_another(name: str) -> None:
    default = check([f"task={name}"])
    chosen = C.GROUPS["task"][name].default_host
    assert check([f"host={chosen}", f"task={name}"]) == default
    assert check([f"experiment={'python_text' if name == 'digits' else 'healthy'}", f"task={name}"]).host == default.host
    mine = ["host=custom", "host.path=mine:Host", "task.instances=healthy"]
    context = default.host.sequence_length()
    assert type(check([f"task={name}", *mine, f"host.context={context}"]).host) is CustomConfig


def test_a_task_comes_with_its_default_governor_and_takes_another(own_parts: None) -> None:
    @dataclasses.dataclass(kw_only=True, slots=True)
    class DriftingConfig(DigitsConfig):
        """Digits that drift."""

        default_governor = "tolerant"

    esper.register("task", "drifting", DriftingConfig)
    trained = check(["task=drifting", "governor.penalty=3"])
    assert trained.governor == TolerantWatchdogConfig(penalty=3)
    assert check(["task=drifting", "governor=strict"]).governor == check(["governor=strict", "task=drifting"]).governor
    assert type(check(["governor=strict", "task=drifting"]).governor) is StrictWatchdogConfig
    assert [type(job.governor) for job in check_sweep(["task=drifting,digits"])] == [TolerantWatchdogConfig, WatchdogConfig]
    assert check_over(trained, ["steps=30"]).governor == trained.governor
    assert check_over(trained, ["task=digits"]).governor == WatchdogConfig()
    assert check_over(check([]), ["task=drifting"]).governor == TolerantWatchdogConfig()


def test_a_world_brings_its_objective_and_slots_unless_others_are_chosen() -> None:
    world, plain = check(["task=digits_drift"]), check([])
    assert (world.choice("reward"), world.choice("slots"), world.host.frozen) == ("online", "one_permanent", True)
    assert (plain.choice("reward"), plain.choice("slots"), plain.host.frozen) == ("shaped", "one_seed", False)
    for chosen in (["reward_mode=sparse", "task=digits_drift"], ["task=digits_drift", "reward=sparse", "slots=one_seed"]):
        assert check(chosen).choice("reward") == "sparse"
    assert check_over(plain, ["task=digits_drift"]).reward == plain.reward, "an evaluation pays as the run did"


def test_a_sweep_over_tasks_gives_each_its_host() -> None:
    jobs = check_sweep(["task=digits,python_text,digits_mlp"])
    assert [type(job.host) for job in jobs] == [CNNConfig, TransformerConfig, MLPConfig]
    jobs = check_sweep(["host=cnn,mlp"])
    assert [(type(job.task), type(job.host)) for job in jobs] == [(DigitsConfig, CNNConfig), (DigitsConfig, MLPConfig)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("task.host.kernel=1", "there is no key task.host.kernel any more: write host.kernel"),
        ("task=python_text task.host.width=8", "there is no key task.host.width any more: write host.width"),
        ("+task.host.kernel=1", "there is no key task.host.kernel any more: write host.kernel"),
    ],
)
def test_a_former_key_is_refused_with_its_new_name(words: str, sentence: str) -> None:
    assert str(refusal(words)) == sentence
    if not words.startswith("+"):
        with pytest.raises(C.ConfigError, match=sentence):
            check_sweep([*words.split()[:-1], f"{words.split()[-1]},2"])
        with pytest.raises(C.ConfigError, match=sentence):
            check_over(check([]), words.split())


@pytest.mark.parametrize("name", list(C.GROUPS["reward"]))
def test_reward_mode_is_a_second_name_of_reward(name: str) -> None:
    assert check([f"reward_mode={name}"]) == check([f"reward={name}"])


def test_options_of_a_list_keep_their_own_fields() -> None:
    config = check(["blueprint=[norm,conv_light]", "blueprint.conv_light.kernel=5", "devices=[cuda:1,cpu]"])
    assert [type(node) for node in config.blueprint.values()] == [C.GROUPS["blueprint"][n] for n in ("norm", "conv_light")]
    assert getattr(config.blueprint["conv_light"], "kernel", None) == 5
    assert list(config.devices) == ["cuda:1", "cpu"]


@pytest.mark.parametrize("name", help_page.yaml_names("experiment"))
def test_every_experiment_changes_something(name: str) -> None:
    assert check([f"experiment={name}"]) != check([])


def test_the_command_line_overrides_an_experiment() -> None:
    assert getattr(check(["experiment=healthy"]).task, "instances", None) == "healthy"
    assert getattr(check(["experiment=healthy", "task.instances=lesioned"]).task, "instances", None) == "lesioned"


ARMS = ["hydra.sweeper.arms='reward: shaped,sparse'"]
TUNE = ["agent.hidden=16,32"]


@pytest.mark.parametrize("name", help_page.yaml_names("sweep"))
def test_every_sweep_composes_to_several_jobs(name: str) -> None:
    jobs = check_sweep([f"sweep={name}", *(TUNE if name == "tune" else ARMS)])
    assert len(jobs) > 1
    assert all(a != b for a, b in pairwise(jobs))


def test_arms_of_the_comparison_share_their_seeds() -> None:
    shaped, sparse, again = check_sweep(["sweep=ab_reward"])
    assert [type(job.reward).__name__ for job in (shaped, sparse, again)] == ["ShapedConfig", "SparseConfig", "ShapedConfig"]
    assert shaped.seed == sparse.seed == again.seed
    assert again.policy_seed is not None


def test_a_sweep_runs_every_combination() -> None:
    jobs = check_sweep(["reward=shaped,sparse", "seed=1,2", "hosts=4"])
    assert [(type(job.reward).__name__, job.seed, job.hosts) for job in jobs] == [
        ("ShapedConfig", 1, 4),
        ("ShapedConfig", 2, 4),
        ("SparseConfig", 1, 4),
        ("SparseConfig", 2, 4),
    ]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("reward=shaped,spars", "no option spars"),
        ("seed=1,-1", "seed must be at least 0"),
        ("sede=1,2", "no key sede"),
        ("seed=1,two", "seed must be a whole number, got two"),
        ("seed=interval(1,2)", "is not a list of values"),
        ("sweep=a", "no option a in group sweep"),
        ("sweep=ab", "there are no arms to compare"),
    ],
)
def test_one_bad_arm_refuses_the_sweep(words: str, word: str) -> None:
    with pytest.raises(C.ConfigError, match=word):
        check_sweep(words.split())


@pytest.mark.parametrize(("words", "word"), MALFORMED)
def test_a_malformed_command_is_one_sentence(words: str, word: str) -> None:
    sentence = str(refusal(words))
    assert re.search(word, sentence)
    assert "\n" not in sentence


def test_gates_that_outlast_the_episode_warn() -> None:
    with pytest.warns(UserWarning, match=r"no seed can be fossilized: with these gates that takes 22 host epochs.* steps=21"):
        check(["gates=strict", "steps=21"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(["gates=strict", "steps=22"])
        check([])
        check(["agent.heads.tempo=free"])
    with pytest.warns(UserWarning, match="takes 10 host epochs"):
        check(["agent.heads.tempo=slow", "steps=9"])


def config_classes() -> Iterator[type]:
    """Every dataclass of the config: the root, the options, and what their fields are made of."""
    todo: list[Any] = [C.Config, *(node for options in C.GROUPS.values() for node in options.values())]
    seen: set[type] = set()
    while todo:
        node = todo.pop()
        if get_args(node):
            todo += get_args(node)
        elif dataclasses.is_dataclass(node) and node not in seen:
            assert isinstance(node, type)
            seen.add(node)
            yield node
            fields = [hint for hint in get_type_hints(node).values() if get_origin(hint) is not ClassVar]
            todo += [*node.__mro__[1:], *fields]


CLASSES = sorted(config_classes(), key=lambda node: (node.__module__, node.__name__))
MODULES: list[ModuleType] = [sys.modules[name] for name in sorted({node.__module__ for node in CLASSES})]


def rules() -> set[tuple[str, int, int]]:
    """File and lines of every `raise ValueError` that a __post_init__ can reach: its own, and those of what it calls."""
    trees = {str(module.__file__): ast.parse(Path(str(module.__file__)).read_text()) for module in MODULES}
    functions = [(file, node) for file, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    called = {"__post_init__"}
    for _, function in functions:
        if function.name == "__post_init__":
            for call in ast.walk(function):
                if isinstance(call, ast.Call):
                    called.add(getattr(call.func, "attr", getattr(call.func, "id", "")))
    return {
        (file, line.lineno, line.end_lineno or line.lineno)
        for file, function in functions
        if function.name in called
        for line in ast.walk(function)
        if isinstance(line, ast.Raise)
    }


def test_every_rule_fires_and_has_a_line_that_breaks_it() -> None:
    fired: set[tuple[str, int]] = set()
    for words, sentence in BAD:
        error = refusal(words)
        assert sentence in str(error), words
        assert "\n" not in str(error), words
        broken = error.__cause__
        assert broken is not None, words
        last = traceback.extract_tb(broken.__traceback__)[-1]
        fired.add((last.filename, last.lineno or 0))
    silent = [
        f"{Path(file).name}:{first}"
        for file, first, last in sorted(rules())
        if not any(where == file and first <= line <= last for where, line in fired)
    ]
    assert not silent, f"add a line to BAD for the rules at {', '.join(silent)}"


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.__name__)
def test_every_config_and_field_has_a_docstring(node: type) -> None:
    assert inspect.getdoc(node)
    assert not (node.__doc__ or "").startswith(f"{node.__name__}("), "the docstring made by dataclass only lists the fields"
    assert "__slots__" in vars(node), "without slots, a misspelt key sets a stray attribute"
    missing = [field.name for field in dataclasses.fields(node) if field.name not in help_page.field_docs(node)]
    assert not missing, f"no docstring under {', '.join(missing)}"


def test_group_fields_are_left_to_the_groups() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(C.Config)}
    assert all(defaults[group] == "???" for group in C.GROUPS)


def test_no_yaml_hides_a_dataclass() -> None:
    table = {Path(group, f"{name}.yaml") for group, options in C.GROUPS.items() for name in options}
    found = {path.relative_to(C.CONF) for path in C.CONF.rglob("*.yaml")}
    assert not found & table
    assert {path.parts[0] for path in found if len(path.parts) > 1} == {"task", "host", "slots", "env", "experiment", "sweep"}
    assert not (C.CONF / "schema.yaml").exists()


def test_yaml_holds_choices_and_the_schema_comes_first() -> None:
    root = yaml.safe_load((C.CONF / "config.yaml").read_text())
    assert root["defaults"][:2] == ["schema", "_self_"]
    assert set(root) == {"defaults", "hydra"}


def test_help_shows_every_group_and_the_keys_of_every_run() -> None:
    text = help_page.help_text("About.")
    for group, options in help_page.groups().items():
        assert f"\n  {group}" in text
        assert all(option in text for option in options)
    assert all(f"\n  {key}" in text for key in ("seed=0", "updates=50", "resume=null", "plugins"))
    assert max(map(len, text.splitlines())) <= 120
