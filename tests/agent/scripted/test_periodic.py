"""The controller that plants at fixed intervals."""

# N hosts, K blueprints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.scripted.periodic import PeriodicConfig
from esper.env.actions import Head, Op
from tests.agent.staged import SPEC, decide, ops, see

EMPTY = {Op.GERMINATE: [1, 2]}


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 9), every=st.integers(1, 9))
def test_it_plants_at_fixed_intervals_in_the_first_free_slot(first: int, every: int) -> None:
    config, times = PeriodicConfig(first=first, every=every), range(first, SPEC.num_steps, every)
    action_TNH = np.stack([decide(config, see(step, legal=EMPTY)).action for step in range(SPEC.num_steps)])
    planted_TN = action_TNH[:, :, Head.OP] == Op.GERMINATE
    assert [step for step in range(SPEC.num_steps) if planted_TN[step].any()] == list(times)
    assert planted_TN.all(axis=1).sum() == len(times)
    assert (action_TNH[planted_TN][:, Head.SLOT] == 1).all()
    turns = [turn % 3 for turn in range(len(times))]
    assert action_TNH[planted_TN[:, 0], 0, Head.BLUEPRINT].tolist() == turns


def test_one_blueprint_can_be_fixed_and_unavailable_ones_are_skipped() -> None:
    named = PeriodicConfig(every=1, blueprint="blueprint1")
    assert (decide(named, see(2, legal=EMPTY)).action[:, Head.BLUEPRINT] == 1).all()
    barred = see(2, legal=EMPTY)
    barred.legal_values[:2, 1] = False
    assert ops(decide(named, barred)) == [Op.WAIT, Op.WAIT, Op.GERMINATE, Op.GERMINATE]
    assert decide(PeriodicConfig(every=1), barred).action[:, Head.BLUEPRINT].tolist() == [0, 0, 2, 2]
    barred.legal_values[:, :3] = False
    assert ops(decide(PeriodicConfig(every=1), barred)) == [Op.WAIT] * 4


def test_germinating_precedes_keeping_and_advancing_seeds() -> None:
    config = PeriodicConfig(first=2, every=4)
    legal = EMPTY | {Op.ADVANCE: [0], Op.FOSSILIZE: [2]}
    assert ops(decide(config, see(6, legal=legal))) == [Op.GERMINATE] * 4
    assert decide(config, see(5, legal=legal)).action[:, [Head.OP, Head.SLOT]].tolist() == [[Op.FOSSILIZE, 2]] * 4
    assert ops(decide(config, see(5, legal={Op.ADVANCE: [0], Op.PRUNE: [0]}))) == [Op.ADVANCE] * 4
    assert ops(decide(config, see(6, legal={Op.PRUNE: [0]}))) == [Op.WAIT] * 4, "no slot is free"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PeriodicConfig(blueprint="norm"), r"agent\.blueprint=norm is not available: choose one of blueprint0"),
        (PeriodicConfig(first=10), r"agent\.first=10 is after the end of the episode, steps=10"),
    ],
)
def test_a_config_that_does_not_fit_the_run_is_refused(config: PeriodicConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.build(SPEC, seed=0)
