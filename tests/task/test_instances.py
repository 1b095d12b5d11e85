"""Instances of hosts: their random streams, and the data view that follows from each property."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.hosts.cnn import CNNConfig
from esper.task.data import IGNORED, Data
from esper.task.digits import DigitsConfig
from esper.task.instances import Instance, Instances, Name, Split, data_view

HOSTS = 60
KINDS = ["ooo", "xoo", "oxx"]


@pytest.fixture(scope="module")
def mixed():
    """Return a task whose hosts differ in every property."""
    return DigitsConfig(
        kinds=KINDS, label_noise=[0.0, 0.3], data_share=[1.0, 0.1], classes=[0, 2, 5], rate_factor=[1.0, 0.25, 4.0]
    ).build(CNNConfig())


def drawn(task, split=Split.TRAINING, episode=0):
    return [task.instance(0, split, episode, index) for index in range(HOSTS)]


def test_an_instance_is_determined_by_its_name(mixed):
    assert drawn(mixed) == drawn(mixed)
    assert drawn(mixed) != drawn(mixed, episode=1)
    assert drawn(mixed) != drawn(mixed, Split.HELD_OUT)
    assert [mixed.instance(1, Split.TRAINING, 0, index) for index in range(HOSTS)] != drawn(mixed)


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("lesion", ["ooo", "xoo", "oxx"]),
        ("label_noise", [0.0, 0.3]),
        ("data_share", [1.0, 0.1]),
        ("rate_factor", [1.0, 0.25, 4.0]),
    ],
)
def test_values_are_drawn_uniformly(mixed, split, field, values):
    count = Counter(getattr(one, field) for episode in range(10) for one in drawn(mixed, split, episode))
    assert set(count) == set(values)
    expected = 10 * HOSTS / len(values)
    assert all(abs(number - expected) < 5 * expected**0.5 for number in count.values())


def test_properties_have_separate_streams(mixed):
    """A new property changes no other, so that the arms of a comparison share what they do not compare."""
    plain = DigitsConfig(kinds=KINDS).build(CNNConfig())
    assert [one.lesion for one in drawn(mixed)] == [one.lesion for one in drawn(plain)]
    noisy = DigitsConfig(label_noise=[0.0, 0.3]).build(CNNConfig())
    assert [one.label_noise for one in drawn(mixed)] == [one.label_noise for one in drawn(noisy)]
    assert (
        noisy.host(0, Split.TRAINING, 0, 3).segments[0][0].weight.equal(plain.host(0, Split.TRAINING, 0, 3).segments[0][0].weight)
    )


def test_each_host_draws_its_classes(mixed):
    few = [one.classes for one in drawn(mixed) if one.classes is not None]
    assert {len(classes) for classes in few} == {2, 5}
    assert len({classes for classes in few if len(classes) == 2}) > 5
    assert all(list(classes) == sorted(set(classes)) and classes[0] >= 0 and classes[-1] < 10 for classes in few)


def test_description_leaves_out_default_values():
    assert Instance().describe() == "plain"
    assert Instance(lesion="xoo").describe() == "xoo"
    odd = Instance(lesion="oxx", label_noise=0.2, data_share=0.1, classes=(1, 4, 7), rate_factor=0.3)
    assert odd.describe() == "oxx noise=0.2 data=0.1 classes=3 rate=0.3"


def test_default_view_holds_no_arrays(mixed):
    plain = DigitsConfig().build(CNNConfig()).view(0, Split.TRAINING, 0, 0)
    assert (plain.samples, plain.labels, plain.classes, plain.rate_factor) == (None, None, None, 1.0)


def test_healthy_instances_have_default_values():
    healthy = DigitsConfig(instances=Instances.healthy).build(CNNConfig())
    assert set(drawn(healthy)) == {Instance(lesion="ooo")}


# ---- data views

cases = st.builds(
    Instance,
    label_noise=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    data_share=st.floats(0.01, 1.0),
    classes=st.none() | st.sets(st.integers(0, 5), min_size=2, max_size=6).map(lambda chosen: tuple(sorted(chosen))),
)


@settings(max_examples=60, deadline=None)
@given(instance=cases, seed=st.integers(0, 50), samples=st.integers(30, 200))
def test_a_data_view_follows_its_instance(instance, seed, samples):
    targets = torch.arange(samples) % 6
    x = torch.zeros(samples, 1, 2, 2)
    data = Data(train_x=x, train_y=targets, valid_x=x, valid_y=targets, test_x=x, test_y=targets, num_classes=6)
    name = Name(root=seed, split=Split.TRAINING, episode=0, index=1)
    seen = data_view(instance, data, name)
    classes = range(6) if instance.classes is None else instance.classes
    pool = [index for index in range(samples) if int(targets[index]) in classes]
    own = list(range(samples)) if seen.samples is None else seen.samples.tolist()
    assert own == sorted(set(own))
    assert set(own) <= set(pool)
    assert len(own) == (len(pool) if instance.data_share == 1.0 else max(1, round(instance.data_share * len(pool))))
    labels = targets if seen.labels is None else seen.labels.long()
    wrong = [index for index in range(samples) if labels[index] != targets[index]]
    assert len(wrong) == round(instance.label_noise * len(own))
    assert set(wrong) <= set(own)
    assert all(int(labels[index]) in classes for index in wrong)
    assert (seen.classes is None) == (instance.classes is None)
    if seen.classes is not None:
        assert np.flatnonzero(seen.classes).tolist() == list(classes)
    again = data_view(instance, data, name)
    assert (seen.labels is None and again.labels is None) or seen.labels.equal(again.labels)


def test_wrong_labels_are_uniform_over_the_other_classes():
    targets = torch.zeros(4000, dtype=torch.int64)
    x = torch.zeros(4000, 1, 1, 1)
    data = Data(train_x=x, train_y=targets, valid_x=x, valid_y=targets, test_x=x, test_y=targets, num_classes=5)
    name = Name(root=0, split=Split.TRAINING, episode=0, index=0)
    labels = data_view(Instance(label_noise=0.5), data, name).labels
    count = Counter(labels.tolist())
    assert count[0] == 2000
    assert all(abs(count[label] - 500) < 110 for label in range(1, 5))


def test_padding_has_no_label_noise():
    targets = torch.tensor([[1, 2, IGNORED, IGNORED]] * 50)
    x = torch.zeros(50, 4, dtype=torch.int64)
    data = Data(train_x=x, train_y=targets, valid_x=x, valid_y=targets, test_x=x, test_y=targets, num_classes=300)
    labels = data_view(Instance(label_noise=0.5), data, Name(root=0, split=Split.TRAINING, episode=0, index=0)).labels.long()
    assert (labels[targets == IGNORED] == IGNORED).all()
    assert int((labels != targets).sum()) == 50


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"label_noise": []}, r"task\.label_noise must list at least one value, each from 0 to below 1, got \[\]"),
        ({"label_noise": [1.0]}, r"task\.label_noise .* got \[1\.0\]"),
        ({"data_share": [0.5, 0.0]}, r"task\.data_share .* each above 0 and at most 1"),
        ({"rate_factor": [-1.0]}, r"task\.rate_factor .* each above 0"),
        ({"rate_factor": [float("nan")]}, r"task\.rate_factor .* each above 0"),
        ({"classes": [1]}, r"task\.classes .* each 0 or at least 2"),
        ({"epoch_samples": 100}, r"task\.epoch_samples must be 0 or at least task\.batch_size=128, got 100"),
        ({"valid_samples": -1}, r"task\.valid_samples must be at least 0, got -1"),
    ],
)
def test_invalid_fields_are_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        DigitsConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"classes": [11]}, r"task\.classes=\[11\] exceeds the 10 classes"),
        ({"valid_samples": 360}, r"task\.valid_samples=360 exceeds the 359 validation samples"),
    ],
)
def test_fields_beyond_the_data_are_refused(fields, rule):
    with pytest.raises(ValueError, match=rule):
        DigitsConfig(**fields).build(CNNConfig())


def test_fewer_validation_samples_are_the_first_ones():
    whole, few = DigitsConfig().build(CNNConfig()).data, DigitsConfig(valid_samples=50).build(CNNConfig()).data
    assert few.valid_x.equal(whole.valid_x[:50])
    assert few.valid_y.equal(whole.valid_y[:50])
    assert few.test_y.equal(whole.test_y)
