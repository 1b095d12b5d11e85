"""What an oracle is told, and hosts whose growth potential nobody measures."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from esper.cli.overrides import check
from esper.env.foresight import foresight, foresight_table
from esper.task.events import Event
from esper.task.instances import Split
from esper.training.environment import build_env

TINY = ["task=digits_drift", "hosts=6", "steps=18", "telemetry=quiet", "task.epoch_samples=128", "task.valid_samples=64"]
TINY += ["task.pretrain=1", "task.pretrain_pool=2"]


def test_foresight_is_the_timetable() -> None:
    events = (Event(kind="invert", start=1, ramp=1, end=4), Event(kind="slow", start=2))
    told_TNF = foresight([events, ()], ["mirror", "invert"], steps=6)
    assert told_TNF.shape == (7, 2, 4)
    np.testing.assert_allclose(told_TNF[:, 0, 1], [0, 0.5, 1, 1, 0.5, 0, 0])
    np.testing.assert_allclose(told_TNF[:, 0, 3], np.array([3, 3, 2.5, 1.5, 0.5, 0, 0]) / 6)
    assert not told_TNF[:, 0, [0, 2]].any()
    assert not told_TNF[:, 1].any()


def test_a_drift_replaces_the_one_before_it_and_arrivals_add_up() -> None:
    stay = (Event(kind="invert", start=1), Event(kind="rotate", start=3, ramp=1), Event(kind="invert", start=6))
    told_TNF = foresight([(*stay, Event(kind="slow", start=2))], ["invert", "rotate", "slow"], steps=8)
    np.testing.assert_allclose(told_TNF[:, 0, 0], [0, 1, 1, 0.5, 0, 0, 1, 1, 0])
    np.testing.assert_allclose(told_TNF[:, 0, 1], [0, 0, 0, 0.5, 1, 1, 0, 0, 0])
    np.testing.assert_allclose(told_TNF[:, 0, 2], [0, 0, 1, 1, 1, 1, 1, 1, 0])
    arrivals = tuple(Event(kind="arrive", start=start, classes=(start,)) for start in (1, 3))
    told_TNF = foresight([arrivals], ["arrive"], steps=5)
    np.testing.assert_allclose(told_TNF[:, 0, 0], [0, 1, 1, 2, 2, 0])
    view = SimpleNamespace(foresight_NF=told_TNF[3])
    seen = [feature.extract(view).clip(feature.low, feature.high).item() for feature in foresight_table(["arrive"])]  # type: ignore[arg-type]
    np.testing.assert_allclose(seen, [2, 4 / 5])


def test_the_timetable_is_observed_on_request_only_and_changes_nothing_else(tmp_path: Path) -> None:
    common = [*TINY, f"task.pretrain_folder={tmp_path}"]
    plain, told = (build_env(check([*common, *more]), split=Split.TRAINING) for more in ([], ["env.timetable=true"]))
    size = len(plain.layout.feature_names)
    assert plain.layout.feature_names == told.layout.feature_names[:size]
    assert not any("event" in name for name in plain.layout.feature_names)
    waits = np.zeros((6, 8), np.int64)
    both = plain.reset()[0], told.reset()[0]
    for _ in range(3):
        np.testing.assert_array_equal(both[0]["features"], both[1]["features"][:, :size])
        both = plain.step(waits)[0], told.step(waits)[0]
    expected_TNF = foresight([view.timetable for view in told.views], told.config and told._kinds, 18)  # type: ignore[attr-defined]
    np.testing.assert_allclose(both[1]["features"][:, size:], expected_TNF[3], rtol=1e-6)
    assert both[1]["features"][:, size:].any()


def test_without_potential_nothing_is_known_before_a_trial(tmp_path: Path) -> None:
    env = build_env(check([*TINY, f"task.pretrain_folder={tmp_path}", "env.potential=false"]), split=Split.TRAINING)
    names = env.layout.slot_feature_names
    seen = env.reset()[0]
    for _ in range(3):
        assert not seen["slots"][:, :, [rank for rank, name in enumerate(names) if name.startswith("potential")]].any()
        seen = env.step(np.zeros((6, 8), np.int64))[0]
