"""Training and validation of a shard, dealing hosts to shards, and the tables of actions."""

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from esper.env.actions import PARAMETER_HEADS, PINNED, RELEVANT, Head, Op, legal_values, parameters_legal
from esper.fusion.batch_last import suits
from esper.fusion.layout import side_by_side
from esper.fusion.precision import Precision
from esper.growth.network import GrowingNetwork
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.optimisers.sgd import SGDConfig
from esper.pool import local
from esper.pool.base import PoolParts
from esper.pool.devices import DeviceConfig, find_device
from esper.pool.host_sampler import EpochOrder, HostSampler
from esper.pool.local import ShardPool, cpu_members, deal, return_memory
from esper.pool.shard import Shard
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.task.instances import Split
from tests.reference_host import forward, variants

BLUEPRINTS = (NormConfig(), ConvLightConfig())
CPU = torch.device("cpu")


@pytest.fixture
def shard(small_task):
    """Three hosts, two of them with active seeds."""
    hosts = [small_task.host(0, Split.TRAINING, 0, index) for index in range(3)]
    shard = Shard(hosts, BLUEPRINTS, small_task.data, small_task, CPU, optimiser=SGDConfig())
    blueprint = np.array([[1, -1, 0], [-1, -1, -1], [-1, 1, -1]])
    generator = torch.Generator().manual_seed(0)
    for member, slot in np.argwhere(blueprint >= 0):
        bank = shard.network.bank(int(slot), int(blueprint[member, slot]))
        bank.plant(int(member), generator)
        with torch.no_grad():
            bank.fleet.flat[int(member)] += 0.5 * torch.randn(bank.fleet.flat.shape[1], generator=generator)
    live = blueprint >= 0
    nothing = np.zeros_like(live)
    shard.network.arrange(
        Roles(
            blueprint=blueprint,
            blend=np.zeros_like(blueprint),
            alpha=np.where(live, 0.7, 0.0).astype(np.float32),
            behind=nothing,
            open=live,
            learns=live,
            fossil=nothing,
        )
    )
    return shard


@pytest.fixture
def orders():
    return np.stack([np.random.default_rng(host).permutation(96) for host in range(3)])


def rows(shard):
    return {name: row.clone() for name, row in shard.network.rows().items()}


def some_settings():
    real = np.where(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]]), 0.7, 0.0).astype(np.float32)
    off = real.copy()
    off[0, 0] = off[2, 1] = 0.0
    return np.stack([real, off, np.zeros_like(real)])


def test_validation_matches_a_plain_loop(shard, small_task):
    alpha = some_settings()
    seen = shard.validate(alpha)
    shard.network.train(False)
    x, y = small_task.data.valid_x, small_task.data.valid_y
    right = []
    for setting in alpha:
        logits = variants(shard.network, x.repeat(1, 3, 1, 1), setting[None])[0]
        right.append((logits.argmax(-1) == y).numpy())
        loss = [F.cross_entropy(member, y).item() for member in logits]
        np.testing.assert_allclose(seen.loss_VM[len(right) - 1], loss, rtol=1e-5)
    right = np.array(right, dtype=np.float64)
    np.testing.assert_allclose(seen.accuracy_VM, 100 * right.mean(-1), rtol=1e-6)
    gain = right[0] - right
    np.testing.assert_allclose(seen.error_VM, 100 * gain.std(-1) / np.sqrt(len(y)), atol=1e-5)
    assert (seen.error_VM[0] == 0).all()
    assert seen.error_VM[1, 0] > 0
    assert (seen.error_VM[:, 1] == 0).all()  # a host without seeds does not change
    wanted = [np.cov(right[:, member], bias=True) * 1e4 / len(y) for member in range(3)]
    np.testing.assert_allclose(seen.covariance_VVM, np.stack(wanted, -1), atol=1e-9)


