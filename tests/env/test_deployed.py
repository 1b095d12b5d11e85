"""Deployed hosts: frozen, and trained before the episode."""

import importlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from esper.checkpoint import encode
from esper.cli.overrides import check
from esper.config import HOSTS
from esper.env.actions import Op
from esper.env.base import EnvParts
from esper.env.growth_env import GrowthConfig, GrowthEnv
from esper.fusion.precision import Precision
from esper.governor.watchdog import StrictWatchdogConfig
from esper.growth.network import GrowingNetwork
from esper.hosts.base import HostConfig
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import EveryBlockConfig
from esper.lifecycle.stages import LIVE, Stage
from esper.optimisers.base import SeedSettingsConfig
from esper.optimisers.sgd import SGDConfig
from esper.pool.base import PoolParts
from esper.pool.devices import DeviceConfig
from esper.pool.local import ShardPool
from esper.pool.pretrained import Pretrained
from esper.reward.modes import OnlineConfig
from esper.seeds.blueprints.dense import LoraConfig, MLPSeedConfig
from esper.task.base import POOL, TaskConfig
from esper.task.data import TaskError
from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.instances import Instances, Split
from esper.task.loading import load_task
from esper.task.python_text import PythonTextConfig
from esper.training.estimate import estimate
from tests.env_fixtures import BLUEPRINTS

HOSTS_OF: dict[str, tuple[TaskConfig, HostConfig]] = {
    "cnn": (DigitsConfig(batch_size=256, epoch_samples=256), CNNConfig(frozen=True)),
    "mlp": (DigitsConfig(batch_size=256, epoch_samples=256), MLPConfig(frozen=True)),
    "transformer": (PythonTextConfig(epoch_samples=64, valid_samples=16), TransformerConfig(frozen=True, context=16)),
}
DENSE = {"lora": LoraConfig(), "mlp_small": MLPSeedConfig()}


def state_of(env: GrowthEnv) -> list[dict[str, bytes]]:
    """Return the bits of all hosts without their seeds."""
    rows = [shard.network.rows() for shard in env.pool.shards]
    return [{name: row.numpy().tobytes() for name, row in part.items() if not name.startswith("seed")} for part in rows]


@pytest.mark.parametrize("incubation", list(Incubation))
@pytest.mark.parametrize("name", list(HOSTS_OF))
def test_a_frozen_host_never_changes_while_its_seeds_learn(name, incubation, random_actions):
    task, host = HOSTS_OF[name]
    parts = EnvParts(
        task=task,
        host=host,
        slots=EveryBlockConfig(incubation=incubation, min_prune_age=1, auto_advance=["training", "blending"]),
        blueprints=BLUEPRINTS if name == "cnn" else DENSE,
        reward=OnlineConfig(),
        governor=StrictWatchdogConfig(),
        devices={"cpu": DeviceConfig(members_per_shard=2)},
        gamma=0.9,
        num_hosts=3,
        num_steps=7,
    )
    env = GrowthEnv(load_task(task, host), parts, GrowthConfig())
    observation, _ = env.reset(seed=3)
    born, seeds = state_of(env), set[int]()
    for step in range(6):
        observation, reward, *_, info = env.step(random_actions(observation, step))
        assert state_of(env) == born
        assert all(np.isfinite(array).all() for array in observation.values())
        assert np.isfinite(reward).all()
        assert np.isfinite(info["signals"].train_loss_N).all()
        seeds |= {
            hash(row.numpy().tobytes()) for key, row in env.pool.shards[0].network.rows().items() if key.startswith("seed/")
        }
    assert len(seeds) > 3, "seeds learn"
    env.close()


