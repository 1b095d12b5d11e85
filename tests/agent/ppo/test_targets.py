"""What a rollout says of contributions: those measured after a step, of seeds that were there before it, and no others."""

# T steps, N hosts, S slots, F slot features

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.agent.base import Decision
from esper.agent.ppo.config import PPOConfig
from esper.agent.ppo.targets import NEEDED, Targets, contributions
from esper.buffer.rollout import Rollout, folded
from esper.env.actions import EnvSpec, Head
from esper.env.observation import HostView, slot_features, slot_table
from esper.lifecycle.stages import SlotState, Stage, empty
from tests.agent.toy_worlds import blank, make_spec

BLUEPRINTS = ("blueprint0",)
NAMES = tuple(feature.name for feature in slot_table(BLUEPRINTS))
SPEC = replace(make_spec(hosts=2, steps=4, slots=2, blueprints=1), slot_feature_names=NAMES)


def look(state: SlotState, step: int) -> np.ndarray:
    """`[N, S, F]`: what a controller sees of these slots."""
    hosts, slots = state.stage.shape
    view = HostView(
        step=step,
        num_steps=4,
        accuracy_NH=np.full((hosts, 4), 50.0, np.float32),
        loss_N=np.ones(hosts, np.float32),
        chance_loss=2.0,
        state=state,
        potential_NSK=np.full((hosts, slots, 1), np.nan, np.float32),
        params_NS=np.zeros((hosts, slots), np.int64),
        host_params=100,
        max_seeds=slots,
        op_N=np.zeros(hosts, np.int64),
        refused_N=np.zeros(hosts, np.bool_),
    )
    return slot_features(view, BLUEPRINTS)


def rollout_of(
    states: list[SlotState],
    spec: EnvSpec = SPEC,
    *,
    terminated: tuple[int, int] | None = None,
    truncated: tuple[int, int] | None = None,
) -> Rollout:
    """A rollout in which the slots went through these states; one host's episode may end with some step."""
    rollout = Rollout(spec)
    for step, state in enumerate(states):
        seen = blank(spec)
        seen.slots[:] = look(state, step)
        ends = [np.zeros(2, np.bool_), np.zeros(2, np.bool_)]
        for end, place in zip(ends, (terminated, truncated), strict=True):
            if place is not None and place[0] == step:
                end[place[1]] = True
        decision = Decision(action=np.zeros((2, len(Head)), np.int64), state={})
        given = {"reward": np.zeros(2), "is_init": np.zeros(2, np.bool_), "successor_value": np.zeros(2)}
        rollout.add(seen, decision, terminated=ends[0], truncated=ends[1], **given)
    return rollout


def lives(stage: Stage = Stage.HOLDING, alpha: float = 1.0, *, measured: bool = True) -> list[SlotState]:
    """Four steps in which a seed in slot 1 of host 0 stays as it is; step t measures 10 * t pp."""
    states = []
    for step in range(4):
        state = empty(2, 2)
        state.stage[0, 1], state.alpha[0, 1], state.measured[0, 1] = stage, alpha, measured
        state.blueprint[0, 1], state.contribution[0, 1] = 0, 10.0 * step
        states.append(state)
    return states


def found(rollout: Rollout) -> list[tuple[int, int, int, float]]:
    """Step, host, slot and contribution [10 pp] of everything that was measured."""
    value_TNS, measured_TNS = contributions(rollout, NAMES)
    return [(*place, pytest.approx(float(value_TNS[tuple(place)]), abs=1e-6)) for place in measured_TNS.nonzero().tolist()]


def test_each_step_is_told_what_was_measured_after_it() -> None:
    assert found(rollout_of(lives())) == [(0, 0, 1, 1.0), (1, 0, 1, 2.0), (2, 0, 1, 3.0)]


def test_the_target_of_a_step_is_not_what_the_step_shows() -> None:
    """Another number in observation t changes the target of step t - 1, and of no other."""
    states = lives()
    before = contributions(rollout_of(states), NAMES)[0]
    states[2].contribution[0, 1] = -40.0
    after = contributions(rollout_of(states), NAMES)[0]
    assert (before != after).nonzero().tolist() == [[1, 0, 1]]
    assert after[1, 0, 1].item() == pytest.approx(-4.0)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_every_live_seed_that_is_in_counts(stage: Stage) -> None:
    assert len(found(rollout_of(lives(stage, 0.5)))) == 3


def test_what_is_not_measured_anew_does_not_count() -> None:
    assert not found(rollout_of(lives(Stage.TRAINING, 0.0))), "a number from before, since the seed is out"
    assert not found(rollout_of(lives(Stage.GERMINATED, 0.0, measured=False)))
    assert not found(rollout_of(lives(Stage.FOSSILIZED))), "kept seeds are no longer alive"
    assert not found(rollout_of(lives(Stage.EMBARGOED, 0.0)))


def test_a_seed_is_followed_into_its_fossil_and_not_beyond_its_removal() -> None:
    states = lives()
    for state in states[2:]:
        state.stage[0, 1] = Stage.FOSSILIZED
    assert [step for step, *_ in found(rollout_of(states))] == [0, 1]
    states = lives()
    states[2].stage[0, 1] = Stage.PRUNED
    states[3] = empty(2, 2)
    assert [step for step, *_ in found(rollout_of(states))] == [0]


def test_a_seed_that_was_not_there_is_not_asked_for() -> None:
    states = lives()
    states[0] = empty(2, 2)
    assert [step for step, *_ in found(rollout_of(states))] == [1, 2]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_what_follows_an_end_belongs_to_another_episode(end: str) -> None:
    assert [step for step, *_ in found(rollout_of(lives(), **{end: (1, 0)}))] == [0, 2]
    assert [step for step, *_ in found(rollout_of(lives(), **{end: (1, 1)}))] == [0, 1, 2]


def test_slots_that_do_not_show_what_is_needed_are_refused() -> None:
    with pytest.raises(ValueError, match=r"agent\.aux_coef=0\.1 needs slots that show stage_dormant.*set agent\.aux_coef=0"):
        PPOConfig(aux_coef=0.1).build(make_spec(), seed=0)
    assert set(NEEDED) <= set(NAMES)


def test_targets_fold_like_their_rollout() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two, three = (torch.randn(4, 2, *more, generator=generator) for more in ((), (), (3,)))
    targets = Targets(advantage_TN=one, value_TN=two, explained_variance=0.5, contributions=(three, three > 0)).folded(2)
    assert targets.explained_variance == 0.5
    assert torch.equal(targets.advantage_TN, folded(one, 2))
    assert torch.equal(targets.value_TN, folded(two, 2))
    assert targets.contributions is not None
    assert torch.equal(targets.contributions[0], folded(three, 2))
    assert torch.equal(targets.contributions[1], folded(three, 2) > 0)