def test_validation_and_test_parts_differ(shard, small_task):
    alpha = some_settings()[:1]
    seen = shard.validate(alpha, test=True)
    shard.network.train(False)
    logits = variants(shard.network, small_task.data.test_x.repeat(1, 3, 1, 1), alpha)[0]
    right = (logits.argmax(-1) == small_task.data.test_y).float().mean(-1)
    np.testing.assert_allclose(seen.accuracy_VM[0], 100 * right, rtol=1e-5)
    assert not np.array_equal(seen.loss_VM, shard.validate(alpha).loss_VM)


def test_validation_is_independent_of_batch_size(shard, monkeypatch):
    whole = shard.validate(some_settings())
    monkeypatch.setattr("esper.pool.shard.VALIDATION_BATCH", 7)
    shard.forget()
    parts = shard.validate(some_settings())
    np.testing.assert_array_equal(whole.accuracy_VM, parts.accuracy_VM)
    np.testing.assert_allclose(whole.loss_VM, parts.loss_VM, rtol=1e-5)
    np.testing.assert_allclose(whole.error_VM, parts.error_VM, rtol=1e-5)


def test_validation_has_no_side_effect_on_training(shard, orders):
    shard.train_epoch(EpochOrder(orders))
    before = rows(shard)
    shard.validate(some_settings())
    assert all(row.equal(before[name]) for name, row in shard.network.rows().items())
    assert any("running_mean" in name for name in before)
    shard.train_epoch(EpochOrder(orders))
    moved = shard.network.rows()
    assert not moved["buffer/segments.0.1.running_mean"].equal(before["buffer/segments.0.1.running_mean"])


def test_an_epoch_trains_on_the_whole_batches_of_each_order(shard, orders):
    seen = []
    backward = shard.network.backward
    shard.network.backward = lambda x, y, hooks=None, *rest, **more: (
        seen.append((x.clone(), hooks)),
        backward(x, y, hooks, *rest, **more),
    )[1]
    shard.task.batch_size, whole = 40, shard.task.batch_size
    shard.train_epoch(EpochOrder(orders), probe=True)
    gradients = shard.take_gradients()
    shard.task.batch_size = whole
    assert [hooks is not None for _, hooks in seen] == [False, True]  # 96 = 40 + 40 + a remainder that is left out
    for step, (x, _) in enumerate(seen):
        assert x.shape == (40, 3, 8, 8)
        for host in range(3):
            chosen = shard.data.train_x[orders[host, 40 * step : 40 * step + 40]]
            assert x[:, host : host + 1].equal(chosen)
    assert [(len(slot.features), slot.features.shape[1] < 40) for slot in gradients] == [(3, True)] * 3
    assert all(slot.grad.any() for slot in gradients)


def test_the_training_loss_is_the_mean_over_batches(shard, orders):
    shard.network.pace(torch.zeros(3, 1))  # learning rate 0, so the batches can be measured again
    report = shard.train_epoch(EpochOrder(orders))
    shard.network.train()
    with torch.no_grad():
        losses = []
        for step in range(3):
            index = torch.from_numpy(orders[:, 32 * step : 32 * step + 32])
            logits = forward(shard.network, side_by_side(shard.data.train_x[index]))
            losses.append(
                [F.cross_entropy(member, shard.data.train_y[row]).item() for member, row in zip(logits, index, strict=True)]
            )
    np.testing.assert_allclose(report.loss_M, np.mean(losses, axis=0), rtol=1e-5)


def test_probing_has_no_effect_on_training(small_task, orders):
    weights = []
    for probe in (True, False):
        hosts = [small_task.host(0, Split.TRAINING, 0, index) for index in range(3)]
        shard = Shard(hosts, BLUEPRINTS, small_task.data, small_task, CPU, optimiser=SGDConfig())
        shard.train_epoch(EpochOrder(orders), probe=probe)
        weights.append(shard.network.host.flat.detach())
    assert weights[0].equal(weights[1])


