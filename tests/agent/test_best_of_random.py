"""Random search over schedules: what it draws, what it keeps, and exact resumption."""

# N hosts, S slots

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.best_of_random import BestOfRandom, BestOfRandomConfig, Times
from esper.agent.schedule_bandit import ScheduleBanditConfig
from esper.agent.scripted.schedule import ActionConfig, ScheduleConfig
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.config import Config
from esper.env.actions import HeadsConfig, Op
from esper.env.spec import Observation
from esper.evaluation.held_out import Evaluation
from esper.seeding import stream
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.trainer import Trainer
from tests.agent.staged import SPEC, see

HOSTS = ["hosts=2", "steps=9", "slots=every_block", "telemetry=quiet", "task.epoch_samples=256", "task.valid_samples=100"]
TINY = [*HOSTS, "agent=best_of_random", "agent.most=1", "agent.latest=1"]


def newborn(slots: list[int], *, free: bool = False) -> Observation:
    observation = see(0, legal={Op.GERMINATE: slots})
    observation.legal_values[:, 1] = False  # the second blueprint is not available
    if free:
        observation.legal_values[:, 3:] = True
    return observation


def attempt(search: BestOfRandom, first: Observation) -> list[ActionConfig]:
    """Begin an update and return the schedule that it tries."""
    search.begin(search.tried)
    search.act(first, search.start(4), is_init=np.ones(4, np.bool_), uniform=np.zeros((4, 8)))
    return search._trial


def pay(search: BestOfRandom, *reward: float) -> dict[str, float]:
    """End the update with the rewards of each host."""
    observation = newborn([0])
    decision = search.act(observation, search.start(4), is_init=np.ones(4, np.bool_), uniform=np.zeros((4, 8)))
    nowhere_N = np.zeros(4, np.bool_)
    search.observe(
        Transition(
            observation=observation,
            decision=decision,
            reward_N=np.resize(np.array(reward, np.float32), 4),
            terminated_N=nowhere_N,
            is_init_N=nowhere_N,
            rolled_back_N=nowhere_N,
        )
    )
    return search.learn(0.0)


def drawn(search: BestOfRandom, tries: int, first: Observation) -> list[list[ActionConfig]]:
    schedules: list[list[ActionConfig]] = []
    for _ in range(tries):
        schedules.append(attempt(search, first))
        pay(search, 0.0)
    return schedules


# ---- what is drawn


