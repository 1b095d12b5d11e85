"""Rules between and within configs: for each one, overrides that break it, and what the error says."""

import ast
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from esper.cli.overrides import check
from tests.composed import refusal
from tests.config_classes import CLASSES

CUSTOM = "host=custom host.path=mine:Host task.instances=healthy"

# Overrides that break a rule, and part of the error. Every rule of every config has a line here.
BAD: list[tuple[str, str]] = [
    ("host.frozen=true task.pretrain=1 gates=strict", "needs gradients of the host, and host.frozen=true computes none"),
    (
        "host.frozen=true task.pretrain=1 gates.min_improvement=0.5",
        "gates.min_improvement=0.5 can never be met: with host.frozen",
    ),
    ("slots=in_service gates=strict steps=40", "gates.min_gradient_ratio=0.1 can never be met: gates.min_training=10 delays"),
    (
        "task=digits_drift gates=strict gates.min_gradient_ratio=null",
        "at least 10, lower gates.min_training, or set gates.max",
    ),
    ("slots.learning_epochs=1 slots.auto_advance=[] gates.max_gradient_norm=1", "raise slots.learning_epochs to at least 2"),
    (
        "env=sandbox slots.learning_epochs=2",
        "trains no seeds, so slots.learning_epochs=2 has no effect: leave it out",
    ),
    ("env=sandbox slots.switchable=true", "env=sandbox needs slots.switchable=false"),
    ("devices.auto.tune=true devices.auto.members_per_shard=2", "tune=true finds members_per_shard by timing"),
    ("task=diabetes task.delta=2.0", "task.delta applies to the Huber loss only"),
    ("task.pretrain=-1", "task.pretrain must be at least 0"),
    ("task=digits_drift task.kinds=[ooo]", "task.kinds has no effect on healthy hosts"),
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
    (
        "hosts=1 devices=[cpu,cuda]",
        "hosts=1 cannot be distributed over 2 devices (cpu, cuda): raise hosts to at least 2, or name fewer devices",
    ),
    (
        "hosts=3 cluster=processes cluster.workers=4",
        "hosts=3 cannot be distributed over 4 workers with 1 device (auto): raise hosts to at least 4, or lower cluster.workers",
    ),
    ("hosts=3 cluster=ray cluster.workers=4", "hosts=3 cannot be distributed over 4 workers with 1 device"),
    ("cluster=ray devices.auto.tune=true", "workers train the hosts"),
    ("cluster=ray cluster.workers=0", "cluster.workers"),
    ("task.batch_size=0", "task.batch_size"),
    ("optimiser.learning_rate=0", "optimiser.learning_rate must be finite and above 0"),
    ("optimiser.weight_decay=-1", "optimiser.weight_decay must be finite and at least 0"),
    ("optimiser.max_norm=0", "optimiser.max_norm must be above 0"),
    ("optimiser.momentum=1", "optimiser.momentum must be in [0, 1), got 1"),
    ("optimiser=nesterov optimiser.momentum=-0.1", "optimiser.momentum must be in [0, 1), got -0.1"),
    ("optimiser.warmup=1", "optimiser.warmup must be in [0, 1), got 1"),
    ("optimiser.micro_batches=0", "optimiser.micro_batches must be at least 1"),
    ("optimiser.micro_batches=129", "optimiser.micro_batches=129 exceeds task.batch_size=128: lower optimiser.micro_batches"),
    ("optimiser=adamw optimiser.beta1=1", "optimiser.beta1 must be in [0, 1), got 1"),
    ("optimiser=adamw optimiser.beta2=-1", "optimiser.beta2 must be in [0, 1), got -1"),
    ("optimiser=adamw optimiser.eps=0", "optimiser.eps must be finite and above 0"),
    ("optimiser.seeds.learning_rate=0", "optimiser.seeds.learning_rate must be finite and above 0"),
    ("optimiser.seeds.weight_decay=inf", "optimiser.seeds.weight_decay must be finite and at least 0"),
    ("optimiser.seeds.max_norm=-1", "optimiser.seeds.max_norm must be above 0"),
    ("optimiser.seeds.warmup_batches=-1", "optimiser.seeds.warmup_batches must be at least 0"),
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
    ("task=digits_drift task.events.passing=[mirror]", "task.events.passing names mirror, which never happens"),
    (
        "steps=40 task.events.kinds=[invert] task.events.count=[2] task.events.last=30",
        "task.events.lasts=0 is forever, and a second event of the same kind would change nothing",
    ),
    ("task=digits_drift task.events.lasts=[0]", "task.events.passing needs every task.events.lasts to be at least 1"),
    ("task=digits_drift steps=10", "task.events.last=14 must be below steps=10"),
    ("task.data_share=[0.5] task.events.kinds=[leave]", "task.data_share cannot limit arriving and leaving classes"),
    ("task.label_noise=[0.1] task.events.kinds=[arrive]", "task.label_noise would give samples classes that have not arrived"),
    ("task.classes=[3] task.label_noise=[0.1] task.events.kinds=[relabel]", "task.classes with task.label_noise and relabelling"),
    ("task=mnist5k task.crop_padding=-1", "task.crop_padding"),
    ("task=svhn task.crop_padding=128", "task.crop_padding"),
    ("task=image_arrays task.channels=middle", "task.channels must be first, last or empty, got middle"),
    ("task=image_folder task.size=7", "task.size must be in [8, 1024], got 7"),
    ("task=diabetes task.delta=0", "task.delta must be finite and above 0"),
    ("task=diabetes task.objective=mae", "task.objective"),
    ("task=diabetes task.label_noise=[0.1]", "task.label_noise exchanges classes, and the targets of this task are numbers"),
    ("task=diabetes task.events.kinds=[relabel]", "kinds out of noise, slow, fast, each at most once"),
    ("task=python_text task.mapped=true task.events.kinds=[prose]", "task.mapped=true keeps data out of memory"),
    ("task=image_folder task.mapped=true task.events.kinds=[turn]", "task.mapped=true keeps data out of memory"),
    ("task=text_folder task.pattern=texts/*.txt", "task.pattern must be a pattern of file names without folders, as in *.txt"),
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
    ("devices.auto.precision=fp8", "devices.auto.precision"),
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
    (
        "agent=schedule agent.actions=[{op:set_alpha_target,alpha_target:full}]",
        "set agent.heads.alpha_target=free, or slots.switchable",
    ),
    ("agent=schedule agent.actions=[{blueprint:attention}]", "blueprint=attention in agent.actions is not available"),
    (
        "agent=schedule slots.incubation=none agent.heads.tempo=free agent.actions=[{blueprint:norm,tempo:fast}]",
        "tempo=fast in agent.actions has no effect with slots.incubation=none",
    ),
    ("agent=periodic agent.first=-1", "agent.first"),
    ("agent=periodic agent.every=0", "agent.every"),
    ("agent=best_of_random agent.most=-1", "agent.most"),
    ("env.timetable=true", "env.timetable=true needs events, and task.events.kinds is empty"),
    ("agent=react env=sandbox", "agent=react reads measurements of hosts, and this env=sandbox has none: choose another agent"),
    ("agent=greedy_potential env=blind", "this env=growth has none: set env.potential=true, or choose"),
    (
        "agent=event_oracle task=digits_drift",
        "agent=event_oracle reads the timetable of events, and this env=growth has none: add env.timetable=true, with a task ",
    ),
    (
        "agent=event_oracle task=digits_drift env.timetable=true agent.delay=20",
        "agent.delay=20 is as long as an episode or longer: choose a delay below steps=20",
    ),
    ("agent=event_oracle env=sandbox", "this env=sandbox has none: choose another agent"),
    ("agent=react_bandit agent.drop=0", "agent.drop must be"),
    ("agent.imitation=0.5", "agent.imitation=0.5 has no effect without a teacher"),
    ("agent.teacher=heuristic agent.imitation=0", "agent.imitation must be"),
    ("agent=bandit agent.exploration=2", "agent.exploration"),
    ("slots.learning_epochs=-1", "slots.learning_epochs"),
    ("agent=best_of_random agent.latest=-1", "agent.latest"),
    ("agent=schedule_bandit agent.latest=20", "agent.latest=20 is after the end of the episode, steps=20"),
    ("agent=schedule_bandit agent.memory=1", "agent.memory"),
    ("agent=schedule_bandit agent.twins=0", "agent.twins"),
    ("agent=schedule_bandit hosts=6", "hosts=6 is not a multiple of agent.twins=4: set hosts to 8, or agent.twins=1"),
    ("agent=best_of_random agent.latest=20", "agent.latest=20 is after the end of the episode, steps=20"),
    ("agent=heuristic agent.patience=-1", "agent.patience"),
    ("agent=heuristic agent.threshold=inf", "agent.threshold"),
    (
        "agent=heuristic agent.plateau=20",
        "agent.plateau=20 has no effect with agent.patience=2, since no plateau is known before epoch",
    ),
    ("agent=greedy_potential agent.at=0", "agent.at"),
    ("agent=greedy_potential agent.at=20", "agent.at=20 is after the end of the episode, steps=20: choose an earlier time"),
    ("agent=greedy_potential agent.threshold=-1", "agent.threshold"),
    ("agent=greedy_potential agent.errors=nan", "agent.errors"),
    ("reward=basic_plus reward.min_steps=0", "reward.min_steps"),
    ("reward=escrow reward.window=0", "reward.window"),
    ("reward=escrow reward.window=25", "reward.window=25 exceeds steps=20"),
    ("reward.hindsight=1", "slots.max_seeds=1 allows one"),
    ("reward.auto_prune_cost=1", "no rule of slots removes seeds"),
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
    ("telemetry.writers=[jsonl,cvs]", "telemetry.writers=cvs is not known: choose from jsonl, tensorboard, console, csv"),
    ("telemetry.writers=[jsonl,jsonl]", "telemetry.writers names jsonl twice"),
    ("telemetry.writers=[{jsonl:{},console:{}}]", "telemetry.writers must hold names, or settings"),
    ("telemetry.writers=[{jsonl:{path:x}}]", "telemetry.writers=jsonl does not take {'path': 'x'}"),
    ("telemetry.writers=[jsonl,{csv:{delimiter:xy}}]", "telemetry.writers=csv needs a delimiter of one character"),
    ("telemetry.writers=[jsonl,{csv:{delimiter:[a]}}]", "telemetry.writers=csv needs delimiter to be a text, got ['a']"),
    ("telemetry.writers=[jsonl,{aim:{tags:vision}}]", "telemetry.writers=aim needs tags to be a list, got 'vision'"),
    ("telemetry.writers=[jsonl,{mlflow:{tags:[a]}}]", "telemetry.writers=mlflow needs tags to be as in {a:b}, got ['a']"),
    ("telemetry.writers=[jsonl,{wandb:{tags:[{a:b}]}}]", "telemetry.writers=wandb needs tags[0] to be a text, got {'a': 'b'}"),
    ("telemetry.writers=[jsonl,{wandb:{mode:dry}}]", "telemetry.writers=wandb has no mode dry: choose from online, offline"),
    ("telemetry.writers=[jsonl,{mlflow:{project:x}}]", "telemetry.writers=mlflow does not take {'project': 'x'}"),
    ("telemetry.writers=[jsonl,{aim:{server:x}}]", "telemetry.writers=aim does not take {'server': 'x'}"),
    ("telemetry.detail_every=0", "telemetry.detail_every"),
    ("telemetry.page_hosts=-1", "telemetry.page_hosts"),
    ("telemetry.page_hosts=1", "telemetry.page_hosts=1 gives no interval"),
    ("telemetry.anomalies.ratio=1", "telemetry.anomalies.ratio must be above 1, got 1.0: the default is 20.0"),
    ("telemetry.anomalies.gradient_below=200", "telemetry.anomalies.gradient_below must be below gradient_above=100.0"),
]

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
    for overrides, sentence in BAD:
        error = refusal(overrides)
        assert sentence in str(error), overrides
        assert "\n" not in str(error), overrides
        broken = error.__cause__
        assert broken is not None, overrides
        last = traceback.extract_tb(broken.__traceback__)[-1]
        fired.add((last.filename, last.lineno or 0))
    silent = [
        f"{Path(file).name}:{first}"
        for file, first, last in sorted(rules())
        if not any(where == file and first <= line <= last for where, line in fired)
    ]
    assert not silent, f"add a line to BAD for the rules at {', '.join(silent)}"


