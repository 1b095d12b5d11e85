"""CIFAR-10, CIFAR-100 and SVHN from generated files of their formats, and downloads through a fake torchvision."""

import pickle
import struct
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.io
import torch

from esper.hosts.cnn import CNNConfig
from esper.task import cifar, published
from esper.task.cifar import BATCHES, Cifar10Config, Cifar100Config
from esper.task.data import TaskError
from esper.task.fashion_mnist import FashionMnistConfig
from esper.task.instances import Split
from esper.task.svhn import SvhnConfig

EACH = 20


def pickled(images, **labels):
    """Return a batch as Python 2 and NumPy 1 pickled it: a dict of a uint8 array, with its bytes as a string, and of lists."""
    raw, n = images.tobytes(), len(images)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
    array += b"K\x01J" + struct.pack("<i", n) + b"J" + struct.pack("<i", len(raw) // n) + b"\x86"
    array += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    lists = (
        b"U" + bytes([len(key)]) + key.encode() + b"](" + b"".join(b"K" + bytes([label]) for label in part) + b"e"
        for key, part in labels.items()
    )
    return b"\x80\x02}(" + b"".join(lists) + b"U\x04data" + array + b"u."


def batches(count):
    """Return images and coarse and fine classes; the first red pixel is the number of the image."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(count)
    return images, (np.arange(count) % 7).astype(np.uint8), (np.arange(count) % 10).astype(np.uint8)


def write(folder, version, kind, monkeypatch):
    """Write the files of CIFAR-10 or CIFAR-100, 100 training images and 20 (100) test images, in one version."""
    images, coarse, fine = batches(120)
    files = [*kind.versions[version].train, *kind.versions[version].test]
    parts = np.split(np.arange(120), 6) if len(files) == 6 else [np.arange(100), np.arange(100, 120)]
    for name, part in zip(files, parts, strict=True):
        if version == 0:
            names = {"fine_labels": fine, "coarse_labels": coarse} if kind is Cifar100Config else {"labels": fine}
            (folder / name).write_bytes(pickled(images[part], **{key: classes[part] for key, classes in names.items()}))
            continue
        monkeypatch.setitem(cifar.RECORDS, name, len(part))
        first = [coarse[part, None]] if kind is Cifar100Config else []
        np.concatenate([*first, fine[part, None], images[part].reshape(len(part), -1)], axis=1).tofile(folder / name)
    return images, fine


def built(kind, root, **fields):
    return kind(root=str(root), batch_size=32, **fields).build(CNNConfig()).data


@pytest.mark.parametrize("nested", [False, True], ids=["in the root", "in its subfolder"])
@pytest.mark.parametrize("version", [0, 1], ids=["python", "binary"])
@pytest.mark.parametrize("kind", [Cifar10Config, Cifar100Config])
def test_both_versions_of_cifar_are_read(tmp_path, monkeypatch, kind, version, nested):
    folder = tmp_path / kind.versions[version].folder if nested else tmp_path
    folder.mkdir(exist_ok=True)
    images, fine = write(folder, version, kind, monkeypatch)
    data = built(kind, tmp_path)
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [90, 10, 20]
    assert data.num_classes == (100 if kind is Cifar100Config else 10)
    x, y = torch.cat([data.train_x, data.valid_x]), torch.cat([data.train_y, data.valid_y])
    assert x.dtype == torch.uint8
    number = x[:, 0, 0, 0].long()
    assert sorted(number.tolist()) == list(range(100))  # every image is in one part
    assert (x.numpy() == images[number]).all()
    assert (y.numpy() == fine[number]).all()
    assert (data.test_x.numpy() == images[100:]).all()
    assert data.test_y.tolist() == fine[100:].tolist()
    floats = data.inputs(data.train_x).double()
    torch.testing.assert_close(floats.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(floats.std((0, 2, 3)), torch.ones(3).double(), atol=1e-3, rtol=0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, 1, Cifar10Config, monkeypatch)
    return tmp_path


def test_both_versions_give_the_same_split(folder, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("python")
    write(other, 0, Cifar10Config, monkeypatch)
    assert built(Cifar10Config, other).fingerprint() == built(Cifar10Config, folder).fingerprint()


def test_split_depends_on_its_seed(folder):
    one, two, other = (built(Cifar10Config, folder, split_seed=seed) for seed in (0, 0, 1))
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


def test_colour_images_are_cropped_and_flipped_but_digits_are_not_flipped():
    for kind, expected in ((Cifar10Config, (4, True)), (Cifar100Config, (4, True)), (SvhnConfig, (4, False))):
        augmentation = kind().augmentation()
        assert (augmentation.padding, augmentation.flip) == expected


# ---- damage


@pytest.mark.parametrize("version", [0, 1], ids=["python", "binary"])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_a_missing_file_is_named_with_a_remedy(tmp_path, monkeypatch, version, place):
    write(tmp_path, version, Cifar10Config, monkeypatch)
    name = [*Cifar10Config.versions[version].train, *Cifar10Config.versions[version].test][place]
    (tmp_path / name).unlink()
    with pytest.raises(
        TaskError, match=rf"{name}, which does not exist: add task\.download=true, or download .* task\.root .* task=digits"
    ) as caught:
        built(Cifar10Config, tmp_path)
    assert "\n" not in str(caught.value)


RECORD = 1 + 3 * 32 * 32


@pytest.mark.parametrize("size", [0, 1, RECORD - 1, RECORD * EACH - 5, RECORD * (EACH - 1)])
@pytest.mark.parametrize("name", [f"{BATCHES[4]}.bin", "test_batch.bin"])
def test_a_truncated_binary_file_is_named(folder, name, size):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:size])
    with pytest.raises(TaskError, match=rf"{name} is damaged \(.*\): add .* or download .* task\.root"):
        built(Cifar10Config, folder)


def test_an_invalid_class_is_named(folder):
    path = folder / f"{BATCHES[2]}.bin"
    content = bytearray(path.read_bytes())
    content[7 * RECORD] = 10
    path.write_bytes(bytes(content))
    with pytest.raises(TaskError, match=rf"{path.name} is damaged \(it has class 10, and classes are 0 to 9\)"):
        built(Cifar10Config, folder)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a data file ran')",))


DAMAGE = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[:-100],
    "no pickle": lambda whole: b"<html>not found</html>",
    "no dict": lambda whole: pickle.dumps([1, 2], protocol=2),
    "other keys": lambda whole: pickle.dumps({"data": [1]}, protocol=2),
    "code": lambda whole: pickle.dumps({"data": Evil()}, protocol=2),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_pickle_is_named_and_runs_no_code(tmp_path, monkeypatch, change):
    write(tmp_path, 0, Cifar100Config, monkeypatch)
    (tmp_path / "train").write_bytes(change((tmp_path / "train").read_bytes()))
    with pytest.raises(TaskError, match=r"train is damaged \(.+\): add task\.download=true") as caught:
        built(Cifar100Config, tmp_path)
    assert "\n" not in str(caught.value)


# ---- SVHN


@pytest.fixture
def house_numbers(tmp_path):
    images, _, digits = batches(120)
    for name, part in (("train", slice(0, 100)), ("test", slice(100, 120))):
        classes = np.where(digits[part] == 0, 10, digits[part])[:, None]
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", {"X": images[part].transpose(2, 3, 1, 0), "y": classes})
    return tmp_path


def test_svhn_equals_its_files(house_numbers):
    images, _, digits = batches(120)
    data = built(SvhnConfig, house_numbers)
    assert [len(part) for part in (data.train_y, data.valid_y, data.test_y)] == [90, 10, 20]
    number = data.train_x[:, 0, 0, 0].long()
    assert (data.train_x.numpy() == images[number]).all()
    assert (data.train_y.numpy() == digits[number]).all()  # class 10 is the digit 0
    assert (data.test_x.numpy() == images[100:]).all()
    assert data.num_classes == 10


@pytest.mark.parametrize("change", [lambda whole: b"", lambda whole: whole[: len(whole) // 2], lambda whole: b"x" * 5000])
def test_a_damaged_svhn_is_named(house_numbers, change):
    path = house_numbers / "test_32x32.mat"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(
        TaskError, match=r"test_32x32\.mat is damaged \(.+\): add task\.download=true.* \(delete a damaged file"
    ) as caught:
        built(SvhnConfig, house_numbers)
    assert "\n" not in str(caught.value)


# ---- downloads


@pytest.fixture
def torchvision(monkeypatch):
    """Put a fake torchvision in place, whose data sets are functions, and return it."""
    datasets = types.ModuleType("torchvision.datasets")
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)
    return datasets


def test_missing_files_are_downloaded_once(tmp_path, monkeypatch, torchvision):
    calls = []

    def fake(root, download, **part):
        calls.append((root, download, part))
        folder = tmp_path / "new" / Cifar10Config.versions[0].folder
        folder.mkdir()
        write(folder, 0, Cifar10Config, monkeypatch)

    torchvision.CIFAR10 = fake
    for _ in range(2):
        assert len(built(Cifar10Config, tmp_path / "new", download=True).train_y) == 90
    assert calls == [(str(tmp_path / "new"), True, {})]


def test_svhn_is_downloaded_in_two_parts_and_files_of_the_user_are_left_alone(house_numbers, torchvision):
    built(SvhnConfig, house_numbers, download=True)
    (house_numbers / "test_32x32.mat").rename(house_numbers / "test_32x32.mat.gz")  # an ending that SVHN does not have
    calls = []

    def fake(root, download, split):
        calls.append(split)
        if split == "test":
            (house_numbers / "test_32x32.mat.gz").rename(house_numbers / "test_32x32.mat")

    torchvision.SVHN = fake
    built(SvhnConfig, house_numbers, download=True)
    assert calls == ["train", "test"]


def test_the_download_of_another_process_is_awaited(house_numbers, monkeypatch):
    path = house_numbers / "test_32x32.mat"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    (house_numbers / published.LOCK).touch()

    @contextmanager
    def acquired(lock):
        assert lock == house_numbers / published.LOCK
        path.write_bytes(whole)
        yield

    monkeypatch.setattr(published, "FileLock", acquired)
    assert len(built(SvhnConfig, house_numbers, download=True).test_y) == 20


@pytest.mark.parametrize("kind", [Cifar10Config, Cifar100Config, SvhnConfig, FashionMnistConfig])
@pytest.mark.parametrize("error", [OSError("no route to host"), RuntimeError("File not found\nor corrupted.")])
def test_a_failed_download_is_one_sentence(tmp_path, torchvision, monkeypatch, kind, error):
    monkeypatch.setattr(kind, "versions", kind.versions[:1])  # not what this machine has installed

    def fake(root, download, **part):
        raise error

    setattr(torchvision, kind.dataset, fake)
    with pytest.raises(TaskError, match=rf"could not download {kind.dataset} to .*: check the network .* or download") as caught:
        built(kind, tmp_path, download=True)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, torchvision):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TaskError, match=r"could not download CIFAR10 .*whether the folder can be written to"):
        built(Cifar10Config, tmp_path / "file" / "data", download=True)


def test_a_torchvision_that_does_not_fit_torch_is_one_sentence(tmp_path, monkeypatch):
    """A GPU build beside a CPU build of torch raises RuntimeError; None in sys.modules raises ImportError."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(TaskError, match=r"needs torchvision, which cannot be imported \(ModuleNotFoundError: ") as caught:
        built(Cifar10Config, tmp_path, download=True)
    assert "\n" not in str(caught.value)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskError, match=r"\(RuntimeError: operator .*: install the torchvision that belongs to torch 2\."):
        built(Cifar10Config, tmp_path, download=True)
