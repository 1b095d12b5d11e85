"""Digits: the split, instances and lesions; fields that all tasks share."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from esper.hosts.base import HostConfig
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.task import digits as digits_module
from esper.task.base import TaskConfig
from esper.task.digits import NUM_TRAIN, NUM_VALID, DigitsConfig
from esper.task.images import ImagesConfig
from esper.task.instances import Instances, Split

PARTS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def digits():
    return DigitsConfig().build(CNNConfig())


def images(data, part):
    """Return each image and its class as a hashable row."""
    x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
    return [(*row.tolist(), int(target)) for row, target in zip(x.flatten(1), y, strict=True)]


def digest(tensors, unit):
    """Return the SHA-256 of numbers rounded to whole units, since the last bits depend on the machine."""
    whole = [(tensor.detach().double() / unit).round().long().numpy().tobytes() for tensor in tensors]
    return hashlib.sha256(b"".join(whole)).hexdigest()


def test_numbers_equal_those_of_the_first_version(digits):
    low, high = digits.data.train_x.min(), digits.data.train_x.max()
    pixels = [(getattr(digits.data, f"{part}_x") - low) / (high - low) for part in PARTS]
    targets = [getattr(digits.data, f"{part}_y") for part in PARTS]
    assert digest(pixels, 1 / 16) == "573237929c8658f6e1f1bb39cad86e618a5e3456cb63e29501b9681cad463f3f"
    assert digest(targets, 1) == "e66c1a29b02ba3231c174fccbf7ae7b10eb2ddbe3bff4920164cac572c9bf326"
    names = [(7, split, episode, index) for split in Split for episode in range(2) for index in range(4)]
    weights = [parameter for name in names for parameter in digits.host(*name).parameters()]
    assert digest(weights, 1e-4) == "57188a394ff8d4f643e43014c537dc2a8c57da3fb17d762b9e7aca3f0b9c9936"
    drawn = "oxx xoo ooo oxx oxx xoo oxx oxx oxx ooo oxx oxx ooo oxx ooo oxx"
    assert " ".join(digits.describe(*name) for name in names) == drawn


def test_sizes_and_classes(digits):
    data = digits.data
    assert [len(getattr(data, f"{part}_y")) for part in PARTS] == [NUM_TRAIN, NUM_VALID, 360] == [1078, 359, 360]
    for part in PARTS:
        x, y = getattr(data, f"{part}_x"), getattr(data, f"{part}_y")
        assert x.shape == (len(y), 1, 8, 8)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert set(y.tolist()) == set(range(10)) == set(range(data.num_classes))


def test_parts_are_disjoint_and_cover_the_data_set(digits):
    rows = [row for part in PARTS for row in images(digits.data, part)]
    whole = load_digits()
    assert len(rows) == len(whole.target) == 1797
    everyone = Counter(tuple(image.ravel().tolist()) for image in whole.images)
    assert max(everyone.values()) == 1  # no duplicates, so that equal rows would be one image in two parts
    assert len(set(rows)) == 1797
    assert Counter(int(row[-1]) for row in rows) == Counter(whole.target.tolist())


def test_the_images_are_those_of_scikit_learn_wherever_it_keeps_them(monkeypatch):
    read = digits_module.read_digits()
    whole = load_digits()
    assert (read[0][:, 0] * 16 == torch.from_numpy(whole.images)).all()
    assert read[1].tolist() == whole.target.tolist()
    monkeypatch.setattr(digits_module, "FILE", Path("elsewhere.csv.gz"))
    torch.testing.assert_close(digits_module.read_digits(), read, rtol=0, atol=0)


def test_pixels_are_normalised_by_the_training_part(digits):
    x = digits.data.train_x
    assert abs(x.mean().item()) < 1e-5
    assert x.std().item() == pytest.approx(1.0, abs=1e-5)
    assert abs(digits.data.valid_x.mean().item()) > 1e-5


def test_split_depends_on_its_seed_only(digits):
    again = DigitsConfig(batch_size=7, instances=Instances.healthy).build(CNNConfig())
    other = DigitsConfig(split_seed=1).build(CNNConfig())
    for part in PARTS:
        assert getattr(again.data, f"{part}_x").equal(getattr(digits.data, f"{part}_x"))
        assert not getattr(other.data, f"{part}_x").equal(getattr(digits.data, f"{part}_x"))


def test_a_host_is_determined_by_its_name(digits):
    one, two = (digits.host(3, Split.TRAINING, 5, 2) for _ in range(2))
    assert all(a.equal(b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    names = [(4, Split.TRAINING, 5, 2), (3, Split.HELD_OUT, 5, 2), (3, Split.TRAINING, 6, 2), (3, Split.TRAINING, 5, 1)]
    for name in names:
        assert not digits.host(*name).segments[0][0].weight.equal(one.segments[0][0].weight)


def test_making_a_host_does_not_move_the_global_stream(digits):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    digits.host(0, Split.TRAINING, 0, 0)
    assert torch.random.get_rng_state().equal(state)


def test_kinds_are_drawn_uniformly_in_both_splits(digits):
    for split in Split:
        drawn = Counter(digits.describe(0, split, episode, index) for episode in range(50) for index in range(40))
        assert set(drawn) == {"ooo", "xoo", "oxx"}
        expected = {"ooo": 500, "xoo": 500, "oxx": 1000}
        assert all(abs(drawn[kind] - count) < 112 for kind, count in expected.items())  # five standard deviations


def test_held_out_instances_differ_from_training_instances(digits):
    names = [[digits.describe(0, split, episode, index) for episode in range(20) for index in range(8)] for split in Split]
    same = sum(a == b for a, b in zip(*names, strict=True))
    assert 25 < same < 85  # of 160; a third agree by chance


def test_lesioned_blocks_lack_spatial_context(digits):
    seen = set()
    for index in range(30):
        kind, host = digits.describe(0, Split.TRAINING, 0, index), digits.host(0, Split.TRAINING, 0, index)
        seen.add(kind)
        for letter, segment in zip(kind, list(host.segments)[:-1], strict=True):
            conv = next(layer for layer in segment if isinstance(layer, torch.nn.Conv2d))
            x = torch.zeros(1, conv.in_channels, 5, 5)
            x[0, :, 2, 2] = 1.0
            touched = (conv(x).abs().sum((0, 1)) > 0).sum().item()
            assert touched == (1 if letter == "x" else 9)
    assert seen == {"ooo", "xoo", "oxx"}


def test_healthy_hosts_have_no_lesion():
    task = DigitsConfig(instances=Instances.healthy).build(CNNConfig())
    assert {task.describe(0, Split.TRAINING, 0, index) for index in range(20)} == {"ooo"}
    assert task.host(0, Split.TRAINING, 0, 3).segments[0][0].mask.all()
    with pytest.raises(
        ValueError, match=r"task\.kinds has no effect on healthy hosts: add task\.instances=lesioned, or set task\."
    ):
        DigitsConfig(instances=Instances.healthy, kinds=["xoo"]).check_host(CNNConfig())


def test_kinds_of_another_host():
    task = DigitsConfig(kinds=["ox"]).build(CNNConfig(blocks=2, base_channels=3))
    host = task.host(0, Split.TRAINING, 0, 0)
    assert [segment[-3].mask.sum().item() for segment in list(host.segments)[:-1]] == [9, 1]
    assert host(task.data.valid_x[:2]).shape == (2, 10)


@pytest.mark.parametrize("kinds", [["oo"], ["ooo", "xoxo"], ["oxy"], [""]])
def test_kinds_must_match_the_number_of_blocks(kinds):
    with pytest.raises(ValueError, match=r"task\.kinds must name at least one kind with 3 letters o or x"):
        DigitsConfig(kinds=kinds).check_host(CNNConfig())


@pytest.mark.parametrize(("host", "kinds"), [(CNNConfig(), {"ooo", "xoo", "oxx"}), (MLPConfig(), {"oo", "xo", "ox"})])
def test_standard_kinds_follow_the_number_of_parts(host, kinds):
    config = DigitsConfig()
    config.check_host(host)
    task = config.build(host)
    assert {task.describe(0, Split.TRAINING, 0, index) for index in range(30)} == kinds


def test_a_number_of_parts_without_standard_kinds_is_refused():
    with pytest.raises(ValueError, match=r"task\.kinds must name .* with 4 letters .* one per block \(host\.blocks\), got \[\]"):
        DigitsConfig().check_host(CNNConfig(blocks=4))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"batch_size": 0}, r"task\.batch_size must be at least 1, got 0"),
        ({"pretrain_pool": 0}, r"task\.pretrain_pool must be at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("kind", [TaskConfig, DigitsConfig])
def test_invalid_fields_are_refused(kind, fields, rule):
    with pytest.raises(ValueError, match=rule):
        kind(**fields)


def test_an_incomplete_task_names_the_missing_method():
    with pytest.raises(TypeError, match=r"define build\(shape, num_classes, lesioned\)"):
        HostConfig().build((1, 8, 8), 10, [])
    with pytest.raises(TypeError, match=r"ImagesConfig does not load data: define load\(context\)"):
        ImagesConfig().build(CNNConfig())
