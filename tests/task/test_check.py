"""Wrong data of a task is refused in one sentence that names the task and the entry, before a run starts."""

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import ConfigError
from esper.growth.objective import Numbers
from esper.hosts.cnn import CNNConfig
from esper.hosts.transformer import TransformerConfig
from esper.notices import UserNotice
from esper.task.data import IGNORED, ROWS, Data, TaskError, rows_at_once
from esper.task.digits import DigitsConfig
from esper.task.events import EventsConfig
from esper.task.images import ImagesConfig
from esper.task.loading import load_task
from esper.task.text import TextConfig
from tests.forked import run_forked

Change = Callable[[Data], Any]


def image_data() -> Data:
    x, y = torch.randn(12, 1, 8, 8), torch.arange(12) % 3
    return Data(train_x=x, train_y=y, valid_x=x[:6], valid_y=y[:6], test_x=x[6:], test_y=y[6:], num_classes=3)


def text_data() -> Data:
    x = torch.arange(48).view(12, 4) % 5
    y = (x + 1) % 5
    return Data(train_x=x, train_y=y, valid_x=x[:6], valid_y=y[:6], test_x=x[6:], test_y=y[6:], num_classes=5)


@dataclass(kw_only=True, slots=True)
class WrongImages(ImagesConfig):
    batch_size: int = 4
    change: Change = field(default=lambda data: data)

    def load(self, context):
        return self.change(image_data())


@dataclass(kw_only=True, slots=True)
class WrongText(TextConfig):
    batch_size: int = 4
    change: Change = field(default=lambda data: data)

    def load(self, context):
        return self.change(text_data())


def with_value(name: str, value: float) -> Change:
    """Return a change of the first value of an entry."""

    def change(data: Data) -> Data:
        entry = getattr(data, name).clone()
        entry.view(-1)[0] = value
        return replace(data, **{name: entry})

    return change


def with_entry(name: str, make: Callable[[Any], Any]) -> Change:
    return lambda data: replace(data, **{name: make(getattr(data, name))})


def as_bytes(std: float) -> Change:
    bytes_of = {name: (lambda x: (x * 9).abs().byte()) for name in ("train_x", "valid_x", "test_x")}

    def change(data: Data) -> Data:
        parts = {name: make(getattr(data, name)) for name, make in bytes_of.items()}
        return replace(data, **parts, mean=torch.zeros(1, 1, 1), std=torch.full((1, 1, 1), std))

    return change


IMAGES: dict[str, tuple[Change, str]] = {
    "nan": (with_value("train_x", torch.nan), "train_x has 1 values that are NaN or infinite: remove or replace them"),
    "inf": (with_value("test_x", torch.inf), "test_x has 1 values that are NaN or infinite"),
    "labels_from_1": (
        with_entry("train_y", lambda y: y + 1),
        "train_y has the value 3, which must be from 0 to num_classes - 1 = 2: subtract 1 from all classes",
    ),
    "high_label": (with_value("valid_y", 3), "valid_y has the value 3, which must be from 0 to num_classes - 1 = 2"),
    "negative_label": (with_value("train_y", -1), "train_y has the value -1, which must be from 0 to"),
    "ignored_label": (with_value("train_y", IGNORED), "train_y has the value -100, which must be from 0 to"),
    "float_labels": (with_entry("test_y", torch.Tensor.float), "test_y is torch.float32: make it torch.int64, the number of"),
    "one_hot": (with_entry("train_y", lambda y: torch.eye(3)[y]), "train_y has the shape [12, 3]: make it [12]"),
    "list": (with_entry("valid_y", list), "valid_y is a list: make it a tensor"),
    "empty_train": (lambda data: replace(data, train_x=data.train_x[:0], train_y=data.train_y[:0]), "train_x is empty: put at"),
    "empty_valid": (lambda data: replace(data, valid_x=data.valid_x[:0], valid_y=data.valid_y[:0]), "valid_x is empty: put at"),
    "empty_test": (lambda data: replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0]), "test_x is empty: put at least"),
    "lengths": (with_entry("train_y", lambda y: y[1:]), "train_x has 12 samples and train_y has 11: give each sample its target"),
    "vectors": (
        with_entry("train_x", lambda x: x.flatten(1)),
        "train_x has the shape [12, 64]: make it [n, C, H, W], with samples of one shape in all parts; rows of numbers become",
    ),
    "other_shape": (with_entry("test_x", lambda x: x[..., 1:]), "test_x has the shape [6, 1, 8, 7]: make it [n, C, H, W], with"),
    "doubles": (with_entry("train_x", torch.Tensor.double), "train_x is torch.float64: make it torch.float32 or torch.uint8"),
    "bytes": (
        with_entry("train_x", torch.Tensor.byte),
        "train_x holds bytes, and the data has no mean and std: set both, a value for each channel from 0 to 255",
    ),
    "std": (as_bytes(0.0), "mean or std is not finite, or std is 0: leave out constant channels"),
    "one_class": (lambda data: replace(data, num_classes=1), "num_classes must be at least 2, got 1"),
    "few": (
        lambda data: replace(data, train_x=data.train_x[:3], train_y=data.train_y[:3]),
        "train_x has 3 samples, fewer than task.batch_size=4: lower task.batch_size",
    ),
    "tuple": (lambda data: (data.train_x, data.train_y), "load returns a tuple: return a Data"),
    "no_axis": (with_entry("train_y", lambda y: y[0]), "train_y is empty: put at"),
    "gradients": (with_entry("valid_x", lambda x: x.requires_grad_()), "valid_x requires gradients, and data are constants: use"),
}
TEXT: dict[str, tuple[Change, str]] = {
    "high_token": (with_value("valid_x", 5), "valid_x, as a token, has the value 5, which must be from 0 to num_classes - 1"),
    "negative_token": (with_value("train_x", IGNORED), "train_x, as a token, has the value -100"),
    "high_target": (with_value("train_y", 9), "train_y has the value 9, which must be from 0 to"),
    "float_tokens": (with_entry("test_x", torch.Tensor.float), "test_x is torch.float32: make it torch.int64"),
    "last_only": (with_entry("train_y", lambda y: y[:, -1]), "train_y has the shape [12]: make it [12, 4]"),
    "padding": (with_entry("test_y", lambda y: y * 0 + IGNORED), "test_y has no target but -100, which is ignored: remove"),
}
"""What is wrong -> the change of sound data, and the sentence."""