@pytest.mark.parametrize("incubation", [Incubation.closed_loop, Incubation.straight_through])
def test_a_seed_that_learns_no_longer_leaves_no_gradient_to_the_next_one(incubation, plan_actions):
    parts = EnvParts(
        task=DigitsConfig(epoch_samples=256),
        host=CNNConfig(),
        slots=EveryBlockConfig(incubation=incubation, learning_epochs=1, min_prune_age=1, auto_advance=["training"]),
        blueprints=BLUEPRINTS,
        reward=OnlineConfig(),
        governor=StrictWatchdogConfig(),
        devices={"auto": DeviceConfig()},
        gamma=0.9,
        num_hosts=2,
        num_steps=6,
    )
    env = GrowthEnv(load_task(parts.task, parts.host), parts, GrowthConfig())
    env.reset(seed=0)
    for op in (Op.GERMINATE, Op.WAIT, Op.WAIT, Op.WAIT):
        env.step(plan_actions(*[(op, 0, 1)] * 2))
    assert (env.state.stage[:, 0] == Stage.TRAINING).all()
    for bank in env.pool.shards[0].network.banks.values():
        assert bank.fleet.flat.grad is None or not bank.fleet.flat.grad.any()
    env.close()


@pytest.mark.parametrize("name", list(HOSTS_OF))
@pytest.mark.parametrize("incubation", [Incubation.none, Incubation.straight_through])
def test_seeds_of_frozen_hosts_learn_the_same_whether_or_not_the_other_hosts_are_computed(
    name, incubation, random_actions, monkeypatch
):
    task, host = HOSTS_OF[name]
    slots = EveryBlockConfig(incubation=incubation, learning_epochs=2, auto_advance=["training", "blending"])
    skipped = list[int]()

    def grown(whole: bool) -> list[npt.NDArray[np.float32]]:
        with monkeypatch.context() as patch:
            if whole:
                patch.setattr(GrowingNetwork, "_updated_members_of", lambda *_: None)
            parts = EnvParts(
                task=task,
                host=host,
                slots=slots,
                blueprints=BLUEPRINTS if name == "cnn" else DENSE,
                reward=OnlineConfig(),
                governor=StrictWatchdogConfig(),
                devices={"cpu": DeviceConfig(members_per_shard=5)},
                gamma=0.9,
                num_hosts=5,
                num_steps=7,
            )
            env = GrowthEnv(load_task(task, host), parts, GrowthConfig())
            observation, _ = env.reset(seed=3)
            for step in range(6):
                observation, *_ = env.step(random_actions(observation, step))
                network = env.pool.shards[0].network
                skipped.append(0 if network._updated_members is None else 5 - len(network._updated_members.members_L))
            env.close()
            return [row.numpy().copy() for row in network.rows().values()]

    for some, every in zip(grown(whole=False), grown(whole=True), strict=True):
        np.testing.assert_allclose(some, every, rtol=1e-5, atol=1e-7)
    assert {0, 5} < set(skipped) | {0, 5}, "sometimes only some hosts have something to learn"


def test_the_governor_restores_a_frozen_host_and_removes_its_broken_seed(make_env, plan_actions):
    env = make_env(2, 6, host=CNNConfig(frozen=True))
    env.reset(seed=1)
    born = state_of(env)
    wait = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.WAIT, 0, 0)))
    env.step(plan_actions((Op.ADVANCE, 1, 0), (Op.WAIT, 0, 0)))
    (bank,) = env.pool.shards[0].network.banks.values()
    bank.fleet.flat.data[0, -1] = np.nan
    *_, info = env.step(wait)
    assert info["rolled_back"].tolist() == [True, False]
    assert info["signals"].train_loss_N[1] > 0
    observation, *_ = env.step(wait)
    assert not env.state.within(*LIVE).any()
    assert np.isfinite(observation["slots"]).all()
    assert state_of(env) == born


@pytest.mark.parametrize("name", list(HOSTS))
def test_every_host_can_be_frozen(name):
    assert HOSTS[name].__dataclass_fields__["frozen"].default is False