def test_gates_that_outlast_the_episode_warn() -> None:
    strict = r"no seed can be fossilized: with these gates that takes 22 host epochs.* steps=21: .*, or lower gates.min_training "
    with pytest.warns(UserWarning, match=f"{strict}or gates.min_blending$"):
        check(["gates=strict", "steps=21"])
    with pytest.warns(UserWarning, match=r"no seed can be fossilized: .* steps=3: raise steps to well above \d+$"):
        check(["gates.min_training=1", "gates.min_blending=0", "steps=3"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(["gates=strict", "steps=22"])
        check([])
        check(["agent.heads.tempo=free"])
        check(["slots.prune_after=9", "agent.heads.tempo=slow"])
        check(["slots.learning_epochs=10", "gates=strict", "steps=22"])
        check(["slots.learning_epochs=1", "gates.max_gradient_norm=1"])
        check(["host.frozen=true", "task.pretrain=1", "gates.min_improvement=0"])
        check(["task=digits_drift", "slots.incubation=closed_loop", "gates.min_improvement=0.5"])
    with pytest.warns(UserWarning, match="takes 10 host epochs"):
        check(["agent.heads.tempo=slow", "steps=9"])
    with pytest.warns(UserWarning, match=r"takes 10 host epochs, and slots\.prune_after=8 removes every seed before"):
        check(["slots.prune_after=8", "agent.heads.tempo=slow"])


@pytest.mark.parametrize(
    ("key", "without", "sentence"),
    [
        ("reward.rent_unit=flops", "reward.rent=0", r"^reward\.rent_unit=flops has no effect with reward\.rent=0: leave it out$"),
        ("reward.most=3", "reward.escrow=0", r"^reward\.most=3\.0 has no effect with reward\.escrow=0: leave it out$"),
        ("policy_seed=3", "agent=bandit", "^policy_seed=3 has no effect with agent=bandit: leave it out$"),
    ],
)
def test_a_key_without_effect_warns(key: str, without: str, sentence: str) -> None:
    """An error would refuse sweeps in which it has an effect on some runs, such as reward.rent=0,0.5 or agent=ppo,bandit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(["reward=escrow", key])
        check(["reward=escrow", without])
    with pytest.warns(UserWarning, match=sentence) as told:
        check(["reward=escrow", key, without])
    assert {one.filename for one in told} == {"<string>"}, "which the command shows as a sentence"
