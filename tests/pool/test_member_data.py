"""Instances in the fused program, against single hosts trained in plain PyTorch."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.growth.variants import Tree
from esper.hosts.cnn import CNNConfig
from esper.hosts.transformer import TransformerConfig
from esper.optimisers.sgd import SGDConfig
from esper.pool.host_sampler import EpochOrder, walk
from esper.pool.member_data import MemberData, TrainedPart
from esper.pool.shard import Shard
from esper.seeds.blueprints.plain import NormConfig
from esper.task.augment import Augmentation
from esper.task.base import Task
from esper.task.data import IGNORED, Data
from esper.task.digits import DigitsConfig
from esper.task.instances import Instance, Split
from esper.task.text import TextConfig
from tests.env_fixtures import order_of

CPU = torch.device("cpu")
HOSTS = 6
OPTIMISER = SGDConfig()
LIST_OF = {
    "label_noise": [0.0, 0.4],
    "data_share": [1.0, 0.2],
    "classes": [0, 3, 6],
    "rate_factor": [1.0, 0.3, 2.0],
}


def cut(data, train, valid):
    """The first samples of each part."""
    parts = {"train": train, "valid": valid, "test": valid}
    cuts = {f"{part}_{axis}": getattr(data, f"{part}_{axis}")[:size] for part, size in parts.items() for axis in "xy"}
    return Data(**cuts, num_classes=data.num_classes, mean=data.mean, std=data.std)


def digits(**lists):
    task = DigitsConfig(batch_size=16, **lists).build(CNNConfig())
    task.data = cut(task.data, 160, 60)
    return task


def tales(**lists):
    """A tiny language task with padded targets."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 12, (200, 7), generator=generator)
    x, y = whole[:, :-1].clone(), whole[:, 1:].clone()
    y[::3, 4:] = IGNORED
    parts = {"train": slice(0, 96), "valid": slice(96, 140), "test": slice(140, 200)}
    tensors = {f"{part}_x": x[rows] for part, rows in parts.items()} | {f"{part}_y": y[rows] for part, rows in parts.items()}
    host = TransformerConfig(layers=1, width=8, heads=2, context=6)
    return Task(TextConfig(batch_size=8, **lists), host, Data(**tensors, num_classes=12))


def taught(task, hosts=HOSTS):
    """Return a shard of hosts, each with its data view, and their sample orders of one epoch."""
    names = [(0, Split.TRAINING, 0, index) for index in range(hosts)]
    views = [task.view(*name) for name in names]
    modules = [task.host(*name) for name in names]
    every = np.arange(len(task.data.train_y))
    orders = [
        walk(every if one.samples is None else one.samples, 0, 48, lambda turn, host=host: np.random.default_rng((host, turn)))
        for host, one in enumerate(views)
    ]
    return modules, views, np.stack(orders), Shard(modules, (NormConfig(),), task.data, task, CPU, views, optimiser=OPTIMISER)


