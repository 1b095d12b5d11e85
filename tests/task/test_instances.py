"""Instances: drawn from named streams, fixed for the life of a host, and what each property makes of the data."""

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
    """A task whose hosts differ in everything."""
    return DigitsConfig(
        kinds=KINDS, label_noise=[0.0, 0.3], data_share=[1.0, 0.1], classes=[0, 2, 5], rate_factor=[1.0, 0.25, 4.0]
    ).build(CNNConfig())


def drawn(task, split=Split.TRAINING, episode=0):
    return [task.instance(0, split, episode, index) for index in range(HOSTS)]


def test_an_instance_is_its_name(mixed):
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
def test_every_value_is_about_as_likely_as_any_other(mixed, split, field, values):
    count = Counter(getattr(one, field) for episode in range(10) for one in drawn(mixed, split, episode))
    assert set(count) == set(values)
    expected = 10 * HOSTS / len(values)
    assert all(abs(number - expected) < 5 * expected**0.5 for number in count.values())


def test_properties_are_drawn_apart(mixed):
    """Drawing one more property changes none of the others: arms of a comparison share all that they do not compare."""
    plain = DigitsConfig(kinds=KINDS).build(CNNConfig())
    assert [one.lesion for one in drawn(mixed)] == [one.lesion for one in drawn(plain)]
    noisy = DigitsConfig(label_noise=[0.0, 0.3]).build(CNNConfig())
    assert [one.label_noise for one in drawn(mixed)] == [one.label_noise for one in drawn(noisy)]
    assert (
        noisy.host(0, Split.TRAINING, 0, 3).segments[0][0].weight.equal(plain.host(0, Split.TRAINING, 0, 3).segments[0][0].weight)
    )


def test_which_classes_are_drawn_for_each_host(mixed):
    few = [one.classes for one in drawn(mixed) if one.classes is not None]
    assert {len(classes) for classes in few} == {2, 5}
    assert len({classes for classes in few if len(classes) == 2}) > 5
    assert all(list(classes) == sorted(set(classes)) and classes[0] >= 0 and classes[-1] < 10 for classes in few)


def test_names_say_what_is_not_ordinary():
    assert Instance().describe() == "plain"
    assert Instance(lesion="xoo").describe() == "xoo"
    odd = Instance(lesion="oxx", label_noise=0.2, data_share=0.1, classes=(1, 4, 7), rate_factor=0.3)
    assert odd.describe() == "oxx noise=0.2 data=0.1 classes=3 rate=0.3"


def test_what_all_have_costs_nothing(mixed):
    plain = DigitsConfig().build(CNNConfig()).view(0, Split.TRAINING, 0, 0)
    assert (plain.samples, plain.labels, plain.classes, plain.rate_factor) == (None, None, None, 1.0)


def test_instances_do_not_move_the_digits_of_the_default():
    healthy = DigitsConfig(instances=Instances.healthy).build(CNNConfig())
    assert set(drawn(healthy)) == {Instance(lesion="ooo")}


# ---- views: any instance, any data

cases = st.builds(
    Instance,
    label_noise=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    data_share=st.floats(0.01, 1.0),
    classes=st.none() | st.sets(st.integers(0, 5), min_size=2, max_size=6).map(lambda chosen: tuple(sorted(chosen))),
)


@settings(max_examples=60, deadline=None)
@given(instance=cases, seed=st.integers(0, 50), samples=st.integers(30, 200))
def test_a_lesson_is_what_its_instance_says(instance, seed, samples):
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
    told = targets if seen.labels is None else seen.labels.long()
    wrong = [index for index in range(samples) if told[index] != targets[index]]
    assert len(wrong) == round(instance.label_noise * len(own))  # exactly that share, and none where it is not looked
    assert set(wrong) <= set(own)
    assert all(int(told[index]) in classes for index in wrong)
    assert (seen.classes is None) == (instance.classes is None)
    if seen.classes is not None:
        assert np.flatnonzero(seen.classes).tolist() == list(classes)
    again = data_view(instance, data, name)
    assert (seen.labels is None and again.labels is None) or seen.labels.equal(again.labels)


def test_wrong_labels_are_any_of_the_others():
    targets = torch.zeros(4000, dtype=torch.int64)
    x = torch.zeros(4000, 1, 1, 1)
    data = Data(train_x=x, train_y=targets, valid_x=x, valid_y=targets, test_x=x, test_y=targets, num_classes=5)
    name = Name(root=0, split=Split.TRAINING, episode=0, index=0)
    told = data_view(Instance(label_noise=0.5), data, name).labels
    count = Counter(told.tolist())
    assert count[0] == 2000
    assert all(abs(count[label] - 500) < 110 for label in range(1, 5))


def test_padding_is_never_a_wrong_label():
    targets = torch.tensor([[1, 2, IGNORED, IGNORED]] * 50)
    x = torch.zeros(50, 4, dtype=torch.int64)
    data = Data(train_x=x, train_y=targets, valid_x=x, valid_y=targets, test_x=x, test_y=targets, num_classes=300)
    told = data_view(Instance(label_noise=0.5), data, Name(root=0, split=Split.TRAINING, episode=0, index=0)).labels.long()
    assert (told[targets == IGNORED] == IGNORED).all()
    assert int((told != targets).sum()) == 50


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
def test_each_rule_fires(fields, rule):
    with pytest.raises(ValueError, match=rule):
        DigitsConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"classes": [11]}, r"task\.classes=\[11\] exceeds the 10 classes"),
        ({"valid_samples": 360}, r"task\.valid_samples=360 exceeds the 359 validation samples"),
    ],
)
def test_what_only_the_data_can_say_is_said_when_it_is_there(fields, rule):
    with pytest.raises(ValueError, match=rule):
        DigitsConfig(**fields).build(CNNConfig())


def test_fewer_validation_samples_are_the_first_of_all():
    whole, few = DigitsConfig().build(CNNConfig()).data, DigitsConfig(valid_samples=50).build(CNNConfig()).data
    assert few.valid_x.equal(whole.valid_x[:50])
    assert few.valid_y.equal(whole.valid_y[:50])
    assert few.test_y.equal(whole.test_y)