def test_frozen_hosts_without_training_are_a_warning():
    with pytest.warns(UserWarning, match="set task.pretrain to train them first"):
        check(["host.frozen=true"])
    open_gates = ["gates.min_gradient_ratio=null", "gates.min_improvement=null"]
    check(["host.frozen=true", "task.pretrain=1", "gates=strict", *open_gates, "steps=40"])


def test_a_fossil_is_switched_off_and_on_again(make_env, plan_actions):
    slots = EveryBlockConfig(auto_advance=["training", "blending", "holding", "fossilized"], switchable=True)
    env = make_env(2, 12, slots=slots, host=CNNConfig(frozen=True), reward=OnlineConfig(), test_at_end=True)
    observation, _ = env.reset(seed=1)
    wait, switch = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)), plan_actions((Op.SET_ALPHA_TARGET, 1, 0), (Op.WAIT, 0, 0))
    bare_N = env.loss_N
    assert not observation["legal_slots"][:, Op.SET_ALPHA_TARGET].any()
    env.step(plan_actions((Op.GERMINATE, 1, 1), (Op.GERMINATE, 1, 1)))
    while not env.state.within(Stage.FOSSILIZED).any(axis=1).all():
        observation, *_ = env.step(wait)
    assert observation["legal_slots"][:, Op.SET_ALPHA_TARGET].astype(bool).tolist() == [[False, True, False]] * 2
    env.step(switch)
    assert env.state.alpha[:, 1].tolist() == [0.0, 1.0]
    assert env.loss_N[0] == pytest.approx(bare_N[0], rel=1e-6), "the frozen host is as it was"
    *_, info = env.step(wait)
    assert env.loss_N[0] == pytest.approx(bare_N[0], rel=1e-6)
    assert env.loss_N[1] < bare_N[1] - 1e-4
    assert (info["components"]["rent"] < 0).all(), "what is off is held, and costs its rent"
    assert np.isfinite(info["signals"].train_loss_N).all()
    off = env.loss_N[0]
    env.step(switch)
    assert (env.state.alpha[:, 1] == 1).all()
    assert env.loss_N[0] < off
    assert (env.state.stage[:, 1] == Stage.FOSSILIZED).all()


# ---- pretrained hosts


@pytest.fixture
def deployed(tmp_path):
    """Make an environment of pretrained hosts with a cache folder; keyword arguments replace keys of the task."""
    made = []

    def make(hosts, *, folder="cache", frozen=True, twins=1, split=Split.TRAINING, optimiser=None, device=None, **task):
        keys = {"batch_size": 256, "pretrain": 2, "pretrain_pool": 10, "pretrain_folder": str(tmp_path / folder)} | task
        config, host = DigitsConfig(**keys), CNNConfig(frozen=frozen)
        parts = EnvParts(
            task=config,
            host=host,
            optimiser=optimiser or SGDConfig(),
            slots=EveryBlockConfig(),
            blueprints=BLUEPRINTS,
            reward=OnlineConfig(),
            governor=StrictWatchdogConfig(),
            devices={"cpu": device or DeviceConfig()},
            gamma=0.9,
            num_hosts=hosts,
            num_steps=3,
            num_twins=twins,
            split=split,
        )
        made.append(GrowthEnv(load_task(config, host), parts, GrowthConfig()))
        made[-1].reset(seed=5)
        return made[-1]

    yield make
    for env in made:
        env.close()


def hosts_of(env: GrowthEnv) -> dict[str, list[bytes]]:
    """Return the bits of every host, by parameter or buffer."""
    states = env.pool.host_states()
    return {name: [state[name].numpy().tobytes() for state in states] for name in states[0]}


@pytest.fixture
def trainings(monkeypatch):
    """Count the pools that are trained."""
    count, train = [], Pretrained._train
    monkeypatch.setattr(Pretrained, "_train", lambda self, *args: (count.append(1), train(self, *args))[1])
    return count