@pytest.mark.parametrize("incubation", list(Incubation))
def test_reports_hold_norms_of_learning_seeds_only(small_task, orders, incubation):
    hosts = [small_task.host(0, Split.TRAINING, 0, index) for index in range(3)]
    shard = Shard(hosts, BLUEPRINTS, small_task.data, small_task, CPU, optimiser=SGDConfig(), incubation=incubation)
    assert np.isnan(shard.train_epoch(EpochOrder(orders)).seed_norm_MS).all()
    shard.network.plant(1, 2, 1, torch.Generator().manual_seed(0))
    here = np.zeros((3, 3), dtype=bool)
    here[1, 2] = True
    behind = here & (incubation is not Incubation.none)
    shard.network.arrange(
        Roles(
            blueprint=np.where(here, 1, -1),
            blend=np.zeros((3, 3), dtype=np.int64),
            alpha=np.where(here & ~behind, 1.0, 0.0).astype(np.float32),
            behind=behind,
            open=here & ~behind,
            learns=here,
            fossil=np.zeros_like(here),
        )
    )
    report = shard.train_epoch(EpochOrder(orders))
    assert report.host_norm_M.shape == (3,)
    assert (report.host_norm_M > 0).all()
    assert (np.isnan(report.seed_norm_MS) == ~here).all()
    assert report.seed_norm_MS[1, 2] > 0


def pool_of(task, devices, num_hosts, **changes):
    parts = PoolParts(task=task, blueprints=BLUEPRINTS, devices=devices, num_hosts=num_hosts, optimiser=SGDConfig(), **changes)
    sampler, pool = HostSampler(task=task, split=Split.TRAINING, num_hosts=num_hosts), ShardPool(parts)
    pool.start(sampler, sampler.views())
    return pool


def test_incubation_and_seeds_reach_the_right_shard_and_data_is_placed_once(small_task, monkeypatch):
    """Were it placed for each shard, the memory that one copy takes would decide where the next one lies."""
    devices, placed = {"cpu": DeviceConfig(members_per_shard=1)}, []
    place = local.place_data
    monkeypatch.setattr(local, "place_data", lambda *given: (placed.append(given[1:]), place(*given))[1])
    shard_pool = pool_of(small_task, devices, 2, incubation=Incubation.closed_loop)
    assert placed == [(CPU, None)]
    assert [shard.network.incubation for shard in shard_pool.shards] == [Incubation.closed_loop] * 2
    shard_pool.plant(1, 0, 1, (0, "seed_init"), Blend.GATE)
    assert [list(shard.network.banks) for shard in shard_pool.shards] == [[], [(0, 1, True)]]
    shard_pool.clear(1, 0, 1)
    assert not shard_pool.shards[1].network.banks[0, 1, True].fleet.flat.any()
    shard_pool.close()


def test_hosts_and_data_are_gone_once_no_episode_needs_them(make_env):
    """At once, not when the garbage is collected: they may fill a GPU."""
    gc.collect()
    gc.disable()
    try:
        env = make_env(2, 2)
        env.reset(seed=0)
        env.step(np.zeros((2, len(Head)), np.int64))
        (shard,) = env.pool.shards
        ended = [weakref.ref(one) for one in (shard, shard.network, shard.member_data)]
        del shard
        env.reset()
        assert [one() for one in ended] == [None] * 3
        data, network = (weakref.ref(one) for one in (env.pool.shards[0].data.train_y, env.pool.shards[0].network))
        env.close()
        assert (data(), network()) == (None, None)
    finally:
        gc.enable()


def test_a_batch_larger_than_the_data_is_cut_to_its_size(small_task, orders):
    hosts = [small_task.host(0, Split.TRAINING, 0, index) for index in range(3)]
    shard = Shard(hosts, BLUEPRINTS, small_task.data, small_task, CPU, optimiser=SGDConfig())
    shard.task.batch_size, size = 1000, shard.task.batch_size
    before = shard.network.host.flat.detach().clone()
    assert np.isfinite(shard.train_epoch(EpochOrder(orders)).loss_M).all()
    shard.task.batch_size = size
    assert not shard.network.host.flat.equal(before)


