"""Timetables, and the drifts of a data set."""

import warnings
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.cli.overrides import check
from esper.config import ConfigError
from esper.hosts.cnn import CNNConfig
from esper.hosts.transformer import TransformerConfig
from esper.task import python_text
from esper.task.base import Task
from esper.task.data import IGNORED, Data, TaskError
from esper.task.digits import DigitsConfig
from esper.task.digits_drift import DigitsDriftConfig
from esper.task.drifts import IMAGE_DRIFTS, domains
from esper.task.events import Event, EventsConfig, change, class_shares, pace
from esper.task.instances import Name, Split
from esper.task.loading import load_task
from esper.task.python_text import PythonTextConfig
from esper.task.python_text_drift import PythonTextDriftConfig
from esper.task.text import TextConfig

KINDS = ["invert", "rotate", "mirror"]
configs = st.builds(
    EventsConfig,
    kinds=st.just(KINDS),
    count=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    first=st.integers(0, 5),
    last=st.integers(40, 60),
    gap=st.integers(1, 4),
    ramp=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    lasts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    recurs=st.sampled_from([0, 2, 3]),
)


@settings(max_examples=50, deadline=None)
@given(config=configs, lasts=st.integers(1, 5), seed=st.integers(0, 99))
def test_chosen_kinds_pass_and_the_first_other_one_stays(config, lasts, seed):
    config.passing, config.lasts = ["invert", "mirror"], [lasts]
    config.check(tuple(IMAGE_DRIFTS))
    events = config.draw(lambda purpose: name(0, seed).stream(purpose), range(10))
    stays = [event for event in events if event.end is None]
    assert {event.kind for event in stays} <= {"rotate"}
    assert all(event.kind in config.passing for event in events[:-1]), "no event follows the one that stays"
    assert all(event.end - event.start - event.ramp == lasts for event in events if event.kind in config.passing)


def name(index, seed=0, split=Split.TRAINING):
    return Name(root=seed, split=split, episode=0, index=index)


@settings(max_examples=100, deadline=None)
@given(config=configs, seed=st.integers(0, 99))
def test_a_timetable_follows_its_config(config, seed):
    config.check(tuple(IMAGE_DRIFTS))
    events = config.draw(name(0, seed).stream, range(10))
    assert config.draw(name(0, seed).stream, range(10)) == events
    assert len(events) in config.count
    for event in events:
        assert config.first <= event.start <= config.last
        assert event.ramp in config.ramp
        assert (0 if event.end is None else event.end - event.start - event.ramp) in config.lasts
    for event, following in pairwise(events):
        assert event.kind != following.kind
        settled = event.start + event.ramp if event.end is None else event.end + event.ramp
        assert following.start >= settled + config.gap
        assert event.strength(following.start) == (event.end is None)
    if config.recurs == 2 and len(events) == 3:
        assert events[2].kind == events[0].kind