def test_pretrained_hosts_do_not_depend_on_the_cache_the_number_of_hosts_or_the_shards(deployed, trainings):
    mixed = {"label_noise": [0.0, 0.3], "data_share": [1.0, 0.5], "classes": [0, 5], "rate_factor": [1.0, 0.5]}
    cold = deployed(6, **mixed)
    warm, apart = deployed(6, **mixed), deployed(6, folder="other", **mixed)
    few = deployed(3, device=DeviceConfig(members_per_shard=2), **mixed)
    assert len(trainings) == 2
    bits = hosts_of(cold)
    assert bits == hosts_of(warm) == hosts_of(apart)
    assert hosts_of(few) == {name: rows[:3] for name, rows in bits.items()}
    assert [env.sampler.instances() for env in (warm, apart)] == [cold.sampler.instances()] * 2
    assert len(set(cold.sampler.instances())) > 2
    cold.reset()
    assert hosts_of(cold) != bits, "another episode draws other hosts of the pool"
    assert len(trainings) == 2
    assert hosts_of(deployed(6, split=Split.HELD_OUT, **mixed)) != bits
    assert len(trainings) == 3


def test_the_pool_is_trained_as_the_device_is_set(deployed):
    device = DeviceConfig(members_per_shard=4, resident=False, graphs=False, precision=Precision.bf16)
    pretrained = replace(deployed(1).pretrained, devices={"cpu": device})
    assert pretrained._place() == ("cpu", replace(device, members_per_shard=8))
    assert replace(pretrained, devices={"cpu": DeviceConfig(tune=True)})._place()[1] == DeviceConfig(members_per_shard=8)


