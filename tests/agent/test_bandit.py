"""The contextual bandit: what it plants, what it learns, and exact resumption."""

# N hosts, C choices

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.bandit import Bandit, BanditConfig, DecisionMemory, Decisions
from esper.agent.scripted.schedule import ScheduleConfig
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.actions import Head, Op, parameters_legal
from esper.env.spec import EnvSpec, Observation
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer
from tests.agent.toy_envs import blank, make_spec, random_observation

TINY = ["hosts=4", "steps=9", "slots=every_block", "telemetry=quiet", "task.epoch_samples=128", "task.valid_samples=100"]
SPEC = make_spec(hosts=64, slots=2, blueprints=2)


def fresh(rng: np.random.Generator, spec: EnvSpec = SPEC) -> Observation:
    """New hosts whose first feature is a random cue, and where every seed is legal."""
    seen = blank(spec)
    seen.features[:, 1] = rng.standard_normal(spec.num_hosts)
    seen.legal_slots[:, Op.GERMINATE] = True
    return seen


def act(bandit: Bandit, seen: Observation, rng: np.random.Generator) -> np.ndarray:
    """Return the choice for each new host."""
    count = len(seen.features)
    decision = bandit.act(seen, bandit.start(count), is_init=np.ones(count, np.bool_), uniform=rng.random((count, len(Head))))
    return decision.state["choice"].numpy()


def update(bandit: Bandit, rng: np.random.Generator, seen: Observation | None = None) -> np.ndarray:
    """Learn from an episode in which choice 1 pays the cue, choice 2 its negative, and others nothing; return the choices."""
    bandit.begin(0)
    seen = fresh(rng) if seen is None else seen
    state = bandit.start(SPEC.num_hosts)
    none_N = np.zeros(SPEC.num_hosts, np.bool_)
    decision = bandit.act(seen, state, is_init=~none_N, uniform=rng.random((SPEC.num_hosts, len(Head))))
    choice_N, cue_N = decision.state["choice"].numpy(), seen.features[:, 1]
    paid_N = np.where(choice_N == 1, cue_N, np.where(choice_N == 2, -cue_N, 0.0)).astype(np.float32)
    bandit.observe(
        Transition(
            observation=seen, decision=decision, reward_N=paid_N, terminated_N=~none_N, is_init_N=~none_N, rolled_back_N=none_N
        )
    )
    bandit.learn(0.0)
    return choice_N


def test_it_learns_which_seed_suits_which_host() -> None:
    rng = np.random.default_rng(0)
    bandit = BanditConfig().build(SPEC, seed=0)
    for _ in range(6):
        update(bandit, rng)
    seen = fresh(rng)
    clear_N = np.abs(seen.features[:, 1]) > 0.2
    np.testing.assert_array_equal(act(bandit, seen, rng)[clear_N], np.where(seen.features[:, 1] > 0, 1, 2)[clear_N])


def test_a_new_episode_starts_without_the_choices_of_the_last_one() -> None:
    """Also for a caller who does not call `start` again."""
    rng = np.random.default_rng(0)
    bandit = BanditConfig().build(SPEC, seed=0)
    for _ in range(6):
        update(bandit, rng)
    first, second = fresh(rng), fresh(rng)
    new_N, uniform = np.ones(SPEC.num_hosts, np.bool_), rng.random((SPEC.num_hosts, len(Head)))
    first.features[:, 0], second.features[:, 0] = 0.5, 1.0  # the time that is left
    state = bandit.act(first, bandit.start(SPEC.num_hosts), is_init=new_N, uniform=uniform).state
    again, anew = (bandit.act(second, one, is_init=new_N, uniform=uniform) for one in (state, bandit.start(SPEC.num_hosts)))
    assert again.state["choice"].equal(anew.state["choice"])
    assert not again.state["choice"].equal(state["choice"])