def test_the_strength_of_an_event():
    sudden, gradual = Event(kind="invert", start=2), Event(kind="invert", start=2, ramp=3)
    passing = Event(kind="invert", start=1, ramp=1, end=4)
    assert [sudden.strength(epoch) for epoch in range(5)] == [0, 0, 1, 1, 1]
    assert [gradual.strength(epoch) for epoch in range(8)] == [0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert [passing.strength(epoch) for epoch in range(7)] == [0, 0.5, 1, 1, 0.5, 0, 0]
    assert [one.describe() for one in (sudden, gradual, passing)] == ["invert@2", "invert@2+3", "invert@1+1-4"]


def test_a_drift_replaces_the_one_before_and_leaves_it_when_it_passes():
    events = (Event(kind="invert", start=1), Event(kind="mirror", start=3, end=5), Event(kind="turn", start=7, ramp=1))
    states = [change(events, epoch, IMAGE_DRIFTS) for epoch in range(9)]
    assert states[:3] == [("", "", 0), ("", "invert", 1), ("", "invert", 1)]
    assert states[3:7] == [("invert", "mirror", 1), ("invert", "mirror", 1), ("invert", "mirror", 0), ("invert", "mirror", 0)]
    assert states[7:] == [("invert", "turn", 0.5), ("invert", "turn", 1)]


def test_starts_are_uniform_and_kinds_equally_frequent():
    config = EventsConfig(kinds=KINDS, count=[0, 1, 1, 1], first=3, last=8)
    events = [config.draw(name(index).stream, range(10)) for index in range(2000)]
    assert abs(sum(not some for some in events) - 500) < 80
    for values in (Counter(some[0].start for some in events if some), Counter(some[0].kind for some in events if some)):
        expected = 1500 / len(values)
        assert all(abs(count - expected) < 5 * expected**0.5 for count in values.values())
    assert sorted({some[0].start for some in events if some}) == [3, 4, 5, 6, 7, 8]


def test_each_property_of_a_timetable_has_its_own_stream():
    plain = EventsConfig(kinds=KINDS, count=[2], ramp=[0, 0], lasts=[0, 0], last=40)
    longer = EventsConfig(kinds=KINDS, count=[2], ramp=[0, 0], lasts=[0, 5], last=40)
    for index in range(20):
        one, other = (config.draw(name(index).stream, range(10)) for config in (plain, longer))
        assert [event.kind for event in one] == [event.kind for event in other]


def test_held_out_hosts_have_timetables_of_their_own():
    task = DigitsDriftConfig().build(CNNConfig())
    splits = [[task.instance(0, split, 0, index).timetable for index in range(8)] for split in Split]
    assert splits[0] != splits[1]
    assert task.instance(0, Split.TRAINING, -1, 0).timetable == ()
    assert task.describe(0, Split.TRAINING, 0, 0) == " ".join(["ooo", *(event.describe() for event in splits[0][0])])


def test_events_fit_into_the_episode():
    with pytest.raises(ConfigError, match=r"^task\.events\.last=14 must be below steps=10, since no event can start after"):
        check(["task=digits_drift", "steps=10"])
    assert check(["task=digits_drift", "steps=10", "task.events.count=[1]", "task.events.last=9"]).task.events.last == 9
    assert check(["task=digits_drift", "steps=10", "task.events.kinds=[]"]).task.events.kinds == []


def test_classes_move_once_and_two_are_always_there():
    config = EventsConfig(kinds=["arrive", "leave"], count=[2, 4], last=40, group=2, ramp=[0, 2], lasts=[0, 3])
    for index in range(50):
        classes = sorted(np.random.default_rng(index).permutation(12)[:10].tolist())
        events = config.draw(name(index).stream, classes)
        moved = [one for event in events for one in event.classes]
        assert len(set(moved)) == len(moved) == 2 * len(events)
        assert set(moved) <= set(classes)
    text = Event(kind="arrive", start=4, classes=(0, 7)).describe()
    assert text == "arrive(0,7)@4"


@settings(max_examples=30, deadline=None)
@given(
    kinds=st.sampled_from([["arrive"], ["leave"], ["arrive", "leave", "invert"]]),
    count=st.lists(st.integers(0, 3), min_size=1, max_size=2),
    ramp=st.sampled_from([[0], [0, 2]]),
    lasts=st.sampled_from([[0], [0, 2]]),
    classes=st.sampled_from([[0], [0, 9]]),
    seed=st.integers(0, 99),
)
def test_a_pretrained_host_knows_only_the_classes_that_are_there_at_first(kinds, count, ramp, lasts, classes, seed):
    events = EventsConfig(kinds=kinds, count=count, first=0, last=40, ramp=ramp, lasts=lasts, replay=0.3)
    task = DigitsConfig(pretrain=3, pretrain_pool=2, events=events, classes=classes).build(CNNConfig())
    for index in range(6):
        host = seed, Split.TRAINING, 0, index
        timetable, origin = task.instance(*host).timetable, task.origin(*host)
        arriving = [one for event in timetable if event.kind == "arrive" for one in event.classes]
        before = task.view(seed, Split.TRAINING, origin.episode, origin.index)
        own = set(range(10)) if task.instance(*host).classes is None else set(task.instance(*host).classes)
        for epoch in range(3):
            pool = task.pool(before, epoch)
            learnt = np.bincount(task.data.train_y if pool is None else task.data.train_y[pool], minlength=10)
            whole = np.bincount(task.data.train_y, minlength=10)
            assert learnt.tolist() == [number * (k in own - set(arriving)) for k, number in enumerate(whole)]
    starts = [[event.start for event in task.instance(seed, Split.TRAINING, 0, index).timetable] for index in range(6)]
    assert max(map(len, starts)) == 0 or len({str(start) for start in starts}) > 1, "when it happens is up to the episode"


@pytest.mark.parametrize(
    ("kinds", "count", "recurs", "warns"),
    [
        (["invert", "slow"], 3, 0, True),
        (["invert", "slow"], 2, 0, False),
        (["invert", "blur", "slow"], 3, 2, True),
        (["invert", "blur", "slow", "fast"], 5, 0, False),
        (["arrive", "leave"], 4, 0, False),
    ],
)
def test_an_event_that_may_change_nothing_is_warned(kinds, count, recurs, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = EventsConfig(kinds=kinds, count=[count], recurs=recurs, last=40, group=1)
        config.check((*IMAGE_DRIFTS, "slow", "fast", "arrive", "leave"))
    assert any("a second event of the same kind would change nothing" in str(one.message) for one in caught) == warns
    repeats = set[bool]()
    for seed in range(60):
        in_force = {}
        for event in config.draw(lambda purpose, seed=seed: name(0, seed).stream(purpose), range(10)):
            sort = "rate" if event.kind in ("slow", "fast") else "drift"
            repeats.add(in_force.get(sort) == event.kind and event.kind not in ("arrive", "leave"))
            in_force[sort] = event.kind
    assert (True in repeats) == warns


def test_shares_of_classes():
    events = (Event(kind="arrive", start=2, ramp=1, classes=(0,)), Event(kind="leave", start=5, end=7, classes=(1,)))
    shares = np.array([class_shares(events, epoch, 3) for epoch in range(9)])
    assert shares[:, 0].tolist() == [0, 0, 0.5, 1, 1, 1, 1, 1, 1]
    assert shares[:, 1].tolist() == [1, 1, 1, 1, 1, 0, 0, 1, 1]
    assert (shares[:, 2] == 1).all()
    again = np.array([class_shares(events, epoch, 3, 0.2) for epoch in range(9)])
    assert np.array_equal(again[:2], shares[:2])
    assert np.allclose(again[2:], shares[2:] * [1, 0.2, 0.2])
    assert class_shares((Event(kind="invert", start=0),), 3, 3) is None


def test_pace_of_learning():
    events = (Event(kind="slow", start=1, ramp=1), Event(kind="invert", start=3), Event(kind="fast", start=4, end=6))
    assert [round(pace(events, epoch), 6) for epoch in range(8)] == [1, 0.55, 0.1, 0.1, 3, 3, 0.1, 0.1]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (
            {"count": [5]},
            r"^5 events of 2 classes each \(task.* would add or remove up to 10 of 10 classes, but two must always remain",
        ),
        ({"group": 9}, r"^1 event of 9 classes each \(task\.events\.count, task\.events\.group\)"),
    ],
)
def test_two_classes_must_always_be_there(fields, rule):
    with pytest.raises(TaskError, match=rule):
        DigitsConfig(events=EventsConfig(kinds=["leave"], last=40, **fields)).build(CNNConfig())