def test_what_a_drift_makes_of_good_data_is_no_mistake() -> None:
    """White digits on black, standardised, have a mean far from 0 when they are inverted."""
    data = replace(as_bytes(1.0)(image_data()), mean=torch.tensor([12.0]), std=torch.tensor([47.0]))
    for part in ("train_x", "valid_x", "test_x"):
        x = torch.zeros_like(getattr(data, part))
        x[:, :, 0, :2] = 255
        data = replace(data, **{part: x})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drifted = WrongImages().drifted("invert", data)
    assert float(drifted.inputs(drifted.train_x).mean()) > 3


@pytest.mark.parametrize("kind", IMAGES)
def test_wrong_images_are_refused(kind: str) -> None:
    change, sentence = IMAGES[kind]
    with pytest.raises(TaskError, match=rf"^task=WrongImages: {re.escape(sentence)}[^\n]*$"):
        load_task(WrongImages(change=change), CNNConfig())


@pytest.mark.parametrize("kind", TEXT)
def test_wrong_texts_are_refused(kind: str) -> None:
    change, sentence = TEXT[kind]
    with pytest.raises(TaskError, match=rf"^task=WrongText: {re.escape(sentence)}[^\n]*$"):
        load_task(WrongText(change=change), TransformerConfig(context=4))


def test_sound_data_passes() -> None:
    load_task(WrongImages(), CNNConfig())

    @dataclass(kw_only=True)
    class Optional(WrongImages):
        file: str | None = None

    load_task(Optional(), CNNConfig())
    load_task(WrongImages(change=as_bytes(1.0)), CNNConfig())
    load_task(WrongText(change=with_value("train_y", IGNORED)), TransformerConfig(context=4))


def moved_channels(data: Data) -> Data:
    wide = {f"{part}_x": getattr(data, f"{part}_x").permute(0, 2, 3, 1) for part in ("train", "valid", "test")}
    return replace(data, **wide)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (moved_channels, r"train_x has the shape \[12, 8, 8, 1\], .*: if channels come last, return x.permute\(0, 3, 1, 2\)"),
        (with_entry("train_x", lambda x: 40 * x + 128), "train_x has mean 1.* and standard deviation .*: hosts learn best from"),
        (
            lambda data: replace(data, valid_x=data.valid_x[:2], valid_y=data.valid_y[:2]),
            "valid_x has 2 samples: accuracy on it moves in steps of 50 pp, so use more",
        ),
        (with_entry("valid_y", lambda y: y * 0 + 1), "valid_y has class 1 only: accuracy on it shows nothing of the others, so"),
        (with_entry("num_classes", lambda count: 4), "num_classes is 4, and the highest class of train_y is 2"),
        (
            with_entry("test_x", lambda x: 20 * x),
            r"test_x has mean \S+ and standard deviation \S+, and train_x has .*: scale all sets alike",
        ),
        (with_entry("valid_x", lambda x: x + 9), "valid_x has mean .*: scale all sets alike"),
        (with_entry("valid_x", lambda x: x / 20), "valid_x has mean .*: scale all sets alike"),
    ],
)
def test_what_is_hardly_meant_warns(change: Change, sentence: str) -> None:
    with pytest.warns(UserNotice, match=sentence):
        WrongImages(change=change).build(CNNConfig())