def test_a_return_does_not_count_what_shaping_deducts_twice() -> None:
    """After a rollback, shaping deducts the potential of the snapshot once more, although the host lost nothing."""
    bandit, none_N = BanditConfig().build(SPEC, seed=0), np.zeros(SPEC.num_hosts, np.bool_)
    bandit.begin(0)
    seen = fresh(np.random.default_rng(0))
    decision = bandit.act(seen, bandit.start(SPEC.num_hosts), is_init=~none_N, uniform=np.zeros((SPEC.num_hosts, len(Head))))
    paid_N = np.full(SPEC.num_hosts, -50.0, np.float32)
    step = Transition(
        observation=seen, decision=decision, reward_N=paid_N, terminated_N=none_N, is_init_N=none_N, rolled_back_N=~none_N
    )
    bandit.observe(replace(step, restored_N=-paid_N))
    bandit.learn(0.0)
    assert not bandit.state_dict()["going"].any()


def test_exploration_is_its_share_of_training_and_none_of_acting() -> None:
    rng = np.random.default_rng(1)
    bandit = BanditConfig(exploration=0.25).build(SPEC, seed=0)
    for _ in range(4):
        update(bandit, rng)
    seen = [fresh(rng) for _ in range(40)]
    best = [act(bandit, one, rng) for one in seen]
    assert all((act(bandit, one, rng) == chosen).all() for one, chosen in zip(seen, best, strict=True))
    bandit.begin(0)
    differ = np.mean([act(bandit, one, rng) != chosen for one, chosen in zip(seen, best, strict=True)])
    assert differ == pytest.approx(0.25 * 4 / 5, abs=0.04), "a random choice is the best one in 1 of 5 cases"


def test_a_choice_that_left_memory_makes_no_others_random() -> None:
    rng = np.random.default_rng(2)
    bandit = BanditConfig(exploration=0.0, memory=4).build(SPEC, seed=0)
    while not bandit._tried_C.all():
        update(bandit, rng)
    copy = BanditConfig(exploration=0.0, memory=4).build(SPEC, seed=0)
    copy.load_state_dict(bandit.state_dict())
    for one in (bandit, copy):
        assert None in one.models
        before = act(one, seen := fresh(rng), rng)
        assert (update(one, rng, seen) == before).all(), "it takes the best of those that it remembers"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), training=st.booleans())
def test_actions_are_legal(seed: int, training: bool) -> None:
    rng = np.random.default_rng(seed)
    spec = make_spec(hosts=8)
    bandit, state = BanditConfig().build(spec, seed=0), None
    if training:
        bandit.begin(0)
    state = bandit.start(8)
    for step in range(4):
        seen = random_observation(spec, rng)
        decision = bandit.act(seen, state, is_init=np.full(8, step == 0), uniform=rng.random((8, len(Head))))
        action, state = decision.action, decision.state
        assert seen.legal_slots[np.arange(8), action[:, Head.OP], action[:, Head.SLOT]].all()
        assert parameters_legal(action, seen.legal_values, spec.head_sizes).all()


def test_a_choice_is_played_like_the_schedule_of_one_seed() -> None:
    env = build_env(check([*TINY, "agent=bandit"]), split=Split.TRAINING)
    bandit = BanditConfig().build(env.layout, seed=0)
    env.reset(options={"episode": 0})
    wanted = 1 + len(env.layout.blueprint_names) + 1
    bandit._choose = lambda *_: np.full(env.num_envs, wanted)  # type: ignore[method-assign]
    mine = play(env, bandit).return_N
    env.reset(options={"episode": 0})
    kind = env.layout.blueprint_names[1]
    theirs = play(env, ScheduleConfig(slot=1, blueprint=kind).build(env.layout, seed=0)).return_N
    env.close()
    np.testing.assert_array_equal(mine, theirs)


def test_a_resumed_run_equals_a_whole_one(tmp_path: Path) -> None:
    config = check([*TINY, "agent=bandit", "updates=3"])
    Trainer(config, tmp_path / "whole").run()
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    find_checkpoint(str(tmp_path / "parts"), "resume").unlink()  # as if killed in its third update
    assert Trainer(config, tmp_path / "parts").run(), "it goes on"
    whole, parts = (read_records(tmp_path / place / "metrics.jsonl") for place in ("whole", "parts"))
    assert [{k: v for k, v in r.items() if not k.startswith(("time/", "seeds_"))} for r in whole] == [
        {k: v for k, v in r.items() if not k.startswith(("time/", "seeds_"))} for r in parts
    ]


