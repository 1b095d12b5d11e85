"""Data that is streamed gives the numbers of resident data, bit for bit, also where a read fails once."""

import errno
import gc
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from esper.files import DiskError
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle import operations
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import empty
from esper.optimisers.sgd import SGDConfig
from esper.pool.host_sampler import EpochOrder, HostSampler
from esper.pool.member_data import MemberData, place_data
from esper.pool.prefetch import AHEAD, Prefetch
from esper.pool.shard import Shard
from esper.seeds.blueprints.plain import NormConfig
from esper.task.augment import Augmentation
from esper.task.data import TaskError
from esper.task.diabetes import DiabetesConfig
from esper.task.digits import DigitsConfig
from esper.task.digits_drift import DigitsDriftConfig
from esper.task.images import normalised
from esper.task.instances import Split
from esper.task.mapped import joined
from esper.task.text_folder import TextFolderConfig

CPU, HOSTS = torch.device("cpu"), 3


def digits(kind=DigitsConfig, **fields):
    return kind(batch_size=16, valid_samples=60, **fields).build(CNNConfig(base_channels=2))


def augmented():
    """Digits as bytes, with shifts and flips."""
    task = digits()
    sets = {f"{part}_x": (getattr(task.data, f"{part}_x") * 40 + 60).clamp(0, 255).byte() for part in ("train", "valid", "test")}
    task.data = normalised(replace(task.data, **sets))
    task.augmentation = Augmentation(padding=1, flip=True)
    return task


def text(*, mapped=False):
    """Random letters in files of their own."""
    with TemporaryDirectory() as folder:
        for name in range(6):
            letters = np.random.default_rng(name).integers(97, 103, 3000, dtype=np.uint8)
            Path(folder, f"{name}.txt").write_bytes(letters.tobytes())
        config = TextFolderConfig(folder=folder, batch_size=4, valid_samples=12, mapped=mapped)
        return config.build(TransformerConfig(layers=1, width=8, heads=2, context=16))


TASKS = {
    "instances": lambda: digits(label_noise=[0.3], classes=[0, 4], data_share=[1.0]),
    "drifts": lambda: digits(DigitsDriftConfig),
    "augmented": augmented,
    "text": text,
    "numbers": lambda: DiabetesConfig(valid_samples=60).build(MLPConfig()),
}


def shard_of(task, data, *, micro_batches=1):
    sampler = HostSampler(task=task, split=Split.TRAINING, num_hosts=HOSTS, epochs=4)
    views = sampler.views()
    shard = Shard(sampler.hosts(), (NormConfig(),), data, task, CPU, views, optimiser=SGDConfig(micro_batches=micro_batches))
    shard.arrange(operations.roles(empty(HOSTS, len(shard.slots)), SlotsConfig()))
    orders = [sampler.order(time, views) for time in range(3)]
    return shard, [
        EpochOrder(one.samples_NI[:, :160], None if one.draws_NI3 is None else one.draws_NI3[:, :160], one.time, 4)
        for one in orders
    ]


def numbers(task, data, **settings):
    """Capture, train and measure two epochs, and return all numbers."""
    shard, orders = shard_of(task, data, **settings)
    shard.capture(orders[0])
    found = [part for slot in shard.take_gradients() for part in (slot.features, slot.grad)]
    for order in orders[1:]:
        report = shard.train_epoch(order, probe=True)
        seen = shard.validate(np.zeros((1, HOSTS, len(shard.slots)), np.float32), test=order.time == 2)
        found += [
            torch.from_numpy(part) for part in (report.loss_M, report.host_norm_M, seen.loss_VM, seen.accuracy_VM, seen.error_VM)
        ]
    return [*found, shard.network.host.flat.detach().clone()]


def same(some, others):
    return len(some) == len(others) and all(
        a.equal(b) or ((a.isnan() == b.isnan()).all() and a.nan_to_num().equal(b.nan_to_num()))
        for a, b in zip(some, others, strict=True)
    )


def no_thread_left():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("name", TASKS)
def test_streamed_and_packed_data_give_the_numbers_of_the_data_as_loaded(name):
    task = TASKS[name]()
    wanted = numbers(task, task.data)
    packed, streamed = place_data(task.data, CPU, True), place_data(task.data, CPU, False)
    assert packed.train_y.element_size() <= 4
    assert (packed.mapped, streamed.mapped) == (False, True)
    assert same(numbers(task, packed), wanted)
    assert same(numbers(task, streamed), wanted)
    assert same(numbers(task, streamed, micro_batches=3), numbers(task, packed, micro_batches=3))
    assert no_thread_left()