# ---- drifts

EVERY = EventsConfig(kinds=list(IMAGE_DRIFTS))


def images(*, bytes_too=False, width=6):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (90, 2, 6, width), generator=generator).byte()
    x[0, 0, 0, 0], x[1, 0, 0, 0] = 0, 255
    y = torch.arange(90) % 5
    parts = {"train": slice(0, 40), "valid": slice(40, 60), "test": slice(60, 90)}
    tensors = {f"{part}_x": (x if bytes_too else x.float() / 100 - 1)[rows] for part, rows in parts.items()}
    tensors |= {f"{part}_y": y[rows] for part, rows in parts.items()}
    level = torch.full((2, 1, 1), 99.0)
    return Data(**tensors, num_classes=5, mean=level if bytes_too else None, std=level if bytes_too else None)


@pytest.mark.parametrize("bytes_too", [False, True])
@pytest.mark.parametrize("kind", IMAGE_DRIFTS)
def test_a_drift_keeps_the_form_of_the_data_and_changes_it(kind, bytes_too):
    data = images(bytes_too=bytes_too)
    after, again = (DigitsConfig(batch_size=8).drifted(kind, data) for _ in range(2))
    changed = set()
    for part in ("train_x", "train_y", "valid_x", "valid_y", "test_x", "test_y"):
        old, new = getattr(data, part), getattr(after, part)
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert new.equal(getattr(again, part))
        changed |= {part} if not new.equal(old) else set()
    wanted = {"relabel": {"train_y", "valid_y", "test_y"}, "mislabel": {"train_y"}}
    assert changed == wanted.get(kind, {"train_x", "valid_x", "test_x"})