@settings(max_examples=25, deadline=None)
@given(
    most=st.integers(0, 4),
    latest=st.one_of(st.none(), st.integers(0, 9)),
    slots=st.lists(st.integers(0, 2), unique=True),
    free=st.booleans(),
    cap=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_drawn_schedules_are_valid_schedule_configs(
    most: int, latest: int | None, slots: list[int], free: bool, cap: int, seed: int
) -> None:
    search = BestOfRandomConfig(most=most, latest=latest).build(replace(SPEC, max_seeds=cap), seed=seed)
    first, *others = drawn(search, 12, newborn(slots, free=free))
    assert first == []
    for schedule in others:
        planted = [action for action in schedule if action.op == "germinate"]
        assert min(len(slots), 1) <= len(planted) <= min(most or 3, cap or 3, len(slots))
        assert len({action.slot for action in planted} & set(slots)) == len(planted)
        assert {action.blueprint for action in planted} <= {"blueprint0", "blueprint2"}
        assert all(action.at <= (9 if latest is None else latest) for action in schedule)
        assert [action.at for action in schedule] == sorted(action.at for action in schedule)
        kept = [(action.at, action.slot) for action in schedule if action.op == "fossilize"]
        assert kept == [(action.at, action.slot) for action in planted]
        assert all((action.tempo is not None) == free for action in planted)
        heads = HeadsConfig(style="free", tempo="free", alpha_target="free") if free else HeadsConfig()
        if schedule:
            ScheduleConfig(actions=schedule, heads=heads).build(SPEC, seed=0)


def test_a_search_for_which_waiting_is_best_says_so() -> None:
    assert BestOfRandomConfig().build(SPEC, seed=0).summary() == [("best schedule", "agent=wait")]


def test_only_training_needs_the_latest_time_of_a_search() -> None:
    for config in (BestOfRandomConfig(latest=9), ScheduleBanditConfig(latest=9)):
        config.acting().check_run(blueprints=SPEC.blueprint_names, steps=5, hosts=4)
    short = ScheduleBanditConfig(latest=9).build(replace(SPEC, num_steps=5), seed=0)
    assert short.at_A.max() == 4


def test_slots_blueprints_and_times_are_drawn_uniformly() -> None:
    planted = [schedule[0] for schedule in drawn(BestOfRandomConfig(most=1).build(SPEC, seed=0), 1500, newborn([0, 2]))[1:]]
    slots = [action.slot for action in planted]
    kinds = [action.blueprint for action in planted]
    assert slots.count(0) / len(slots) == pytest.approx(0.5, abs=0.05)
    assert kinds.count("blueprint0") / len(kinds) == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(np.bincount([action.at for action in planted]) / len(planted), [0.1] * 10, atol=0.035)


def test_early_times_are_log_uniform() -> None:
    search = BestOfRandomConfig(most=1, times=Times.early).build(SPEC, seed=0)
    times = [schedule[0].at for schedule in drawn(search, 1500, newborn([0, 2]))[1:]]
    epochs = np.arange(10)
    share = np.log(1 + 1 / (1 + epochs)) / np.log(11)
    np.testing.assert_allclose(np.bincount(times, minlength=10) / len(times), share, atol=0.035)
    assert max(Times.early.draw(stream(0, "late"), 3, 5000)) == 3


def test_seed_and_number_determine_a_schedule() -> None:
    first = newborn([0, 1, 2])
    whole = drawn(BestOfRandomConfig().build(SPEC, seed=7), 6, first)
    search = BestOfRandomConfig().build(SPEC, seed=7)
    drawn(search, 3, first)
    later = BestOfRandomConfig().build(SPEC, seed=7)
    later.load_state_dict(search.state_dict())
    assert drawn(later, 3, first) == whole[3:]
    assert drawn(BestOfRandomConfig().build(SPEC, seed=8), 6, first) != whole


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"slot": 3}, r"slot elsewhere in the best schedule does not exist on these hosts, which have "),
        ({"blueprint": "norm"}, r"blueprint=norm in the best schedule is not available: add it to blueprint$"),
        ({"at": 10}, r"at=10 in the best schedule is after the end of the episode, steps=10"),
    ],
)
def test_a_saved_schedule_that_does_not_fit_the_hosts_is_refused(plain: dict[str, int | str], message: str) -> None:
    search = BestOfRandomConfig().build(SPEC, seed=0)
    action = {"at": 0, "op": "germinate", "slot": 0, "blueprint": "blueprint0"} | plain
    with pytest.raises(ValueError, match=message):
        search.load_state_dict({"tried": 5, "best_return": 1.0, "best": [action], "slots": [*SPEC.slot_names, "elsewhere"]})
    assert search.tried == 0


# ---- what is kept


@settings(max_examples=50, deadline=None)
@given(returns=st.lists(st.sampled_from([1.0, 2.0, 3.0, float("nan"), float("inf")]), min_size=1, max_size=8))
def test_the_highest_mean_return_is_kept_and_ties_keep_the_earlier_schedule(returns: list[float]) -> None:
    search, first = BestOfRandomConfig().build(SPEC, seed=0), newborn([0, 1, 2])
    tried: list[list[ActionConfig]] = []
    for mean in returns:
        tried.append(attempt(search, first))
        assert pay(search, mean - 1, mean + 1)["search/seeds"] == len(tried[-1]) // 2
    sound = [mean for mean in returns if np.isfinite(mean)]
    assert search.best_return == (max(sound) if sound else None)
    assert search.best == (tried[returns.index(max(sound))] if sound else [])


def test_rewards_are_discounted_by_gamma() -> None:
    search, first = BestOfRandomConfig(gamma=0.95).build(SPEC, seed=0), newborn([0, 1, 2])
    for _ in range(2):  # each update begins anew
        attempt(search, first)
        decision = search.act(first, search.start(4), is_init=np.ones(4, np.bool_), uniform=np.zeros((4, 8)))
        reward_N, nowhere_N = np.full(4, 20.0, np.float32), np.zeros(4, np.bool_)
        step = Transition(
            observation=first,
            decision=decision,
            reward_N=reward_N,
            terminated_N=nowhere_N,
            is_init_N=nowhere_N,
            rolled_back_N=nowhere_N,
        )
        search.observe(step)
        search.observe(step)
        search.learn(0.0)
        assert search.best_return == 39