def test_the_command_shows_the_warning_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(  # as Python has it: pytest records warnings, and a fork would, too
        warnings, "_showwarnmsg_impl", lambda message: sys.stderr.write(warnings._formatwarnmsg(message))
    )
    (tmp_path / "raw_digits.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "import esper\n"
        "from esper.task.digits import DigitsConfig\n"
        "@dataclass(kw_only=True, slots=True)\n"
        "class RawConfig(DigitsConfig):\n"
        "    'Digits that nobody scaled.'\n"
        "    def load(self, context):\n"
        "        data = DigitsConfig.load(self, context)\n"
        "        return replace(data, train_x=40 * data.train_x + 128)\n"
        "esper.register('task', 'raw', RawConfig)\n"
    )
    small = ["hosts=2", "steps=1", "updates=1", "agent=wait", "telemetry=quiet", "hydra.run.dir=run"]
    done = run_forked("esper.train", "plugins=[raw_digits.py]", "task=raw", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: train_x has mean 128 and standard deviation 40: hosts learn best from") == 1


def test_sound_data_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    WrongImages().build(CNNConfig())
    assert not recwarn.list


def test_a_class_without_samples_is_refused_where_hosts_draw_classes() -> None:
    config = WrongImages(change=with_entry("valid_y", lambda y: y.clamp(max=1)))
    load_task(config, CNNConfig())
    config.classes = [0, 2]
    with pytest.raises(TaskError, match=r"^task=WrongImages: valid_y has no sample of class 2, .*: use task.classes=\[0\]$"):
        load_task(config, CNNConfig())
    with pytest.raises(TaskError, match=r"draw: raise task.valid_samples=2, or use task.classes=\[0\]$"):
        load_task(WrongImages(classes=[0, 2], valid_samples=2), CNNConfig())


@pytest.mark.parametrize(("shape", "rows"), [((1, 8, 8), ROWS), ((3, 224, 224), 445), ((3, 9000, 9000), 1)])
def test_of_large_samples_fewer_are_read_at_once(shape: tuple[int, ...], rows: int) -> None:
    assert rows_at_once(torch.empty(1, *shape, device="meta")) == rows


@pytest.mark.usefixtures("own_parts")
def test_the_command_names_the_option() -> None:
    @dataclass(kw_only=True, slots=True)
    class Mine(ImagesConfig):
        """Images with a NaN."""

        batch_size: int = 4
        """Samples."""

        def load(self, context):
            return with_value("valid_x", torch.nan)(image_data())

    @dataclass(kw_only=True, slots=True)
    class Without(ImagesConfig):
        """Images that take no context."""

        def load(self):
            return image_data()

    esper.register("task", "without", Without)
    with pytest.raises(ConfigError, match=r"^task=without: load must take the length of a context \(too many positional argum"):
        ready(check(["task=without"]))
    esper.register("task", "mine", Mine)
    with pytest.raises(ConfigError, match=r"^task=mine: valid_x has 1 values that are NaN or infinite: remove or replace them$"):
        ready(check(["task=mine"]))


def test_a_shipped_task_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"^task=digits: train_x has 1078 samples, fewer than task.batch_size=2000: lower"):
        ready(check(["task=digits", "task.batch_size=2000"]))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("task.events.ramp=[5]", "^task.events.ramp has no effect, since task.events.kinds is empty$"),
        ("task.events.ramp=[5] task.events.replay=0.5", "^task.events.ramp, task.events.replay have no effect, since"),
        ("task.events.kinds=[blur] task.events.group=1", "^task.events.group=1 has no effect, since no classes arrive or leave$"),
        ("task.events.kinds=[blur] task.events.replay=0.5", "^task.events.replay=0.5 has no effect, since no classes arrive$"),
        (
            "task=digits_mlp task.instances=healthy host.lesion_keeps=0.9",
            "^host.lesion_keeps has no effect on healthy hosts: add",
        ),
        ("task.pretrain_pool=8", "^task.pretrain_pool has no effect, since task.pretrain is 0$"),
        ("task.pretrain_folder=pools", "^task.pretrain_folder has no effect, since task.pretrain is 0$"),
    ],
)
def test_keys_without_effect_are_told(overrides, sentence):
    with pytest.warns(UserWarning, match=sentence):
        check(overrides.split())


def test_few_validation_samples_are_told_also_if_they_are_chosen():
    with pytest.warns(UserNotice, match=r"^task.valid_samples=3: valid_x has 3 samples: accuracy on it moves in steps of 33 pp"):
        DigitsConfig(valid_samples=3).build(CNNConfig())
    with pytest.warns(UserNotice, match=r"^task.valid_samples=3: valid_x has 3 samples: accuracy on it moves in steps of 8.3 pp"):
        WrongText(valid_samples=3).build(TransformerConfig(context=4))  # 4 targets each