@pytest.mark.parametrize("kind", ["relabel", "mislabel"])
def test_labels_of_any_type_drift_alike(kind):
    """In bytes, class 156 would equal -100, the label of padding."""
    y, x = torch.arange(400) % 200, torch.zeros(400, 1, 2, 2)
    found = {}
    for dtype in (torch.int64, torch.uint8, torch.int16):
        data = Data.of_sets([(x, y.to(dtype))] * 3, 200)
        found[dtype] = DigitsConfig().drifted(kind, data).train_y
        assert found[dtype].dtype is dtype
        assert found[dtype].long().equal(found[torch.int64])


def test_drifts_of_images():
    data, after = images(), {kind: DigitsConfig(batch_size=8).drifted(kind, images()) for kind in IMAGE_DRIFTS}
    x, low, high = data.train_x, data.train_x.min(), data.train_x.max()
    torch.testing.assert_close(after["invert"].train_x, low + high - x)
    assert (after["invert"].train_x.min(), after["invert"].train_x.max()) == (low, high)
    assert after["rotate"].valid_x[:, :, 0, 0].equal(data.valid_x[:, :, 0, -1])
    assert after["turn"].test_x[:, :, 0, 0].equal(data.test_x[:, :, -1, -1])
    assert after["mirror"].test_x[:, :, 2, 0].equal(data.test_x[:, :, 2, -1])
    assert after["shift"].train_x[:, :, :, 1:].equal(x[:, :, :, :-1])
    torch.testing.assert_close(after["blur"].train_x[:, :, 3, 3], x[:, :, 2:5, 2:5].mean((2, 3)))
    added = after["noise"].train_x - x
    assert float(added.std()) == pytest.approx(float(x.std()), rel=0.1)
    moved = {(int(old), int(new)) for old, new in zip(data.test_y, after["relabel"].test_y, strict=True)}
    assert len(moved) == 5
    assert {new for _, new in moved} == set(range(5))
    assert all(old != new for old, new in moved)
    assert int((after["mislabel"].train_y != data.train_y).sum()) == 16


def test_rotation_needs_square_images():
    with pytest.raises(TaskError, match=r"^task\.events\.kinds=\[rotate\] needs square images, .* 6 x 8 pixels: use turn"):
        DigitsConfig(batch_size=8).drifted("rotate", images(width=8))


def test_padding_of_text_has_no_labels():
    x = torch.arange(60).view(10, 6) % 7
    y = x.clone()
    y[:, 4:] = IGNORED
    data = Data(train_x=x, train_y=y, valid_x=x, valid_y=y, test_x=x, test_y=y, num_classes=7)
    config = TextConfig(batch_size=2, events=EventsConfig(kinds=["relabel", "mislabel"]))
    task = Task(config, TransformerConfig(layers=1, width=8, heads=2, context=6), data)
    for domain in task.data.domains.train_y:
        assert ((domain == IGNORED) == (y == IGNORED)).all()
    assert not task.data.domains.train_y[0].equal(task.data.domains.train_y[1])


def text_of(blocks):
    return bytes(blocks[:200].flatten().tolist()).decode("latin-1")


@pytest.mark.parametrize(("kinds", "taught"), [([], True), (["swapcase"], True), (["swapcase", "prose"], False)])
def test_what_texts_drift_to_is_not_taught_before(kinds, taught, monkeypatch, tmp_path):
    monkeypatch.setattr(python_text, "LEAST", 1000)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    for number in range(12):
        (tmp_path / f"part{number}.py").write_text(f"def function{number}(x):\n    return x + {number}\n" * 30)
    config = PythonTextConfig(events=EventsConfig(kinds=kinds))
    before = set(config.load(16).train_x.unique().tolist())
    assert (ord("Q") in before) == taught, "a letter of help() that the files lack"


