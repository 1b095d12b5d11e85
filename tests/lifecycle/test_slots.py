"""Slots of each option on hosts of all kinds, and rules of the config."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.slots import (
    DeepConfig,
    EveryBlockConfig,
    Isolation,
    OneConfig,
    OneSeedConfig,
    PostConfig,
    PreConfig,
    SlotsConfig,
    ThreeConfig,
)

CNN = ("r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2")
ROW_0 = ("r0c0", "r0c1", "r0c2", "r0c3", "r0c4")
KINDS = [SlotsConfig, OneSeedConfig, EveryBlockConfig, OneConfig, ThreeConfig, PreConfig, PostConfig, DeepConfig]


def names_of(config, names):
    return [name for name, chosen in zip(names, config.chosen(names), strict=True) if chosen]


@pytest.mark.parametrize(
    ("kind", "on_cnn", "on_row_0"),
    [
        (EveryBlockConfig, list(CNN), list(ROW_0)),
        (OneSeedConfig, list(CNN), list(ROW_0)),
        (OneConfig, ["r0c1"], ["r0c2"]),
        (ThreeConfig, ["r0c0", "r0c1", "r0c2"], ["r0c0", "r0c1", "r0c2"]),
        (PreConfig, ["r0c0", "r0c1", "r0c2"], list(ROW_0)),
        (PostConfig, ["r1c0", "r1c1", "r1c2"], None),
        (DeepConfig, ["r0c1", "r1c1", "r0c2", "r1c2"], ["r0c2", "r0c3", "r0c4"]),
    ],
)
def test_options_choose_these_slots(kind, on_cnn, on_row_0):
    assert names_of(kind(), CNN) == on_cnn
    if on_row_0 is not None:
        assert names_of(kind(), ROW_0) == on_row_0


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (PostConfig, ROW_0),
        (ThreeConfig, ("r0c0", "r0c1", "r1c0")),
        (PreConfig, ("a", "b")),
        (OneConfig, ("a", "b")),
        (DeepConfig, ("a",)),
        (EveryBlockConfig, ()),
    ],
)
def test_an_option_without_slots_is_refused_with_their_names(kind, names):
    with pytest.raises(ValueError, match=rf"slots=\w+ finds no slot in this host, which has {', '.join(names) or 'none'}"):
        kind().chosen(names)


@pytest.mark.parametrize("kind", KINDS)
def test_names_override_the_option(kind):
    assert names_of(kind(where=["r1c2", "r0c0"]), CNN) == ["r0c0", "r1c2"]
    assert names_of(kind(where=["stem"]), ("stem", "head")) == ["stem"]
    with pytest.raises(ValueError, match=r"slots\.where=r1c9,b is not a slot of this host: it has r0c0, r1c0"):
        kind(where=["r0c0", "r1c9", "b"]).chosen(CNN)


@given(blocks=st.integers(1, 12), rows=st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_options_of_any_grid(blocks, rows):
    names = tuple(f"r{row}c{column}" for column in range(blocks) for row in range(rows))
    assert len(names_of(OneConfig(), names)) == 1
    assert len(names_of(DeepConfig(), names)) == rows * -(-blocks // 2)
    assert len(names_of(PreConfig(), names)) == blocks
    assert names_of(EveryBlockConfig(), names) == list(names)
    if rows == 2:
        either = PreConfig().chosen(names).astype(int) + PostConfig().chosen(names)
        assert np.array_equal(either, np.ones(len(names)))


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"where": ["r0c0", "r0c0"]}, r"slots\.where names a slot twice"),
        ({"max_seeds": -1}, r"slots\.max_seeds must be at least 0, got -1"),
        ({"auto_advance": ["training", "pruned"]}, r"slots\.auto_advance must name stages from .*, got pruned"),
        (
            {"incubation": "clsed_loop"},
            "slots.incubation='clsed_loop' is not known: choose from straight_through, closed_loop, none",
        ),
        ({"isolation": "never"}, "slots.isolation='never' is not known"),
        ({"fossils": "frozn"}, "slots.fossils='frozn' is not known"),
        ({"min_prune_age": -1}, r"slots\.min_prune_age must be at least 0, got -1"),
        ({"embargo": -1}, r"slots\.embargo must be at least 0, got -1"),
        ({"prune_after": -1}, r"slots\.prune_after must be at least 0, got -1"),
        ({"prune_after": 4}, r"slots\.prune_after=4 is below slots\.min_prune_age=5"),
        ({"prune_below": float("nan")}, r"slots\.prune_below must be finite, got nan"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_invalid_config_is_refused(kind, given, rule):
    with pytest.raises(ValueError, match=rule):
        kind(**given)


def test_options_may_be_given_as_text():
    given = SlotsConfig(incubation="none", isolation="until_kept", fossils="frozen")
    assert given == SlotsConfig(incubation=Incubation.none, isolation=Isolation.until_kept, fossils=Fossils.frozen)
    assert given.incubation is Incubation.none


def test_one_seed_is_a_cap():
    assert OneSeedConfig().max_seeds == 1