def many(change: Change) -> Change:
    """Return a change of 120 samples of three classes in order."""

    def changed(data: Data) -> Data:
        x, y = torch.randn(120, 1, 8, 8), torch.arange(120) // 40
        return change(Data(train_x=x, train_y=y, valid_x=x, valid_y=y, test_x=x, test_y=y, num_classes=3))

    return changed


def test_validation_samples_that_are_sorted_and_cut_are_told(recwarn: pytest.WarningsRecorder) -> None:
    shuffled = with_entry("valid_y", lambda y: y[torch.randperm(len(y))])
    WrongImages(change=many(shuffled), valid_samples=20).build(CNNConfig())
    WrongImages(change=many(with_entry("num_classes", int)), valid_samples=0).build(CNNConfig())
    assert not recwarn.list
    with pytest.warns(UserNotice, match=r"^task.valid_samples=20: none of the first .* of class 1, .*: shuffle the validation"):
        WrongImages(change=many(with_entry("num_classes", int)), valid_samples=20).build(CNNConfig())


def cropped(x: torch.Tensor) -> torch.Tensor:
    return x[..., 1:]


DRIFTS: dict[str, tuple[Change, str]] = {
    "not_data": (lambda data: data.train_x, "its function returns a Tensor: return a Data"),
    "nothing": (lambda data: None, "its function returns a NoneType: return a Data"),
    "in_place": (
        lambda data: with_entry("train_x", lambda x: x.mul_(0.5))(data),
        "the data before it has changed too",
    ),
    "global": (
        with_entry("train_x", lambda x: x + torch.randn_like(x)),
        "numbers were drawn from torch's global random stream: draw from the generator",
    ),
    "fewer": (
        lambda data: replace(data, train_x=data.train_x[1:], train_y=data.train_y[1:]),
        r"train_x has the shape \[11, 1, 8, 8\] instead of \[12, 1, 8, 8\]",
    ),
    "smaller": (
        lambda data: replace(data, **{f"{part}_x": cropped(getattr(data, f"{part}_x")) for part in ("train", "valid", "test")}),
        r"train_x has the shape \[12, 1, 8, 7\] instead of",
    ),
    "nan": (with_value("train_x", torch.nan), "train_x has 1 values that are NaN"),
    "bytes": (as_bytes(1.0), "train_x is torch.uint8 instead of torch.float32: keep the type"),
    "scale": (lambda data: replace(data, mean=torch.tensor([1.0])), "num_classes, mean or std differs: keep them"),
}
"""What a drift of the user's own does -> its function, and the sentence."""


@pytest.mark.parametrize("kind", DRIFTS)
def test_a_drift_that_changes_the_form_of_data_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, sentence = DRIFTS[kind]
    monkeypatch.setattr(WrongImages, "drifts", {"mine": lambda data, rng: change(data)})
    with pytest.raises(TaskError, match=rf"^task.events.kinds=\[mine\]: in this drift, {sentence}[^\n]*$"):
        load_task(WrongImages(events=EventsConfig(kinds=["mine"])), CNNConfig())


def test_a_drift_that_changes_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrongImages, "drifts", {"mine": lambda data, rng: replace(data)})
    with pytest.warns(UserNotice, match=r"^task.events.kinds=\[mine\]: this drift changes nothing"):
        WrongImages().drifted("mine", image_data())


def test_a_drift_that_takes_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrongImages, "drifts", {"mine": lambda data: data})
    with pytest.raises(TaskError, match=r"its function must take a Data and a random generator \(too many positional ar"):
        load_task(WrongImages(events=EventsConfig(kinds=["mine"])), CNNConfig())


def test_mapped_data_does_not_drift() -> None:
    config = WrongImages(events=EventsConfig(kinds=["blur"]), change=with_entry("mapped", lambda _: True))
    with pytest.raises(TaskError, match=r"^task=WrongImages: mapped data stays out of memory, but drifts need copies in memory"):
        load_task(config, CNNConfig())


def test_targets_that_are_numbers_have_no_classes_to_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrongImages, "build_objective", lambda config: Numbers())
    for wrong in (WrongImages(label_noise=[0.2]), WrongImages(events=EventsConfig(kinds=["mislabel"]))):
        with pytest.raises(
            TaskError, match=r"^task=WrongImages: the targets of this task are numbers, without classes: leave out"
        ):
            load_task(wrong, CNNConfig())


def test_sizes_are_those_of_a_sample_also_if_there_is_one() -> None:
    one = with_entry("valid_x", lambda x: x[:1])
    few = WrongImages(change=lambda data: replace(one(data), valid_y=data.valid_y[:1])).build(CNNConfig())
    assert few.sizes == WrongImages().build(CNNConfig()).sizes
