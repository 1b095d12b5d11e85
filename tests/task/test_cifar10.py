"""CIFAR-10 from generated files of its binary format."""

import numpy as np
import pytest
import torch

from esper.hosts.cnn import CNNConfig
from esper.task.cifar10 import MEAN, RECORD, STD, TEST_FILE, TRAIN_FILES, Cifar10Config
from esper.task.data import TaskError
from esper.task.instances import Split

EACH = 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write files of a few records. The first red pixel is the number of the record."""
    monkeypatch.setattr("esper.task.cifar10.RECORDS", EACH)
    rng = np.random.default_rng(0)
    for number, name in enumerate([*TRAIN_FILES, TEST_FILE]):
        records = rng.integers(0, 256, (EACH, RECORD), dtype=np.uint8)
        records[:, 0] = (np.arange(EACH) + number) % 10
        records[:, 1] = number * EACH + np.arange(EACH)
        records.tofile(tmp_path / name)
    return tmp_path


def raw(folder):
    """Return every record of the training files."""
    whole = b"".join((folder / name).read_bytes() for name in TRAIN_FILES)
    return [whole[start : start + RECORD] for start in range(0, len(whole), RECORD)]


def pixel(record, channel, row, column):
    return (record[1 + 1024 * channel + 32 * row + column] / 255 - MEAN[channel]) / STD[channel]


def test_images_and_classes_equal_the_files(folder):
    data = Cifar10Config(root=str(folder), batch_size=32).build(CNNConfig()).data
    assert data.train_x.shape == (90, 3, 32, 32)
    assert data.valid_x.shape == (10, 3, 32, 32)
    assert data.test_x.shape == (20, 3, 32, 32)
    assert data.num_classes == 10
    records = raw(folder)
    seen = []
    for raw_x, y in zip(torch.cat([data.train_x, data.valid_x]), torch.cat([data.train_y, data.valid_y]), strict=True):
        assert raw_x.dtype == torch.uint8
        record, x = records[int(raw_x[0, 0, 0])], data.inputs(raw_x)
        seen.append(record[1])
        assert y == record[0]
        for place in [(0, 5, 9), (1, 0, 31), (2, 31, 0), (2, 17, 23)]:
            assert x[place].item() == pytest.approx(pixel(record, *place), abs=1e-4)
    assert sorted(seen) == list(range(100))  # every image is in one part
    test = (folder / TEST_FILE).read_bytes()
    assert data.test_y.tolist() == [test[start] for start in range(0, len(test), RECORD)]
    assert data.inputs(data.test_x)[3, 1, 2, 4].item() == pytest.approx(pixel(test[3 * RECORD :], 1, 2, 4), abs=1e-4)


def test_split_depends_on_its_seed(folder):
    one, two, other = (
        Cifar10Config(root=str(folder), split_seed=seed, batch_size=32).build(CNNConfig()).data for seed in (0, 0, 1)
    )
    assert one.valid_x.equal(two.valid_x)
    assert not one.valid_x.equal(other.valid_x)
    assert one.test_x.equal(other.test_x)


def test_hosts_are_determined_by_their_names(folder):
    task = Cifar10Config(root=str(folder), batch_size=32).build(CNNConfig(base_channels=8, pools=3))
    one, two, other = (task.host(0, Split.TRAINING, 0, index) for index in (1, 1, 2))
    assert all(a.equal(b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert not one.segments[0][0].weight.equal(other.segments[0][0].weight)
    assert one(task.data.inputs(task.data.valid_x)).shape == (10, 10)
    assert task.describe(0, Split.TRAINING, 0, 0) == "ooo"
    assert [spec.channels for spec in one.slots] == [8, 16, 32]


@pytest.mark.parametrize("name", [TRAIN_FILES[0], TRAIN_FILES[3], TEST_FILE])
def test_a_missing_file_is_named_with_a_remedy(folder, name):
    (folder / name).unlink()
    with pytest.raises(TaskError, match=rf"{name}, which does not exist: download .* task\.root .* task=digits") as caught:
        Cifar10Config(root=str(folder), batch_size=32).build(CNNConfig())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, RECORD - 1, RECORD * EACH - 5, RECORD * (EACH - 1)])
@pytest.mark.parametrize("name", [TRAIN_FILES[4], TEST_FILE])
def test_a_truncated_file_is_named(folder, name, size):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:size])
    with pytest.raises(TaskError, match=rf"{name} is damaged \(.*\): download .* task\.root"):
        Cifar10Config(root=str(folder), batch_size=32).build(CNNConfig())


def test_an_invalid_class_is_named(folder):
    path = folder / TRAIN_FILES[2]
    content = bytearray(path.read_bytes())
    content[7 * RECORD] = 10
    path.write_bytes(bytes(content))
    with pytest.raises(TaskError, match=rf"{TRAIN_FILES[2]} is damaged \(it has class 10, and classes are 0 to 9\)"):
        Cifar10Config(root=str(folder), batch_size=32).build(CNNConfig())