def test_pools_are_trained_on_the_cpu_where_only_workers_have_the_device(deployed, trainings):
    """As under cluster=ray from a machine without a GPU; the pool is then that of the CPU."""
    env = deployed(3)
    assert env.pretrained is not None
    remote = replace(env.pretrained, devices={"cuda:9": DeviceConfig()}, pools={})
    found, own = remote.hosts(env.sampler), env.pretrained.hosts(env.sampler)
    assert len(trainings) == 1, "the second is read from the folder"
    for one, other in zip(found, own, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_a_pretrained_host_equals_one_that_trained_alone(deployed):
    env = deployed(4, label_noise=[0.2], rate_factor=[0.5])
    task, states = env.task, env.pool.host_states()
    for index, state in enumerate(states):
        name = task.origin(5, Split.TRAINING, 0, index)
        assert name.episode == POOL
        assert task.instance(5, Split.TRAINING, 0, index) == task.instance(5, Split.TRAINING, POOL, name.index)
        devices = {"cpu": DeviceConfig()}
        pool = ShardPool(PoolParts(task=task, blueprints=(), devices=devices, num_hosts=1, optimiser=SGDConfig()))
        alone = replace(env.sampler, first=name.index, num_hosts=1, episode=POOL)
        pool.start(alone, alone.views())
        born = pool.host_states()[0]
        for time in range(2):
            pool.train(time)
        (trained,) = pool.host_states()
        pool.close()
        off, moved = (max(float((state[key] - other[key]).abs().max()) for key in state) for other in (trained, born))
        assert off < 0.01 * moved
        assert state["segments.0.1.running_mean"].any()


def test_twins_are_copies_of_one_pretrained_host(deployed):
    bits = hosts_of(deployed(6, twins=2))
    assert all(rows[::2] == rows[1::2] for rows in bits.values())
    assert hosts_of(deployed(3)) == {name: rows[::2] for name, rows in bits.items()}
    assert len(set(bits["segments.0.0.weight"])) > 1


def test_what_determines_a_pool_is_in_its_name_and_nothing_else(deployed, trainings):
    deployed(2)
    for same in (
        {"frozen": False},
        {"valid_samples": 100},
        {"device": DeviceConfig(members_per_shard=3)},
        {"optimiser": SGDConfig(seeds=SeedSettingsConfig(max_norm=2.0))},
        {"events": EventsConfig(kinds=["invert", "leave"])},
    ):
        deployed(2, **same)
    assert len(trainings) == 1
    others = ({"pretrain": 1}, {"pretrain_pool": 3}, {"label_noise": [0.1]}, {"optimiser": SGDConfig(momentum=0.5)})
    others += ({"epoch_samples": 512}, {"split_seed": 1}, {"instances": Instances.healthy}, {"batch_size": 128})
    others += ({"events": EventsConfig(kinds=["arrive"], last=16)}, {"device": DeviceConfig(precision=Precision.bf16)})
    others += ({"device": DeviceConfig(own_kernels=False)},)
    for number, other in enumerate(others, 2):
        deployed(2, **other)
        assert len(trainings) == number, other


@pytest.mark.parametrize("damage", [b"", b"nonsense", None, "other"])
def test_a_damaged_file_is_trained_again(deployed, trainings, tmp_path, damage):
    bits = hosts_of(deployed(3))
    (path,) = (tmp_path / "cache").iterdir()
    intact = path.read_bytes()
    wrong = encode({"segments.0.0.weight": torch.zeros(10, 2, 1, 3, 3)})
    path.write_bytes(intact[:-80] + b"0" + intact[-79:] if damage is None else wrong if damage == "other" else damage)
    assert hosts_of(deployed(3)) == bits
    assert len(trainings) == 2
    assert path.read_bytes() == intact
    assert hosts_of(deployed(3)) == bits
    assert len(trainings) == 2


def test_without_a_folder_hosts_are_trained_every_time_with_a_warning(deployed, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match=r"pretrained hosts are not cached: .*task\.pretrain_folder"):
        bits = hosts_of(deployed(3, folder="file"))
    assert bits == hosts_of(deployed(3))


def test_the_cache_of_the_user_is_the_default(deployed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    deployed(2, pretrain_folder="")
    assert len([*(tmp_path / "mine" / "esper" / "pretrained").glob("*.pt")]) == 1


def test_the_cache_of_a_host_of_your_own_and_an_optimiser_of_your_own_knows_all_their_modules(deployed, tmp_path, monkeypatch):
    """With another activation in a layer, say, a host has the same weights and learns others."""
    monkeypatch.syspath_prepend(tmp_path)
    code = {
        "mine_base": "from torch import nn\nclass Base(nn.Module): pass\n",
        "mine_layers": "from torch import nn\nclass Layer(nn.Linear): pass\n",
        "mine": "from mine_base import Base\nfrom mine_layers import Layer\nclass Net(Base): pass\n",
        "mine_optimiser": "from esper.optimisers.sgd import SGDConfig\nclass Mine(SGDConfig): pass\n",
    }
    for name, text in code.items():
        (tmp_path / f"{name}.py").write_text(text)
    mine, env = importlib.import_module("mine"), deployed(1, optimiser=importlib.import_module("mine_optimiser").Mine())
    host, found = mine.Net(), []
    host.add_module("layer", mine.Layer(2, 2))
    for name in (None, None, *code):
        if name:
            (tmp_path / f"{name}.py").write_text(f"{code[name]}# changed\n")
        found.append(env.pretrained._digest(env.sampler, [host], env.views))
    assert len(set(found)) == len(found) - 1, "the first two are equal"


def test_training_that_diverges_is_one_sentence(deployed):
    with pytest.raises(TaskError, match=r"task\.pretrain=2: .* hosts 0, .* lower optimiser\.learning_rate"):
        deployed(2, optimiser=SGDConfig(learning_rate=1e30, max_norm=float("inf")))


def test_the_estimate_counts_pretraining():
    plain, deep = (estimate(check(["task=digits", *more])) for more in ([], ["task.pretrain=5", "task.pretrain_pool=100000"]))
    assert (plain.pretraining, deep.pretraining) == (0, 500_000)
    assert deep.bytes > plain.bytes + 1e9
    assert "500,000 more to pretrain the hosts, unless an earlier run did" in deep.line()