def test_changed_texts_are_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(python_text, "LEAST", 1000)
    for number in range(12):
        (tmp_path / f"part{number}.py").write_text(f"def function{number}(x):\n    return x + {number}\n" * 30)
    config, host = (
        PythonTextConfig(root=str(tmp_path), valid_samples=8),
        TransformerConfig(layers=1, width=8, heads=2, context=16),
    )
    first = load_task(config, host)
    assert load_task(config, host) is first
    (tmp_path / "later.py").write_text("def later(x):\n    return x\n" * 30)
    assert load_task(config, host) is not first


def test_drifts_of_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(python_text, "LEAST", 1000)
    for number in range(12):
        (tmp_path / f"part{number}.py").write_text(f"def Function{number}(x):\n    return x + {number}\n" * 30)
    config = PythonTextDriftConfig(root=str(tmp_path), valid_samples=8)
    data = config.build(TransformerConfig(layers=1, width=8, heads=2, context=16)).data
    assert data.domains.names == ("", "prose", "swapcase", "relabel")
    code, prose, swapped, relabelled = (text_of(part) for part in data.domains.train_x)
    assert relabelled == code
    assert "def Function" in code
    assert swapped == code.swapcase()
    assert code not in prose
    assert "def Function" not in prose
    for x, y in zip(data.domains.train_x[:3], data.domains.train_y[:3], strict=True):
        assert x[:, 1:][y[:, 1:] != IGNORED].equal(y[:, :-1][y[:, 1:] != IGNORED])
    learnt, tested = (set(map(tuple, part[1].tolist())) for part in (data.domains.train_x, data.domains.test_x))
    assert len(learnt & tested) < 0.2 * len(tested)  # pages share rulers and blank lines


def test_events_that_change_no_sample_copy_no_data():
    data = images()
    alone = domains(data, {}, np.random.default_rng(0), np.random.default_rng(1))
    assert alone.train_x.shape == (1, *data.train_x.shape)
    assert alone.train_x.data_ptr() == data.train_x.data_ptr()


def test_of_the_few_samples_that_remain_as_many_have_drifted_as_of_all():
    events = EventsConfig(kinds=["arrive", "invert"], count=[2], ramp=[4], first=1, last=12, gap=3, replay=0.25)
    task = DigitsConfig(events=events).build(CNNConfig())
    shares = []
    for index in range(40):
        view = task.view(0, Split.TRAINING, 0, index)
        for epoch in range(16):
            arrived = [event for event in view.timetable if event.kind == "arrive" and event.strength(epoch) == 1]
            strength = change(view.timetable, epoch, ("", *IMAGE_DRIFTS)).share
            if arrived and 0 < strength < 1:
                rank = task.data.domains.train_rank[task.pool(view, epoch)]
                shares.append((float((rank < strength).double().mean()), strength))
    found, wanted = np.array(shares).T
    assert len(found) > 20
    assert np.abs(found - wanted).max() < 0.1


def test_domains_hold_every_drift_and_an_order_of_samples():
    data = DigitsConfig(events=EVERY, valid_samples=50).build(CNNConfig()).data
    assert data.domains.names == ("", *IMAGE_DRIFTS)
    assert data.domains.valid_x.shape == (10, 50, 1, 8, 8)
    assert data.domains.train_x[0].equal(data.train_x)
    for part in ("train", "valid", "test"):
        rank, size = getattr(data.domains, f"{part}_rank"), len(getattr(data, f"{part}_y"))
        assert np.allclose(np.sort(rank.numpy()), (np.arange(size) + 0.5) / size)
    assert DigitsConfig().build(CNNConfig()).data.domains is None
    shorter = DigitsConfig(events=EVERY, valid_samples=30).build(CNNConfig()).data.domains
    assert shorter.test_rank.equal(data.domains.test_rank), "the test samples that drift first do not depend on valid_samples"