def flat(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def train_alone(host, task, instance, data_view, order):
    """Train one host for the same epoch in plain PyTorch."""
    host, config, data = copy.deepcopy(host), OPTIMISER, task.data
    optimiser = torch.optim.SGD(
        host.parameters(),
        lr=config.learning_rate * instance.rate_factor,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    labels = data.train_y if data_view.labels is None else data_view.labels.long()
    losses = []
    host.train()
    for start in range(0, len(order), task.batch_size):
        rows = torch.from_numpy(order[start : start + task.batch_size])
        logits = host(data.train_x[rows])
        loss = F.cross_entropy(logits.flatten(0, -2), labels[rows].flatten())  # the mean over targets that are not padding
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(host.parameters(), config.max_norm)
        optimiser.step()
        losses.append(loss.item())
    return host, np.mean(losses)


@pytest.mark.parametrize("micro_batches", [2, 3, 8, 100])
def test_micro_batches_change_nothing_but_rounding(monkeypatch, micro_batches):
    """Of hosts without batch norm; the batches of 8 are padded unevenly."""
    monkeypatch.setattr(f"{__name__}.OPTIMISER", SGDConfig(micro_batches=micro_batches))
    *_, orders, parts = taught(tales())
    monkeypatch.setattr(f"{__name__}.OPTIMISER", SGDConfig())
    *_, whole = taught(tales())
    sizes = list[int]()
    backward = parts.network.backward

    def counted(x, *rest, **more):
        sizes.append(len(x) // HOSTS)
        return backward(x, *rest, **more)

    monkeypatch.setattr(parts.network, "backward", counted)
    one, other = (shard.train_epoch(EpochOrder(orders), probe=True) for shard in (whole, parts))
    np.testing.assert_allclose(one.loss_M, other.loss_M, rtol=1e-5)
    assert torch.allclose(whole.network.host.flat, parts.network.host.flat, atol=1e-6)
    assert max(sizes) == -(-8 // min(micro_batches, 8))
    assert sum(sizes) == 48
    assert len(whole.take_gradients()) == len(parts.take_gradients()) == 2


@pytest.mark.parametrize("make", [digits, tales])
@pytest.mark.parametrize("field", ["nothing", "label_noise", "data_share", "classes", "rate_factor", "everything"])
def test_fused_hosts_match_single_hosts(make, field):
    lists = {name: values for name, values in LIST_OF.items() if field in (name, "everything")}
    if make is tales:
        lists.pop("classes", None)
    task = make(**lists)
    modules, views, orders, shard = taught(task)
    report = shard.train_epoch(EpochOrder(orders))
    alone = []
    for index in range(HOSTS):
        instance = task.instance(0, Split.TRAINING, 0, index)
        host, loss = train_alone(modules[index], task, instance, views[index], orders[index])
        torch.testing.assert_close(shard.network.host.flat[index].detach(), flat(host), rtol=2e-3, atol=2e-5)
        assert report.loss_M[index] == pytest.approx(loss, rel=1e-4)
        alone.append((instance, host))
    for test in (False, True):
        seen = shard.validate(np.zeros((1, HOSTS, len(shard.network.slots)), np.float32), test=test)
        x, y = (task.data.test_x, task.data.test_y) if test else (task.data.valid_x, task.data.valid_y)
        for index, (instance, host) in enumerate(alone):
            rows = torch.ones(len(y), dtype=torch.bool)
            if instance.classes is not None:
                rows = torch.isin(y, torch.tensor(instance.classes))
            with torch.no_grad():
                logits, targets = host.eval()(x[rows]).flatten(0, -2), y[rows].flatten()
            counted = targets != IGNORED
            right = (logits.argmax(-1) == targets)[counted].float().mean().item()
            assert seen.accuracy_VM[0, index] == pytest.approx(100 * right, abs=100 / counted.sum().item() + 1e-3)
            assert seen.loss_VM[0, index] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=2e-4)


def test_each_property_changes_the_weights():
    """Without its property each host learns something else, so the comparison above is sensitive."""
    for field, values in LIST_OF.items():
        task = digits(**{field: values[1:2]})
        modules, views, orders, shard = taught(task, 2)
        shard.train_epoch(EpochOrder(orders))
        plain, _ = train_alone(modules[0], task, Instance(), type(views[0])(), np.arange(48))
        assert (shard.network.host.flat[0].detach() - flat(plain)).abs().max() > 1e-3, field


def test_the_standard_error_treats_a_sequence_as_one_sample():
    """Against the definition, with blocks of different numbers of targets."""
    task = tales()
    _, _, orders, shard = taught(task, 2)
    shard.train_epoch(EpochOrder(orders))
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 2, 44 * 6, 12, generator=generator)
    own = Tree(members=2, forks=(None,) * len(shard.network.slots), path_VM=np.arange(4).reshape(2, 2))
    shard.network.tree = lambda alpha, rows: own
    shard.network.path_logits = lambda x, tree: logits.flatten(0, 1)[:, : x.shape[0] // 2 * 6]
    seen = shard.validate(np.zeros((2, 2, len(shard.network.slots)), np.float32))
    y = task.data.valid_y
    counted = (y != IGNORED).double()
    right = (logits.argmax(-1).view(2, 2, 44, 6) == y).double() * counted
    for member in range(2):
        spread = [one.sum(1) - one.sum() / counted.sum() * counted.sum(1) for one in right[:, member]]
        wanted = [[100**2 * (one @ other / counted.sum() ** 2).item() for other in spread] for one in spread]
        np.testing.assert_allclose(seen.covariance_VVM[:, :, member], wanted, rtol=1e-9)
        gain = (right[0, member] - right[1, member]).sum(1)
        count = counted.sum(1)
        ratio = gain.sum() / count.sum()
        error = ((gain - ratio * count) ** 2).sum().sqrt() / count.sum()
        assert seen.error_VM[1, member] == pytest.approx(100 * error.item(), rel=1e-5)
        assert seen.accuracy_VM[1, member] == pytest.approx(100 * (right[1, member].sum() / count.sum()).item(), rel=1e-5)


def test_validation_of_text_and_class_subsets_is_independent_of_batch_size(monkeypatch):
    for task in (tales(), digits(classes=[3])):
        _, _, orders, shard = taught(task)
        shard.train_epoch(EpochOrder(orders))
        alpha = np.zeros((1, HOSTS, len(shard.network.slots)), np.float32)
        whole = shard.validate(alpha)
        monkeypatch.setattr("esper.pool.shard.VALIDATION_BATCH", 7)
        shard.forget()
        parts = shard.validate(alpha)
        monkeypatch.undo()
        np.testing.assert_allclose(whole.accuracy_VM, parts.accuracy_VM, rtol=1e-5)
        np.testing.assert_allclose(whole.loss_VM, parts.loss_VM, rtol=1e-5)


def test_shared_labels_and_classes_take_no_memory():
    task = digits()
    _, _, _, shard = taught(task)
    assert (shard.member_data.labels_M, shard.member_data.classes_MK, shard.member_data.rate_M1) == (None, None, None)
    noisy = digits(label_noise=[0.0, 0.4])
    _, _, _, shard = taught(noisy)
    assert shard.member_data.labels_M.dtype == torch.uint8


def test_each_host_trains_on_its_own_view(make_env, plan_actions, monkeypatch):
    env = make_env(5, 2)
    task = env.task
    monkeypatch.setattr(task.config, "data_share", [0.25])
    monkeypatch.setattr(task.config, "label_noise", [0.5])
    env.reset(options={"episode": 0})
    orders = order_of(env).samples_NI
    assert orders.shape == (5, 96)
    for host, row in enumerate(orders):
        data_view = task.view(0, Split.TRAINING, 0, host)
        assert len(data_view.samples) == 24
        assert np.bincount(row, minlength=96)[data_view.samples].tolist() == [4] * 24
    assert {"noise=0.5" in name and "data=0.25" in name for name in env.sampler.instances()} == {True}
    env.step(plan_actions(*[(0, 0, 0)] * 5))
    assert np.isfinite(env.loss_N).all()


# ---- orders


@settings(max_examples=80, deadline=None)
@given(size=st.integers(1, 30), epoch=st.integers(1, 70), seed=st.integers(0, 5))
def test_a_walk_visits_every_sample_once_per_pass(size, epoch, seed):
    pool = np.sort(np.random.default_rng(seed).permutation(100)[:size])

    def turn(number):
        return np.random.default_rng((seed, number))

    parts = [walk(pool, time * epoch, epoch, turn) for time in range(8)]
    assert all(len(part) == epoch for part in parts)
    whole = np.concatenate(parts)
    for start in range(0, len(whole) - size + 1, size):
        assert sorted(whole[start : start + size]) == pool.tolist()
    again = walk(pool, 0, 8 * epoch, turn)
    assert (again == whole).all()


def test_an_epoch_of_all_data_is_one_pass():
    order = walk(np.arange(50), 3 * 50, 50, lambda turn: np.random.default_rng(turn))
    assert (order == np.random.default_rng(3).permutation(50)).all()


def test_partial_epochs_continue_the_walk(make_env, plan_actions, monkeypatch):
    env = make_env(2, 3)
    monkeypatch.setattr(env.task, "epoch_samples", 40)  # whole batches of 32
    env.reset(options={"episode": 0})
    seen = []
    for _ in range(3):
        seen.append(order_of(env).samples_NI)
        env.step(plan_actions((0, 0, 0), (0, 0, 0)))
    assert env.sampler.samples_per_epoch == 32
    for host in range(2):
        rows = [part[host] for part in seen]
        assert sorted(np.concatenate(rows)) == list(range(96))  # three epochs of 32 are the 96 samples, each once
        assert all(set(a).isdisjoint(b) for a, b in pairwise(rows))


# ---- augmentation


def test_images_are_shifted_by_their_draw_and_padded_with_zeros():
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(1, 256, (20, 3, 6, 5), dtype=np.uint8))
    augmentation = Augmentation(padding=2, flip=True)
    draws = augmentation.draw(rng, 20)
    assert draws.shape == (20, 3)
    assert set(draws[:, 2]) == {0, 1}
    assert draws[:, :2].max() <= 4
    moved = augmentation.apply(images, torch.from_numpy(draws))
    assert moved.dtype == torch.uint8
    for image, (down, right, mirrored), seen in zip(images, draws.tolist(), moved, strict=True):
        frame = torch.zeros(3, 10, 9, dtype=torch.uint8)
        frame[:, 2:8, 2:7] = image
        window = frame[:, down : down + 6, right : right + 5]
        assert seen.equal(window.flip(-1) if mirrored else window)


def test_offsets_are_uniform_and_flips_optional():
    draws = Augmentation(padding=4, flip=False).draw(np.random.default_rng(0), 9000)
    assert not draws[:, 2].any()
    for axis in (0, 1):
        assert np.abs(np.bincount(draws[:, axis], minlength=9) - 1000).max() < 5 * math.sqrt(1000)


def test_members_are_augmented_independently_and_bytes_become_floats():
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 256, (30, 1, 4, 4), dtype=np.uint8))
    y = torch.zeros(30, dtype=torch.int64)
    mean, std = torch.full((1, 1, 1), 100.0), torch.full((1, 1, 1), 50.0)
    data = Data(train_x=x, train_y=y, valid_x=x, valid_y=y, test_x=x, test_y=y, num_classes=2, mean=mean, std=std)
    augmentation = Augmentation(padding=1, flip=True)
    views = MemberData(data, (), augmentation, CPU)
    index = torch.from_numpy(np.stack([rng.permutation(30)[:8] for _ in range(3)]))
    draws = torch.from_numpy(np.stack([augmentation.draw(rng, 8) for _ in range(3)]))
    inputs, _ = views.batch(TrainedPart(index, draws))
    assert inputs.shape == (8, 3, 4, 4)
    for member in range(3):
        alone = augmentation.apply(x[index[member]], draws[member])
        torch.testing.assert_close(inputs[:, member : member + 1], (alone.float() - 100) / 50)
    plain, _ = views.batch(TrainedPart(index))
    torch.testing.assert_close(plain[:, 1:2], (x[index[1]].float() - 100) / 50)


def test_augmentation_is_independent_of_the_number_of_hosts(make_env, monkeypatch):
    few, many = make_env(2, 2), make_env(4, 2)
    monkeypatch.setattr(few.task, "augmentation", Augmentation(padding=4, flip=True))
    for env in (few, many):
        env.reset(options={"episode": 3})
    draws = order_of(many).draws_NI3
    assert draws.shape == (4, few.sampler.samples_per_epoch, 3)
    assert (order_of(few).draws_NI3 == draws[:2]).all()
    assert not (draws[0] == draws[1]).all()
    many.time = 1
    assert not (order_of(many).draws_NI3 == draws).all()
