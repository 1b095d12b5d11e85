"""Schedules: one seed, or a list of actions."""

# N hosts, S slots, A written actions, H heads

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.best_of_random import BestOfRandomConfig
from esper.agent.scripted.schedule import OPS, ActionConfig, ActionLists, ScheduleConfig
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.actions import PARAMETER_HEADS, PINNED, STYLES, TEMPOS, Head, HeadsConfig, Op
from esper.lifecycle.stages import Stage
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play
from tests.agent.staged import SPEC, advised, decide, ops, see
from tests.agent.toy_envs import random_observation

FREE = HeadsConfig(style="free", tempo="free", alpha_target="free", alpha_speed="free", alpha_curve="free")


# ---- one seed


def test_a_schedule_germinates_at_its_time_and_advances_when_legal() -> None:
    config = ScheduleConfig(slot=1, blueprint="blueprint2", at=3)
    empty = {Op.GERMINATE: [0, 1, 2]}
    assert ops(decide(config, see(2, legal=empty))) == [Op.WAIT] * 4
    action = decide(config, see(3, legal=empty)).action
    assert action[:, [Head.OP, Head.SLOT, Head.BLUEPRINT]].tolist() == [[Op.GERMINATE, 1, 2]] * 4
    assert ops(decide(config, see(5, legal=empty))) == [Op.GERMINATE] * 4
    assert ops(decide(config, see(4, legal={Op.ADVANCE: [1], Op.PRUNE: [1]}))) == [Op.ADVANCE] * 4
    assert ops(decide(config, see(4, legal={Op.FOSSILIZE: [1], Op.PRUNE: [1]}))) == [Op.FOSSILIZE] * 4
    assert ops(decide(config, see(4, legal={Op.FOSSILIZE: [0], Op.ADVANCE: [2]}))) == [Op.WAIT] * 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ScheduleConfig(slot=3, blueprint="blueprint0"), r"agent\.slot=3 is not a slot of this host: choose from 0 to 2"),
        (ScheduleConfig(blueprint="attention"), r"agent\.blueprint=attention is not available: choose one of blueprint0"),
        (ScheduleConfig(blueprint="blueprint0", at=10), r"agent\.at=10 is after the end of the episode, steps=10"),
        (ScheduleConfig(actions=[ActionConfig(op="prune", slot=3)]), r"slot=3 in agent\.actions is not a slot of this host"),
        (ScheduleConfig(actions=[ActionConfig(op="prune", at=10)]), r"at=10 in agent\.actions is after the end of the episode"),
        (ScheduleConfig(actions=[ActionConfig(blueprint="norm")]), r"blueprint=norm in agent\.actions is not available"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused(config: ScheduleConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.build(SPEC, seed=0)


def test_a_slot_that_is_not_in_use_is_refused_with_alternatives() -> None:
    in_use = np.array([False, True, True])
    for config in (ScheduleConfig(slot=0), ScheduleConfig(actions=[ActionConfig(op="prune")])):
        with pytest.raises(ValueError, match=r"slot=0.* is not in use: choose from 1 \(a\), 2 \(b\)$"):
            config.check_hosts(slots=["c", "a", "b"], in_use=in_use, cap=0, blueprints=[], hosts=2)


# ---- a list of actions


def written(*actions: dict[str, Any]) -> ScheduleConfig:
    return ScheduleConfig(actions=[ActionConfig(**action) for action in actions], heads=FREE)


def test_each_action_is_taken_once_as_soon_as_it_is_due_and_legal() -> None:
    config = written(
        {"at": 2, "slot": 1, "blueprint": "blueprint2", "tempo": "slow", "style": "gated"},
        {"at": 2, "slot": 0, "blueprint": "blueprint0"},
        {"at": 4, "slot": 1, "op": "fossilize"},
    )
    state, done = None, []
    empty = {Op.GERMINATE: [0, 1, 2]}
    for step, legal in enumerate(
        [empty, empty, empty, empty, empty, {Op.PRUNE: [1]}, {Op.FOSSILIZE: [0, 1]}, {Op.FOSSILIZE: [1]}]
    ):
        observation = see(step, legal=legal)
        observation.legal_values[:] = True
        decision = decide(config, observation, state=state)
        state = decision.state
        done.append(decision.action[0].tolist())
    wait = [0] * len(Head)
    slow_gated = [Op.GERMINATE, 1, 2, list(STYLES).index("gated"), list(TEMPOS).index("slow"), PINNED[Head.ALPHA_TARGET], 0, 0]
    usual = [Op.GERMINATE, 0, 0, *(PINNED[head] for head in (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET)), 0, 0]
    assert done == [wait, wait, slow_gated, usual, wait, wait, [Op.FOSSILIZE, 1, *wait[2:]], wait]


def test_a_list_that_teaches_goes_on_once_its_pupil_has_followed() -> None:
    config = written({"at": 1, "slot": 1, "blueprint": "blueprint2"}, {"at": 2, "slot": 0, "blueprint": "blueprint0"})
    seen = [see(step, legal={Op.GERMINATE: [0, 1, 2]}) for step in range(6)]
    for one in seen:
        one.legal_values[:] = True
    wait, first, second = [0, 0, 0], [Op.GERMINATE, 1, 2], [Op.GERMINATE, 0, 0]
    controller = config.build(SPEC, seed=0)
    assert advised(controller, seen) == [wait, *[first] * 5]
    assert advised(controller, seen, follows=[2, 3]) == [wait, first, first, second, wait, wait]
    searched = BestOfRandomConfig().build(SPEC, seed=0)
    searched.play(config.actions)
    assert advised(searched, seen) == [wait, *[first] * 5]


def test_seeds_advance_when_no_action_is_due_unless_the_list_advances_them() -> None:
    list_of_one = {"at": 1, "slot": 2, "op": "prune"}
    legal = {Op.ADVANCE: [0, 1], Op.PRUNE: [2]}
    assert ops(decide(written(list_of_one), see(0, legal=legal))) == [Op.ADVANCE] * 4
    assert ops(decide(written(list_of_one), see(1, legal=legal))) == [Op.PRUNE] * 4
    advance = {"at": 1, "slot": 1, "op": "advance"}
    assert ops(decide(written(advance), see(0, legal=legal))) == [Op.WAIT] * 4
    assert decide(written(advance), see(1, legal=legal)).action[:, [Head.OP, Head.SLOT]].tolist() == [[Op.ADVANCE, 1]] * 4


def test_an_empty_list_waits() -> None:
    controller = ActionLists([[]], SPEC)
    legal = see(3, legal={Op.GERMINATE: [0, 1], Op.PRUNE: [2]})
    decision = controller.act(legal, controller.start(4), is_init=np.ones(4, np.bool_), uniform=np.zeros((4, len(Head))))
    assert not decision.action.any()


def by_the_letter(actions: list[ActionConfig], seen: list[Any], host: int) -> list[list[int]]:
    """Return the action of one host by scanning the list."""
    places: dict[Head, int] = {}
    start = 0
    for head in PARAMETER_HEADS:
        places[head], start = start, start + SPEC.head_sizes[head]
    left, done = list(actions), []
    for step, observation in enumerate(seen):
        slots, values = observation.legal_slots[host], observation.legal_values[host]
        chosen = [Op.WAIT, 0]
        for action in left:
            kind = action.blueprint and SPEC.blueprint_names.index(action.blueprint)
            offered = kind is None or values[places[Head.BLUEPRINT] + kind]
            if action.at <= step and slots[OPS[action.op], action.slot] and offered:
                chosen = [OPS[action.op], action.slot]
                left.remove(action)
                break
        else:
            if "advance" not in {action.op for action in actions} and slots[Op.ADVANCE].any():
                chosen = [Op.ADVANCE, int(slots[Op.ADVANCE].argmax())]
        done.append(chosen)
    return done


ACTIONS = st.builds(
    lambda op, slot, at, kind: ActionConfig(
        op=op,
        slot=slot,
        at=at,
        blueprint=f"blueprint{kind}" if op == "germinate" else None,
        alpha_target="full" if op == "set_alpha_target" else None,
    ),
    st.sampled_from(list(OPS)),
    st.integers(0, 2),
    st.integers(0, 9),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, min_size=1, max_size=8), seed=st.integers(0, 10**6))
def test_an_action_list_equals_its_reference_implementation(actions: list[ActionConfig], seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = [random_observation(SPEC, rng, legal=0.3) for _ in range(SPEC.num_steps)]
    for step, observation in enumerate(seen):
        observation.features[:, SPEC.feature_names.index("time_left")] = 1 - step / SPEC.num_steps
        observation.legal_values[:, :3] = rng.random((4, 3)) < 0.7
        observation.legal_values[:, 3:] = True
    controller = ActionLists([actions], SPEC)
    state, done = controller.start(4), []
    for observation in seen:
        decision = controller.act(observation, state, is_init=np.zeros(4, np.bool_), uniform=np.zeros((4, len(Head))))
        state = decision.state
        done.append(decision.action[:, [Head.OP, Head.SLOT]].tolist())
    expected = [by_the_letter(actions, seen, host) for host in range(4)]
    assert done == [list(row) for row in zip(*expected, strict=True)]


def test_a_run_plants_keeps_and_removes_seeds_as_listed() -> None:
    actions = (
        "{op:germinate,slot:1,blueprint:conv_light}",
        "{at:1,op:germinate,slot:0,blueprint:norm}",
        "{at:2,op:fossilize,slot:1}",
        "{at:7,op:prune,slot:0}",
        "{at:10,op:germinate,slot:0,blueprint:depthwise}",
    )
    config = check(["hosts=2", "steps=13", "slots=every_block", "agent=schedule", f"agent.actions=[{','.join(actions)}]"])
    env = build_env(config, split=Split.TRAINING)
    env.reset(options={"episode": 0})
    done: list[list[int]] = []

    def record(step: Transition) -> None:
        done.append(step.decision.action[0].tolist())
        assert not step.observation.features[:, env.layout.feature_names.index("last_refused")].any()

    episode = play(env, config.agent.build(env.layout, seed=0), record=record)
    env.close()
    assert [row[:3] for row in done[:2]] == [[Op.GERMINATE, 1, 1], [Op.GERMINATE, 0, 0]]
    assert [step for step, row in enumerate(done) if row[0] == Op.PRUNE] == [7]
    assert [step for step, row in enumerate(done) if row[0] == Op.GERMINATE][2] >= 10
    assert (episode.fossilized, episode.tally["pruned"]) == (2, 2), "in each of two hosts"
    after = episode.signals.after if episode.signals else None
    assert after is not None
    assert (after.stage[:, 1] == Stage.FOSSILIZED).all()
    assert (after.blueprint[:, 0] == 2).all()


def test_an_action_survives_its_plain_form() -> None:
    action = ActionConfig(at=3, slot=1, blueprint="norm", tempo="slow")
    assert ActionConfig(**action.plain()) == action
    assert action.plain() == {"at": 3, "op": "germinate", "slot": 1, "blueprint": "norm", "tempo": "slow"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScheduleConfig(at=-1), r"agent\.at must be at least 0, got -1"),
        (lambda: ScheduleConfig(slot=-1), r"agent\.slot must be at least 0, got -1"),
        (lambda: ActionConfig(op="set_alpha_target"), r"op=set_alpha_target without alpha_target: add it"),
        (lambda: ActionConfig(op="prune", slot=-1), r"agent\.actions has slot=-1"),
        (lambda: ActionConfig(op="fossilize", blueprint="norm"), r"blueprint=norm, which has no effect with op=fossilize"),
    ],
)
def test_values_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