# ---- dealing hosts to shards


def test_few_large_hosts_become_two_shards_for_two_cores():
    half, torchs = 2**18, DeviceConfig(own_kernels=False)
    assert [cpu_members(hosts, half // 2, DeviceConfig()) for hosts in (1, 2, 3, 4, 5)] == [1, 2, 3, 2, 3]
    assert [cpu_members(hosts, half, DeviceConfig()) for hosts in (1, 2, 3, 8)] == [1, 1, 2, 4]
    assert [cpu_members(4, values, DeviceConfig(), narrow=True) for values in (half // 2, half)] == [4, 2]
    assert cpu_members(4, half // 2, torchs, narrow=True) == 2
    assert [len(deal(hosts, {"cpu": DeviceConfig()}, half)) for hosts in (1, 2)] == [1, 2]


@pytest.mark.parametrize("hosts", [1, 2, 5, 7])
@pytest.mark.parametrize("members", [0, 1, 3])
def test_every_host_is_dealt_to_one_shard(hosts, members):
    places = deal(hosts, {"cpu": DeviceConfig(members_per_shard=members)})
    assert [host for _, rows in places for host in range(rows.start, rows.stop)] == list(range(hosts))
    assert all(rows.stop - rows.start <= (members or hosts) for _, rows in places)
    assert all(device == CPU for device, _ in places)


def test_shards_of_wide_hosts_are_smaller(small_task):
    sizes, torchs = (0, 2**16, 2**19, 2**21, 2**30), DeviceConfig(own_kernels=False)
    assert [cpu_members(64, values, DeviceConfig()) for values in sizes] == [16, 16, 4, 1, 1]
    assert [cpu_members(64, values, DeviceConfig(), narrow=True) for values in sizes] == [32, 32, 8, 2, 1]
    for config in (torchs, DeviceConfig(precision=Precision.bf16)):
        assert [cpu_members(64, values, config, narrow=True) for values in sizes] == [16, 16, 4, 1, 1]
    assert [cpu_members(64, values, torchs, vectors=True) for values in sizes] == [32, 32, 4, 1, 1]
    sizes = [rows.stop - rows.start for _, rows in deal(9, {"cpu": DeviceConfig()}, 2**19)]
    assert sizes == [3, 3, 3]
    assert [rows.stop for _, rows in deal(9, {"cpu": DeviceConfig(members_per_shard=5)}, 2**19)] == [5, 9]
    host = small_task.host(0, Split.TRAINING, 0, 0)
    channels, side = host.segments[0][0].out_channels, small_task.data.train_x.shape[-1]
    assert small_task.sizes.narrow == suits(host) is True
    assert small_task.sizes.widest == channels * side**2  # of the first convolution, before it is pooled


def test_hosts_are_dealt_evenly_to_devices(monkeypatch):
    monkeypatch.setattr("esper.pool.local.find_device", torch.device)
    places = deal(7, {"cpu": DeviceConfig(), "cuda:0": DeviceConfig(members_per_shard=1), "cuda:1": DeviceConfig()})
    assert [(str(device), rows.stop - rows.start) for device, rows in places] == [
        ("cpu", 2),
        ("cuda:0", 1),
        ("cuda:0", 1),
        ("cuda:1", 3),
    ]
    with pytest.raises(ValueError, match="hosts=2 is fewer than the 3 devices"):
        deal(2, {"cpu": DeviceConfig(), "cuda:0": DeviceConfig(), "cuda:1": DeviceConfig()})


def test_seeds_reach_their_host_in_any_shard(small_task):
    shard_pool = pool_of(small_task, {"cpu": DeviceConfig(members_per_shard=2)}, 5)
    shard_pool.plant(3, 1, 1, (0, "seed_init", "x", 3))
    held = [[bank.fleet.flat.any(dim=1).tolist() for bank in shard.network.banks.values()] for shard in shard_pool.shards]
    assert held == [[], [[False, True]], []]
    shard_pool.clear(3, 1, 1)
    assert not shard_pool.shards[1].network.banks[1, 1, False].fleet.flat.any()
    with pytest.raises(IndexError, match="no host 5"):
        shard_pool.plant(5, 0, 0, (0, "seed_init"))
    shard_pool.close()


def test_a_missing_device_is_refused(monkeypatch):
    assert find_device("cpu") == CPU
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    absent = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ValueError, match=rf"devices=\[{absent}\] is not on this machine.*choose devices=\[cpu\]"):
        find_device(absent)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(
        ValueError, match=r"devices=\[cuda\] is not on this machine, which has 0 CUDA devices: choose devices=\[cpu\]"
    ):
        find_device("cuda")


def test_invalid_device_config_is_refused():
    with pytest.raises(ValueError, match="members_per_shard must be at least 0, got -1"):
        DeviceConfig(members_per_shard=-1)
    with pytest.raises(ValueError, match="tune=true finds members_per_shard by timing"):
        DeviceConfig(members_per_shard=4, tune=True)


# ---- tables of the actions


def test_only_relevant_parameters_are_checked():
    sizes = (6, 3, 2, 4, 3, 3, 4, 5)
    legal = legal_values(1, 2)
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = np.array([[rng.integers(size) for size in sizes]])
        op = action[0, Head.OP]
        wanted = all(not RELEVANT[op, head] or head not in PINNED or action[0, head] == PINNED[head] for head in PARAMETER_HEADS)
        assert parameters_legal(action, legal, sizes).tolist() == [wanted]


def test_pinned_heads_have_one_legal_value_and_all_blueprints_are_legal():
    legal = legal_values(3, 4)
    assert legal.shape == (3, 4 + 4 + 3 + 3 + 4 + 5)
    parts = np.split(legal[0], np.cumsum([4, 4, 3, 3, 4]))
    assert parts[0].all()
    assert [np.flatnonzero(part).tolist() for part in parts[1:]] == [[PINNED[head]] for head in PARAMETER_HEADS[1:]]


def test_wait_has_no_parameters():
    assert np.flatnonzero(RELEVANT[Op.WAIT]).tolist() == [Head.OP]
    assert RELEVANT[:, Head.OP].all()
    assert RELEVANT[1:, Head.SLOT].all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_freed_memory_is_returned_to_the_system():
    """Blocks below the C library's mmap threshold, with one kept above them, so that none is returned on free."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    many = [np.ones(12_000) for _ in range(2_000)]  # 96 kB each, 192 MB
    full, pin = resident(), np.ones(12_000)
    del many
    return_memory()
    assert resident() < full - 100e6
    assert pin.all()


@pytest.mark.parametrize("pretrain", [0, 3])
def test_the_schedule_runs_over_the_episode_and_over_pretraining(make_env, pretrain, monkeypatch, small_task, tmp_path):
    seen, step = [], GrowingNetwork.begin_step
    monkeypatch.setattr(GrowingNetwork, "begin_step", lambda self, progress: (seen.append(progress), step(self, progress))[1])
    for key, value in {"pretrain": pretrain, "pretrain_pool": 2, "pretrain_folder": str(tmp_path)}.items():
        monkeypatch.setattr(small_task.config, key, value)
    env = make_env(2, 4)
    env.reset(seed=0)
    per_epoch = env.sampler.samples_per_epoch // small_task.batch_size
    assert seen == pytest.approx((np.arange(pretrain * per_epoch) + 0.5) / max(pretrain * per_epoch, 1))
    seen.clear()
    for _ in range(4):
        env.step(np.zeros((2, len(Head)), np.int64))
    assert seen == pytest.approx((np.arange(4 * per_epoch) + 0.5) / (4 * per_epoch))
