"""The bandit over schedules: what it draws, learns and plays, and exact resumption."""

# N hosts, S slots

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.schedule_bandit import NOTHING, ScheduleBandit, ScheduleBanditConfig, features, within
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.config import Config
from esper.env.actions import Head, Op
from esper.env.spec import Observation
from esper.evaluation.held_out import Evaluation
from esper.training.trainer import Trainer
from tests.agent.staged import SPEC, see

NOWHERE_N = np.zeros(4, np.bool_)
TINY = ["hosts=2", "steps=9", "slots=every_block", "telemetry=quiet", "task.epoch_samples=128", "task.valid_samples=100"]


def newborn(slots: list[int]) -> Observation:
    observation = see(0, legal={Op.GERMINATE: slots})
    observation.legal_values[:, 1] = False  # the second blueprint is not available
    return observation


def act(bandit: ScheduleBandit, observation: Observation, schedule: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return actions and schedules of four hosts."""
    state = bandit.start(4)
    if schedule is not None:
        state["schedule"][:] = state["schedule"].new_tensor(schedule)
    decision = bandit.act(observation, state, is_init=NOWHERE_N, uniform=np.zeros((4, 8)))
    return decision.action, decision.state["schedule"].numpy()


def test_rewards_are_discounted_by_gamma() -> None:
    bandit, first = ScheduleBanditConfig(gamma=0.95).build(SPEC, seed=0), newborn([0])
    bandit.begin(0)
    decision = bandit.act(first, bandit.start(4), is_init=NOWHERE_N, uniform=np.zeros((4, 8)))
    step = Transition(
        observation=first,
        decision=decision,
        reward_N=np.full(4, 20.0, np.float32),
        terminated_N=NOWHERE_N,
        is_init_N=NOWHERE_N,
        rolled_back_N=NOWHERE_N,
    )
    bandit.observe(step)
    bandit.observe(step)
    bandit.learn(0.0)
    assert bandit.return_n.tolist() == [39] * 4


def learn(bandit: ScheduleBandit, first: Observation, worth: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    """Play an update in which a schedule returns its worth, noise, and the luck of the twins; return the schedules played."""
    bandit.begin(bandit.tried)
    decision = bandit.act(first, bandit.start(4), is_init=NOWHERE_N, uniform=np.zeros((4, 8)))
    schedule_N = decision.state["schedule"].numpy()
    reward_N = (worth[schedule_N] + noise.normal(size=4) + 30 * noise.normal()).astype(np.float32)
    bandit.observe(
        Transition(
            observation=first,
            decision=decision,
            reward_N=reward_N,
            terminated_N=NOWHERE_N,
            is_init_N=NOWHERE_N,
            rolled_back_N=NOWHERE_N,
        )
    )
    bandit.learn(0.0)
    return schedule_N


def some_worth(bandit: ScheduleBandit, seed: int) -> np.ndarray:
    """Return the worth of each schedule: effects of slot, blueprint and time."""
    rng, seed_A, at_A = np.random.default_rng(seed), bandit.seed_A - 1, bandit.at_A
    slot, kind = 4 * rng.normal(size=3), 4 * rng.normal(size=3)
    return np.where(seed_A < 0, 50.0, 50 + slot[seed_A // 3] + kind[seed_A % 3] - 0.3 * (at_A - 4) ** 2)


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_a_schedule_that_is_nearly_the_best(seed: int) -> None:
    bandit = ScheduleBanditConfig().build(SPEC, seed=seed)
    worth, noise = some_worth(bandit, seed), np.random.default_rng(seed)
    for _ in range(60):
        learn(bandit, newborn([0, 2]), worth, noise)
    _, schedule_N = act(bandit, newborn([0, 2]))
    playable = (bandit.seed_A == 0) | (np.isin((bandit.seed_A - 1) // 3, [0, 2]) & ((bandit.seed_A - 1) % 3 != 1))
    assert len({*schedule_N}) == 1
    assert playable[schedule_N].all()
    assert worth[schedule_N[0]] > worth[playable].max() - 1
    assert bandit.summary() == [("best schedule", typed(bandit, schedule_N[0]))]


def typed(bandit: ScheduleBandit, schedule: int) -> str:
    if schedule == NOTHING:
        return "agent=wait"
    slot, kind = divmod(bandit.seed_A[schedule] - 1, 3)
    return f"agent=schedule agent.blueprint=blueprint{kind} agent.slot={slot} agent.at={bandit.at_A[schedule]}"


@settings(max_examples=25, deadline=None)
@given(latest=st.one_of(st.none(), st.integers(0, 9)), slots=st.lists(st.integers(0, 2), unique=True), seed=st.integers(0, 10**6))
def test_only_schedules_that_can_be_played_are_drawn(latest: int | None, slots: list[int], seed: int) -> None:
    bandit = ScheduleBanditConfig(latest=latest).build(SPEC, seed=seed)
    worth, noise = np.zeros(len(bandit.seed_A)), np.random.default_rng(seed)
    played = np.concatenate([learn(bandit, newborn(slots), worth, noise) for _ in range(5)])
    planted = bandit.seed_A[played][played != NOTHING] - 1
    assert {*(planted // 3).tolist()} <= {*slots}
    assert 1 not in planted % 3
    assert bandit.at_A[played].max() <= (9 if latest is None else latest)


def test_before_learning_all_seeds_are_equally_probable_in_training_and_none_is_planted_in_an_evaluation() -> None:
    bandit = ScheduleBanditConfig(latest=1).build(SPEC, seed=0)
    first, counts = see(0, legal={Op.GERMINATE: [0, 1, 2]}), np.zeros(len(bandit.seed_A))
    np.testing.assert_array_equal(act(bandit, first)[1], NOTHING)
    for seed in range(1000):
        bandit = ScheduleBanditConfig(latest=1).build(SPEC, seed=seed)
        bandit.begin(0)
        np.add.at(counts, act(bandit, first)[1], 1)
    by_seed = np.bincount(bandit.seed_A, counts)[1:]
    np.testing.assert_allclose(by_seed / by_seed.sum(), 1 / 9, atol=0.02)


def test_a_seed_is_planted_no_earlier_than_its_time_replanted_if_lost_and_kept() -> None:
    bandit = ScheduleBanditConfig().build(SPEC, seed=0)
    (schedule,) = np.flatnonzero((bandit.seed_A == 1 + 3 + 2) & (bandit.at_A == 4))
    for step, op, expected in (
        (3, Op.GERMINATE, Op.WAIT),
        (4, Op.GERMINATE, Op.GERMINATE),
        (7, Op.GERMINATE, Op.GERMINATE),
        (5, Op.ADVANCE, Op.ADVANCE),
        (9, Op.FOSSILIZE, Op.FOSSILIZE),
    ):
        action_NH, kept_N = act(bandit, see(step, legal={op: [0, 1, 2]}), np.full(4, schedule))
        assert {*action_NH[:, Head.OP]} == {expected}
        np.testing.assert_array_equal(kept_N, schedule)
        if expected == Op.GERMINATE:
            assert {*action_NH[:, Head.SLOT]} == {1}
            assert {*action_NH[:, Head.BLUEPRINT]} == {2}


def test_near_times_have_similar_effects_and_all_schedules_the_same_variance() -> None:
    bandit = ScheduleBanditConfig().build(SPEC, seed=0)
    covariance = features(bandit.seed_A, bandit.at_A, 3, 3, 10) @ features(bandit.seed_A, bandit.at_A, 3, 3, 10).T
    np.testing.assert_allclose(np.diag(covariance), 4)
    assert {*covariance[0, 1:]} == {0}
    same_seed, same_slot, other = covariance[1, 1:11], covariance[1, 11:21], covariance[1, 51:61]
    nearness = np.exp(-np.arange(10) / 4)
    np.testing.assert_allclose(same_seed, 3 + nearness)
    np.testing.assert_allclose(same_slot, 1 + nearness)
    np.testing.assert_allclose(other, nearness)


def test_hosts_without_a_finite_return_teach_nothing_and_old_ones_are_forgotten() -> None:
    bandit = ScheduleBanditConfig(memory=6).build(SPEC, seed=0)
    worth, noise = np.full(len(bandit.seed_A), np.nan), np.random.default_rng(0)
    learn(bandit, newborn([0]), worth, noise)
    assert len(bandit.played_n) == 0
    played = [learn(bandit, newborn([0]), np.zeros(len(worth)), noise) for _ in range(2)]
    np.testing.assert_array_equal(bandit.played_n, np.concatenate(played)[-6:])


def test_where_no_seed_helps_it_plants_nothing() -> None:
    bandit = ScheduleBanditConfig().build(SPEC, seed=0)
    worth, noise = np.where(bandit.seed_A == 0, 5.0, 0.0), np.random.default_rng(0)
    for _ in range(60):
        learn(bandit, newborn([0, 1, 2]), worth, noise)
    np.testing.assert_array_equal(act(bandit, newborn([0, 1, 2]))[1], NOTHING)


def test_in_a_shorter_episode_it_forgets_schedules_that_are_too_late() -> None:
    bandit, short = ScheduleBanditConfig().build(SPEC, seed=0), ScheduleBanditConfig(latest=4).build(SPEC, seed=0)
    for _ in range(5):
        learn(bandit, newborn([0]), np.zeros(len(bandit.seed_A)), np.random.default_rng(0))
    short.load_state_dict(bandit.state_dict())
    early = bandit.at_A[bandit.played_n] <= 4
    assert 0 < early.sum() < 20
    np.testing.assert_array_equal(short.at_A[short.played_n], bandit.at_A[bandit.played_n][early])
    np.testing.assert_array_equal(short.seed_A[short.played_n], bandit.seed_A[bandit.played_n][early])
    np.testing.assert_array_equal(short.return_n, bandit.return_n[early])
    np.testing.assert_array_equal(short.group_n, bandit.group_n[early])


def test_effects_are_learned_within_groups_of_twins() -> None:
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=(12, 3)), np.repeat([7, 3, 5], 4)
    y = x @ [1.0, 2.0, 3.0]
    found = within(np.column_stack([x, y + 100 * group]), group)
    dummies = np.eye(3)[np.repeat([0, 1, 2], 4)]
    expected = x - dummies @ np.linalg.lstsq(dummies, x)[0]  # what is left of a regression on the groups
    np.testing.assert_allclose(found[:, :3], expected, atol=1e-10)
    np.testing.assert_allclose(found[:, 3], expected @ [1.0, 2.0, 3.0], atol=1e-10)
    bandit = ScheduleBanditConfig().build(SPEC, seed=0)
    for _ in range(8):
        learn(bandit, newborn([0, 1, 2]), some_worth(bandit, 0), rng)
    assert bandit.group_n.tolist() == np.repeat(np.arange(8), 4).tolist()
    assert bandit.expected_A[bandit.played_n].mean() == pytest.approx(bandit.return_n.mean(dtype=np.float64))


def test_a_state_of_other_seeds_is_refused() -> None:
    bandit = ScheduleBanditConfig().build(SPEC, seed=0)
    for _ in range(5):
        learn(bandit, newborn([0]), np.zeros(len(bandit.seed_A)), np.random.default_rng(0))
    state = bandit.state_dict()
    with pytest.raises(ValueError, match=r"^this policy learned to choose among nothing, a, but here the choices are nothing, "):
        bandit.load_state_dict(state | {"names": ["nothing", "a"]})


def config(*overrides: str) -> Config:
    return check([*TINY, "agent=schedule_bandit", "agent.twins=2", *overrides])


@pytest.mark.slow
def test_a_stopped_run_resumes_exactly_and_an_evaluation_plays_the_schedule_of_the_summary(tmp_path: Path) -> None:
    Trainer(config("updates=3"), tmp_path / "whole").run()
    Trainer(config("updates=1"), tmp_path / "parts").run()
    Trainer(config("updates=3"), tmp_path / "parts").run()
    evaluations = [Evaluation.load(str(tmp_path / name), hosts=2) for name in ("whole", "parts")]
    whole, parts = (evaluation.controller("policy") for evaluation in evaluations)
    assert isinstance(whole, ScheduleBandit)
    assert isinstance(parts, ScheduleBandit)
    np.testing.assert_array_equal(whole.played_n, parts.played_n)
    np.testing.assert_array_equal(whole.return_n, parts.return_n)
    np.testing.assert_array_equal(whole.group_n, parts.group_n)
    assert len(whole.played_n) == 6
    ((_, command),) = whole.summary()
    written = check([*TINY, *command.split()]).agent.build(evaluations[0].env.layout, seed=0)
    played, again = (evaluation.grow(one) for evaluation, one in zip(evaluations, (whole, written), strict=True))
    np.testing.assert_array_equal(played.values["return"], again.values["return"])
    for evaluation in evaluations:
        evaluation.env.close()