def test_mapped_text_gives_the_numbers_of_text_in_memory():
    small, large = text(mapped=True), text()
    assert small.data.mapped
    assert small.data.train_x.dtype is torch.int16
    assert small.data.fingerprint() == large.data.fingerprint()
    assert same(numbers(small, place_data(small.data, CPU, None)), numbers(large, large.data))
    resident = place_data(small.data, CPU, True)
    assert not resident.mapped
    assert resident.train_x.equal(small.data.train_x)
    assert resident.train_x.data_ptr() != small.data.train_x.data_ptr(), "it still lies in its file"


def test_parts_are_written_to_a_file_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parts = [np.arange(start, start + 6, dtype=np.int16).reshape(3, 2) for start in (0, 6, 12)]
    whole = joined(iter(parts), mapped=True)
    assert whole.equal(joined(iter(parts), mapped=False))
    assert not list(tmp_path.iterdir())


def test_a_chosen_folder_that_is_not_there_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with pytest.raises(TaskError, match=r"^TMPDIR=.*gone is not a folder in which files can be written: make it, or set another"):
        joined([np.zeros(3)], mapped=True)
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    assert joined([np.zeros(3)], mapped=True).equal(torch.zeros(3, dtype=torch.float64))
    monkeypatch.setattr("esper.task.mapped.TemporaryFile", full)
    with pytest.raises(DiskError, match=r"write the mapped data to .*gone"):
        joined([np.zeros(3)], mapped=True)


def full():
    raise OSError(errno.ENOSPC, "no space")


class Failing:
    """Fails at the first reads of some batches, which are numbered from 1 in the order of their first read."""

    def __init__(self, monkeypatch, failures):
        self.batches, self.failures, read = [], {number: list(errors) for number, errors in failures.items()}, MemberData._batch

        def failing(views, batch):
            if not any(batch is one for one in self.batches):
                self.batches.append(batch)
            number = next(place for place, one in enumerate(self.batches, 1) if one is batch)
            if self.failures.get(number):
                raise self.failures[number].pop()
            return read(views, batch)

        monkeypatch.setattr(MemberData, "_batch", failing)


@pytest.mark.parametrize("failure", [OSError("no medium"), SystemExit(3), MemoryError()], ids=lambda one: type(one).__name__)
def test_a_reader_that_fails_or_dies_once_changes_nothing(monkeypatch, failure):
    task = digits()
    data = place_data(task.data, CPU, False)
    wanted = numbers(task, data)
    failing = Failing(monkeypatch, {number: [failure] for number in (1, 4, 5, 9)})
    assert same(numbers(task, data), wanted)
    assert len(failing.batches) > 9
    assert not any(failing.failures.values())
    assert no_thread_left()


def test_a_reader_that_fails_twice_is_reported_in_one_sentence(monkeypatch):
    task = digits()
    failing = Failing(monkeypatch, {4: [OSError("no medium"), OSError("no medium")]})
    shard, orders = shard_of(task, place_data(task.data, CPU, False))
    with pytest.raises(TaskError, match=r"^the data could not be read, even on a second attempt \(OSError: no medium\): check"):
        shard.train_epoch(orders[0])
    assert failing.failures == {4: []}
    assert no_thread_left()


def test_a_batch_is_released_by_who_takes_or_passes_over_it():
    """Not by the thread that reads it, which may do so while a CUDA graph is captured."""

    class Batch:
        def __del__(self):
            released.append(threading.current_thread())

    released, keys = [], [object() for _ in range(8)]
    prefetch = Prefetch(lambda key: Batch(), keys)
    for key in (keys[0], keys[3], keys[5]):
        prefetch.take(key)
    prefetch.close()
    del prefetch
    gc.collect()
    assert len(released) >= 6
    assert set(released) == {threading.current_thread()}


def test_batches_are_read_ahead_but_not_far_and_passed_over_ones_are_dropped():
    read, keys = [], [object() for _ in range(12)]

    def reading(key):
        read.append(keys.index(key))
        return read[-1]

    prefetch = Prefetch(reading, keys)
    assert prefetch.take(keys[0]) == 0
    assert prefetch.take(keys[3]) == 3
    waiting = threading.Event()
    waiting.wait(0.2)
    assert read == list(range(4 + AHEAD + 1))
    prefetch.close()
    assert no_thread_left()


def test_a_run_that_is_stopped_leaves_no_thread():
    task = digits()
    shard, orders = shard_of(task, place_data(task.data, CPU, False))
    shard.network.begin_step = lambda progress: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        shard.train_epoch(orders[0])
    assert no_thread_left()