def test_a_restored_search_keeps_its_best_return() -> None:
    search, first = BestOfRandomConfig().build(SPEC, seed=0), newborn([0, 1, 2])
    for paid in (0.0, 2.0):
        attempt(search, first)
        pay(search, paid)
    later = BestOfRandomConfig().build(SPEC, seed=0)
    later.load_state_dict(search.state_dict())
    attempt(later, first)
    assert not pay(later, 1.0)["search/improved"]
    assert later.best == search.best
    assert later.state_dict() == search.state_dict() | {"tried": 3}


def test_it_plays_the_best_and_waits_before_the_first_try() -> None:
    search, first = BestOfRandomConfig(most=1, latest=0).build(SPEC, seed=0), newborn([0, 1, 2])

    def acts() -> list[int]:
        decision = search.act(first, search.start(4), is_init=np.ones(4, np.bool_), uniform=np.zeros((4, 8)))
        return decision.action[0, :3].tolist()

    assert acts() == [Op.WAIT, 0, 0]
    for paid in (0.0, 1.0, 0.5):
        attempt(search, first)
        pay(search, paid)
    (plant, _), schedule = search.best, search.best
    assert acts() == [Op.GERMINATE, plant.slot, SPEC.blueprint_names.index(plant.blueprint or "")]
    assert search.overrides().startswith(f"[{{at: 0, op: germinate, slot: {plant.slot}, blueprint: {plant.blueprint}}}, ")
    assert search.best == schedule


# ---- in a run


def config(*overrides: str) -> Config:
    return check([*TINY, *overrides])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BestOfRandom]:
    """An uninterrupted search."""
    folder = tmp_path_factory.mktemp("search")
    trainer = Trainer(config("updates=4"), folder)
    trainer.run()
    assert isinstance(trainer.agent, BestOfRandom)
    return folder, trainer.agent


@pytest.mark.slow
def test_a_stopped_search_resumes_exactly(whole: tuple[Path, BestOfRandom], tmp_path: Path) -> None:
    folder, search = whole
    Trainer(config("updates=2"), tmp_path).run()
    later = Trainer(config("updates=4"), tmp_path)
    later.run()
    assert isinstance(later.agent, BestOfRandom)
    assert later.agent.state_dict() == search.state_dict()
    timeless = [
        [
            {tag: value for tag, value in record.items() if not tag.startswith(("time/", "seeds_"))}
            for record in read_records(path)
        ]
        for path in (folder / "metrics.jsonl", tmp_path / "metrics.jsonl")
    ]
    assert timeless[0] == timeless[1]


def test_all_schedules_are_tried_on_the_same_hosts_and_the_best_is_kept(whole: tuple[Path, BestOfRandom]) -> None:
    folder, search = whole
    paid = [record["policy/return"] for record in read_records(folder / "metrics.jsonl")]
    best = [record["search/best_return"] for record in read_records(folder / "metrics.jsonl")]
    assert len(set(paid)) > 1
    np.testing.assert_allclose(best, np.maximum.accumulate(paid), rtol=1e-6)
    env = build_env(config(), split=Split.TRAINING)
    env.reset(options={"episode": 0})
    assert search.best, "a seed helps"
    written = check([*HOSTS, "agent=schedule", f"agent.actions={search.overrides()}"])
    again = play(env, written.agent.build(env.layout, seed=0))
    env.close()
    assert float(again.return_N.mean(dtype=np.float64)) == search.best_return


def test_an_evaluation_plays_the_best_schedule(whole: tuple[Path, BestOfRandom]) -> None:
    folder, search = whole
    evaluation = Evaluation.load(str(folder), hosts=2)
    player = evaluation.controller("policy")
    evaluation.env.close()
    assert isinstance(player, BestOfRandom)
    assert player.best == search.best
