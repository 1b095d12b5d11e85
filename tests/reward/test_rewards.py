"""Each term by hand, and properties of shaping."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from esper.lifecycle.stages import OCCUPIED, Op, SlotState, empty
from esper.reward import table, terms
from esper.reward.modes import MODES, RewardConfig, ShapedConfig, SparseConfig
from esper.reward.rewards import Reward, RewardError
from esper.reward.signals import StepSignals
from esper.reward.table import Pays
from tests.reward.reward_steps import NAN, D, F, G, H, P, T, floats, replaced, signals_of, state_of

GAMMA = 0.9


@pytest.fixture
def signals():
    """Two hosts of three slots in mid-episode: the first prunes, the second germinates."""
    return signals_of(
        state_of([T, H, F], [D, H, D]),
        state_of([P, H, F], [G, H, D]),
        op_N=np.array([Op.PRUNE, Op.GERMINATE]),
        accuracy_before_N=floats(40.0, 50.0),
        accuracy_N=floats(44.0, 48.0),
        params_before_NS=np.array([[5, 20, 30], [0, 20, 0]]),
        params_NS=np.array([[0, 20, 30], [10, 20, 0]]),
    )


ONES = ShapedConfig(
    attribution=1.0, rent=1.0, accuracy_potential=1.0, stage_potential=1.0, germinate_cost=1.0, prune_cost=1.0, terminal=1.0
)


def close(seen, *wanted):
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen, wanted, rtol=1e-5, atol=1e-5)


def test_each_term_of_shaped_by_hand(signals):
    paid, parts = ONES.build(gamma=GAMMA)(signals)
    worth = terms.STAGE_VALUE
    assert worth.tolist() == [0.0, 1.0, 2.0, 3.5, 5.5, 6.0, 0.0, 0.0]
    close(parts["attribution"], 11 + 12, 20 + 21)  # every seed that is held, fossils too, and not the pruned one
    close(parts["rent"], -0.5, -0.3)
    close(parts["shaping"], 0.9 * (44 + 5.5 + 6) - (40 + 2 + 5.5 + 6), 0.9 * (48 + 1 + 5.5) - (50 + 5.5))
    close(parts["germinate"], 0, -1)
    close(parts["prune"], -1, 0)
    close(parts["terminal"], 0, 0)
    close(paid, *np.sum(list(parts.values()), axis=0))
    assert tuple(parts) == ONES.build(gamma=GAMMA).names


def test_the_last_step_pays_committed_accuracy_without_potential(signals):
    last = replaced(signals, last=True, committed_accuracy_N=floats(43.0, 41.0))
    _, parts = ONES.build(gamma=GAMMA)(last)
    close(parts["terminal"], 43, 41)
    close(parts["shaping"], -(40 + 2 + 5.5 + 6), -(50 + 5.5))
    assert last.ended_N.tolist() == [True, True]


def test_a_rolled_back_host_is_paid_for_no_measurement(signals):
    void = replaced(
        signals,
        rolled_back_N=np.array([True, False]),
        accuracy_N=floats(NAN, 48.0),
        last=True,
        committed_accuracy_N=floats(37, 41),
    )
    void.after.contribution[0] = np.nan
    paid, parts = ONES.build(gamma=GAMMA)(void)
    close(parts["attribution"], 0, 41)
    close(parts["rent"], -0.55, -0.3)  # as it stood before the lost step
    close(parts["shaping"], -(40 + 2 + 5.5 + 6), -(50 + 5.5))
    close(parts["terminal"], 37, 41)  # of the snapshot, with which the host ends
    assert np.isfinite(paid).all()
    assert void.ended_N.tolist() == [True, True]
    assert dataclasses.replace(void, last=False).ended_N.tolist() == [True, False]


def test_seeds_never_measured_earn_nothing(signals):
    signals.after.measured[1, 1] = False
    close(terms.attribution(signals), 23, 20)


def test_only_fossils_that_contribute_are_counted_at_the_end():
    state = state_of([F, F, H], [F, D, F], contribution=[[1.0, 0.99, 9.0], [5.0, 0.0, 2.0]])
    last = signals_of(state, state, steps_left=0)
    close(terms.contributing(last), 1, 2)
    sick = dataclasses.replace(last, rolled_back_N=np.array([False, True]))
    restored = state_of([D, D, D], [F, D, D], contribution=[[0.0] * 3, [5.0, 0.0, 0.0]])
    close(terms.contributing(dataclasses.replace(sick, final=restored)), 1, 1)
    close(terms.contributing(dataclasses.replace(last, last=False)), 0, 0)


def test_the_rent_of_the_end_leaves_out_seeds_that_a_rollback_in_the_last_step_removes(signals):
    snapshot = dataclasses.replace(
        signals.after, stage=np.where(np.arange(signals.after.stage.shape[1]) == 0, signals.after.stage, D)
    )
    sick = dataclasses.replace(signals, last=True, final=snapshot, rolled_back_N=np.ones(2, bool))
    before_NS = np.where(signals.before.within(*OCCUPIED), signals.params_before_NS, 0)
    due = before_NS[:, 0] * signals.after.within(*OCCUPIED)[:, 0] / signals.host_params
    close(terms.rent(sick, at_end=True), *due)
    assert (terms.rent(sick) > due).any(), "before, all seeds count"


TERM_OF = {
    "attribution": "attribution",
    "rent": "rent",
    "germinate_cost": "germinate",
    "prune_cost": "prune",
    "terminal": "terminal",
}


@pytest.mark.parametrize("weight", TERM_OF)
def test_a_weight_scales_its_term_and_zero_drops_it(signals, weight):
    last = replaced(signals, last=True, committed_accuracy_N=floats(43.0, 41.0))
    one, three, none = (dataclasses.replace(ONES, **{weight: value}).build(gamma=GAMMA)(last)[1] for value in (1.0, 3.0, 0.0))
    for name in one:
        factor = 3 if name == TERM_OF[weight] else 1
        close(three[name], *(factor * one[name]))
        if factor == 3:
            assert one[name].any()
            assert name not in none
        else:
            close(none[name], *one[name])


@pytest.mark.parametrize("weight", ["accuracy_potential", "stage_potential"])
def test_a_potential_of_weight_zero_shapes_nothing(signals, weight):
    left = {"accuracy_potential": 0.0, "stage_potential": 0.0} | {weight: 1.0}
    alone = dataclasses.replace(ONES, **left).build(gamma=GAMMA)(signals)[1]["shaping"]
    both = ONES.build(gamma=GAMMA)(signals)[1]["shaping"]
    neither = dataclasses.replace(ONES, accuracy_potential=0.0, stage_potential=0.0).build(gamma=GAMMA)(signals)[1]
    assert "shaping" not in neither
    assert alone.any()
    assert not np.allclose(alone, both)


def test_the_pay_of_waiting_does_not_depend_on_the_slot(signals):
    """The reward has no way to see the slot head: signals carry the operation alone."""
    assert not {field.name for field in dataclasses.fields(StepSignals)} & {"slot_N", "action_NH"}
    waiting = replaced(signals, op_N=np.array([Op.WAIT, Op.WAIT]))
    mirrored = dataclasses.replace(
        waiting,
        before=SlotState(**{name: array[:, ::-1] for name, array in waiting.before.arrays().items()}),
        after=SlotState(**{name: array[:, ::-1] for name, array in waiting.after.arrays().items()}),
        params_before_NS=waiting.params_before_NS[:, ::-1],
        params_NS=waiting.params_NS[:, ::-1],
    )
    for config in (ONES, SparseConfig()):
        close(config.build(gamma=GAMMA)(mirrored)[0], *config.build(gamma=GAMMA)(waiting)[0])
    _, parts = ONES.build(gamma=GAMMA)(waiting)
    assert not parts["germinate"].any()
    assert not parts["prune"].any()


def test_a_refused_action_costs_as_much_as_waiting(signals):
    """The signals say WAIT where an action was refused, so nothing is charged for it."""
    close(terms.operations(replaced(signals, op_N=np.array([0, 0])), Op.PRUNE), 0, 0)


def test_sparse_pays_at_the_end_only(signals):
    reward = SparseConfig(rent=5.0, terminal=2.0).build(gamma=GAMMA)
    paid, parts = reward(signals)
    assert not paid.any()
    assert tuple(parts) == reward.names == ("rent", "terminal")
    paid, parts = reward(replaced(signals, last=True, committed_accuracy_N=floats(43.0, 41.0)))
    close(parts["rent"], -2.5, -1.5)
    close(parts["terminal"], 86, 82)
    close(paid, 83.5, 80.5)


def test_sparse_pays_nothing_for_a_rollback_before_the_end(signals):
    paid, _ = SparseConfig().build(gamma=GAMMA)(replaced(signals, rolled_back_N=np.array([True, True])))
    assert not paid.any()


@pytest.mark.parametrize("kind", MODES.values())
def test_a_weight_that_is_negative_or_not_finite_is_refused(kind):
    for field in kind.pays:
        for value in (-0.1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=rf"reward\.{field} must be finite and at least 0, got {value}"):
                kind(**{field: value})


def test_an_incomplete_mode_is_refused(signals):
    with pytest.raises(TypeError, match="defines neither pays nor build"):
        RewardConfig().build(gamma=GAMMA)
    with pytest.raises(TypeError, match="define components"):
        Reward()(signals)


@pytest.mark.parametrize(
    ("op", "change", "wanted"),
    [
        (Op.WAIT, {}, 1),
        (Op.GERMINATE, {}, 1),
        (Op.PRUNE, {}, 0),  # the action removed it
        (Op.WAIT, {"before": True}, 0),  # an earlier action did, by a ramp that ends now
        (Op.PRUNE, {"after": True}, 1),  # the action starts a ramp in the other slot
        (Op.WAIT, {"rolled_back_N": np.array([True])}, 0),
    ],
)
def test_removals_by_rules_and_by_actions_are_distinguished(op, change, wanted):
    before, after = state_of([H, H]), state_of([P, H])
    before.dying[0, 0], after.dying[0, 1] = change.pop("before", False), change.pop("after", False)
    close(terms.auto_pruned(signals_of(before, after, op_N=np.array([op]), **change)), wanted)


@pytest.mark.parametrize(
    ("paid", "got"),
    [
        (1.0, "float 1.0"),
        (np.zeros((2, 1)), r"an array of shape \(2, 1\)"),
        (np.array(["a", "b"]), r"an array of shape \(2,\)"),
        ([1.0], r"list \[1.0\]"),
        (np.array([1.0, np.nan]), None),
    ],
)
def test_a_term_that_does_not_pay_every_host_a_finite_number_is_named(paid: Any, got: str | None) -> None:
    faulty = table.Term(name="odd", unit="1", formula="?", make=lambda mode, gamma: lambda signals: paid)

    @dataclass(kw_only=True, slots=True)
    class OddConfig(RewardConfig):
        """One term."""

        pays: ClassVar[Pays] = {"odd": faulty}
        odd: float = 1.0
        """Weight."""

    wanted = f"must return one number per host, an array .2., got {got}" if got else "is not finite for hosts 1: correct its code"
    with pytest.raises(RewardError, match=f"the reward term odd {wanted}"):
        OddConfig().build(gamma=1.0)(signals_of(empty(2, 1), empty(2, 1)))