def test_hosts_with_other_slots_are_refused() -> None:
    rng = np.random.default_rng(0)
    bandit = BanditConfig().build(SPEC, seed=0)
    update(bandit, rng)
    for other in (make_spec(slots=3, blueprints=2), replace(SPEC, blueprint_names=SPEC.blueprint_names[::-1])):
        with pytest.raises(ValueError, match=r"this policy learned to choose among nothing, .* but here the choices are "):
            BanditConfig().build(other, seed=0).load_state_dict(bandit.state_dict())


def test_decisions_on_a_host_are_linked_to_the_next_one_there():
    legal = np.ones((2, 5), np.bool_)
    first = (1, np.array([0, 1]), np.array([[1.0], [2.0]], np.float32), legal, np.array([0, 3]))
    second = (3, np.array([0]), np.array([[3.0]], np.float32), legal[:1], np.array([1]))
    rewards = [np.array([2.0**step, 1.0], np.float32) for step in range(5)]
    halved = Decisions(gamma=0.5, decisions=[first, second], reward_TN=rewards).memory()
    assert halved.going.tolist() == [2 + 2 + 2 + 2, 1 + 0.5 + 0.25 + 0.125, 8 + 8]
    assert halved.reward.tolist() == [2 + 2, 1 + 0.5 + 0.25 + 0.125, 8 + 8]
    assert halved.discount.tolist() == [0.25, 1, 1]
    memory = Decisions(decisions=[first, second], reward_TN=rewards).memory()
    assert memory.going.tolist() == [30, 4, 24]
    assert memory.reward.tolist() == [6, 4, 24]
    assert memory.next_seen[0] == 3
    assert memory.legal.shape == (3, 5)
    assert np.isnan(memory.next_seen[1:]).all()


def test_doing_nothing_is_worth_the_best_later_decision():
    bandit, rng, count = BanditConfig().build(SPEC, seed=0), np.random.default_rng(0), 40
    paid = np.repeat([0.0, 10.0, -10.0], count).astype(np.float32)  # nothing, the right seed, a wrong one
    seen = rng.standard_normal((3 * count, bandit._memory.seen.shape[1])).astype(np.float32)
    later = np.where(np.arange(3 * count)[:, None] < count, seen, np.float32(np.nan))
    legal = np.ones((3 * count, len(bandit.names)), np.bool_)
    choice = np.repeat([0, 1, 2], count)
    bandit._memory = DecisionMemory(seen, choice, paid, paid, later, legal, np.ones_like(paid), legal)
    bandit._fit()
    assert bandit._predict(seen)[:, 0] == pytest.approx(10, abs=0.5)
    bandit._memory.discount[:] = 0.5
    bandit._fit()
    assert bandit._predict(seen)[:, 0] == pytest.approx(5, abs=0.5)
    bandit._memory.discount[:] = 1
    legal[:, 1] = False
    bandit._fit()
    assert bandit._predict(seen)[:, 0].max() < 5, "only legal decisions count"


def test_a_summary_counts_legal_choices_only():
    bandit, rng, legal = BanditConfig().build(SPEC, seed=0), np.random.default_rng(0), np.ones((2, 5), np.bool_)
    legal[1, 1] = False  # as where the slot is taken
    hosts, choice = np.arange(2), np.array([1, 2])
    decisions = [(0, hosts, rng.standard_normal((2, bandit._memory.seen.shape[1])).astype(np.float32), legal, choice)]
    bandit._memory = Decisions(decisions=decisions, reward_TN=[np.array([10.0, 1.0], np.float32)]).memory()
    bandit._fit()
    assert bandit._predict(bandit._memory.seen).argmax(axis=1).tolist() == [1, 1]
    ((_, shown),) = bandit.summary()
    assert shown == f"{bandit.names[1]} 50 %, {bandit.names[2]} 50 %"
    again, state = BanditConfig().build(SPEC, seed=0), bandit.state_dict()
    again.load_state_dict(state)
    assert again.summary() == bandit.summary()
    again.load_state_dict({name: value for name, value in state.items() if name != "legal"})
    assert again.summary() == [("bandit would now plant", f"{bandit.names[1]} 100 %")], "a state of an earlier version"
