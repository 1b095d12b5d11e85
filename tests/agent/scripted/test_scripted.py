"""Controllers without learning."""

# N hosts, S slots, H heads

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.base import AgentConfig
from esper.agent.best_of_random import BestOfRandomConfig
from esper.agent.ppo.ppo import PPOConfig
from esper.agent.reading import feature_scale
from esper.agent.scripted.base import RandomConfig, WaitConfig
from esper.agent.scripted.greedy import GreedyPotentialConfig
from esper.agent.scripted.heuristic import Heuristic, HeuristicConfig
from esper.agent.scripted.periodic import PeriodicConfig
from esper.agent.scripted.schedule import ActionConfig, ScheduleConfig
from esper.env.actions import PINNED, RELEVANT, Head, Op, parameters_legal, segments
from esper.env.observation import HOST_FEATURES, FeatureTable, slot_table
from esper.env.spec import Observation
from esper.lifecycle.stages import Stage, empty
from tests.agent.staged import SPEC, advised, decide, ops, see
from tests.agent.toy_envs import random_observation
from tests.env_fixtures import View

CONFIGS: list[AgentConfig] = [
    PPOConfig(hidden=8, slot_width=8),
    HeuristicConfig(),
    GreedyPotentialConfig(at=1, threshold=0.0),
    RandomConfig(),
    WaitConfig(),
    ScheduleConfig(slot=1, blueprint="blueprint2", at=3),
    ScheduleConfig(actions=[ActionConfig(slot=1, blueprint="blueprint2", at=3), ActionConfig(slot=1, op="fossilize")]),
    PeriodicConfig(every=2),
    BestOfRandomConfig(),
]
IDS = [f"{type(config).__name__}{number}" for number, config in enumerate(CONFIGS)]


# ---- the door


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), free=st.booleans(), legal=st.sampled_from([0.0, 0.2, 0.9]), step=st.integers(0, 9))
@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_every_controller_acts_legally(config: AgentConfig, seed: int, free: bool, legal: float, step: int) -> None:
    observation = random_observation(SPEC, np.random.default_rng(seed), hosts=16, free=free, legal=legal)
    observation.features[:, 0] = 1 - step / SPEC.num_steps
    action = decide(config, observation, seed=seed).action
    assert action.dtype == np.int64
    assert action.shape == (16, len(Head))
    assert observation.legal_slots[np.arange(16), action[:, Head.OP], action[:, Head.SLOT]].all()
    assert parameters_legal(action, observation.legal_values, SPEC.head_sizes).all()
    assert (action[~RELEVANT[action[:, Head.OP]]] == 0).all()


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_controllers_use_no_global_random_stream_and_hosts_are_independent(config: AgentConfig) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    rng = np.random.default_rng(1)
    controller = config.build(SPEC, seed=0)
    observation, uniform = random_observation(SPEC, rng, hosts=9), rng.random((9, len(Head)))
    whole = controller.act(observation, controller.start(9), is_init=np.ones(9, np.bool_), uniform=uniform)
    part = Observation(**{name: getattr(observation, name)[4:6] for name in Observation.__dataclass_fields__})
    few = controller.act(part, controller.start(2), is_init=np.ones(2, np.bool_), uniform=uniform[4:6])
    assert np.array_equal(few.action, whole.action[4:6])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def test_an_unset_parameter_takes_its_default_where_that_is_legal() -> None:
    observation = see(legal={Op.GERMINATE: [1]})
    observation.legal_values[:] = True
    usual = {head: value for head, value in PINNED.items() if RELEVANT[Op.GERMINATE, head]}
    config = ScheduleConfig(slot=1, blueprint="blueprint2")
    action = decide(config, observation).action
    assert {head: int(action[0, head]) for head in usual} == usual
    target = segments(SPEC.head_sizes)[Head.ALPHA_TARGET]
    observation.legal_values[:, target] = [False, True, False]
    assert decide(config, observation).action[:, Head.ALPHA_TARGET].tolist() == [1] * 4


# ---- by chance


def test_random_actions_are_uniform_over_operations_slots_and_values() -> None:
    observation = see(legal={Op.GERMINATE: [0, 2], Op.PRUNE: [1]})
    many = Observation(
        **{name: np.repeat(getattr(observation, name)[:1], 9000, axis=0) for name in Observation.__dataclass_fields__}
    )
    action = decide(RandomConfig(), many).action
    frequency = np.bincount(action[:, Head.OP], minlength=len(Op)) / 9000
    np.testing.assert_allclose(frequency, [1 / 3, 1 / 3, 0, 1 / 3, 0, 0], atol=0.03)
    germinated = action[action[:, Head.OP] == Op.GERMINATE]
    np.testing.assert_allclose(np.bincount(germinated[:, Head.SLOT], minlength=3) / len(germinated), [0.5, 0, 0.5], atol=0.04)
    np.testing.assert_allclose(np.bincount(germinated[:, Head.BLUEPRINT]) / len(germinated), [1 / 3] * 3, atol=0.04)


@pytest.mark.parametrize(("weight", "waits"), [(0.0, 0.0), (3.0, 0.75)])
def test_wait_weight_scales_the_probability_of_waiting(weight: float, waits: float) -> None:
    observation = see(legal={Op.GERMINATE: [0]})
    drawn = [ops(decide(RandomConfig(wait_weight=weight), observation, seed=seed)) for seed in range(500)]
    assert (np.array(drawn) == Op.WAIT).mean() == pytest.approx(waits, abs=0.04)
    assert ops(decide(RandomConfig(wait_weight=weight), see())) == [Op.WAIT] * 4


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1, 0)])
def test_the_ends_of_the_unit_interval_give_legal_actions(uniform: float) -> None:
    observation = see(legal={Op.GERMINATE: [1], Op.PRUNE: [1]})
    for weight in (0.0, 1.0):
        agent = RandomConfig(wait_weight=weight).build(SPEC, seed=0)
        decision = agent.act(observation, {}, is_init=np.ones(4, np.bool_), uniform=np.full((4, len(Head)), uniform))
        op, slot = decision.action[0, [Head.OP, Head.SLOT]]
        assert op == (Op.PRUNE if uniform else Op.GERMINATE if weight == 0 else Op.WAIT)
        assert slot == (0 if op == Op.WAIT else 1)


# ---- by hand


def worth(*points: float) -> dict[str, Any]:
    return {"slot_contribution": np.array(points) / 50, "slot_contribution_measured": 1.0}


def test_the_most_urgent_operation_comes_first() -> None:
    config = HeuristicConfig(patience=0)
    everything = {Op.PRUNE: [0, 1, 2], Op.FOSSILIZE: [0, 1, 2], Op.ADVANCE: [2], Op.GERMINATE: [0]}
    action = decide(config, see(5, legal=everything, **worth(-3, -8, 9))).action
    assert action[0, [Head.OP, Head.SLOT]].tolist() == [Op.PRUNE, 1], "the worst seed goes"
    action = decide(config, see(5, legal=everything, **worth(3, 0, 9))).action
    assert action[0, [Head.OP, Head.SLOT]].tolist() == [Op.FOSSILIZE, 2], "the best seed is kept"
    action = decide(config, see(5, legal=everything, **worth(0, 0, 0))).action
    assert action[0, [Head.OP, Head.SLOT]].tolist() == [Op.ADVANCE, 2]
    action = decide(config, see(5, legal={Op.PRUNE: [0], Op.GERMINATE: [1, 2]}, **worth(0, 0, 0))).action
    assert action[0, [Head.OP, Head.SLOT]].tolist() == [Op.GERMINATE, 1], "the first empty slot"


def viewed(*, contribution: float = 0.0, error: float = 1.0, gained: float = 9.0, step: int = 5) -> Observation:
    """What the table of features makes of a host with a measured seed in slot 1, in points."""
    state = empty(4, 3)
    state.stage[:, 1], state.blueprint[:, 1], state.measured[:, 1] = Stage.HOLDING, 0, True
    state.contribution[:, 1], state.contribution_error[:, 1] = contribution, error
    view = View(
        time=step,
        num_steps=SPEC.num_steps,
        accuracy_NH=np.tile(np.array([40 + gained, 40, 40, 40], np.float32), (4, 1)),
        loss_N=np.ones(4, np.float32),
        chance_loss=2.0,
        state=state,
        potential_NSK=np.full((4, 3, 3), np.nan, np.float32),
        params_NS=np.zeros((4, 3), np.int64),
        host_params=100,
        max_seeds=3,
        op_N=np.zeros(4, np.int64),
        refused_N=np.zeros(4, np.bool_),
    )
    features, slots = (FeatureTable(table).values(view) for table in (HOST_FEATURES, slot_table(SPEC.blueprint_names)))
    legal = {Op.PRUNE: [1], Op.FOSSILIZE: [1], Op.GERMINATE: [0]}
    return replace(see(legal=legal), features=features, slots=slots)


@pytest.mark.parametrize(
    ("config", "shown", "op"),
    [
        (HeuristicConfig(threshold=0.5), {"contribution": 0.51}, Op.FOSSILIZE),
        (HeuristicConfig(threshold=0.5), {"contribution": -0.51}, Op.PRUNE),
        (HeuristicConfig(threshold=0.5, patience=9), {"contribution": 0.49}, Op.WAIT),
        (HeuristicConfig(plateau=0.5, patience=9), {"gained": 0.51}, Op.WAIT),
        (HeuristicConfig(plateau=0.5, patience=9), {"gained": 0.49}, Op.GERMINATE),
        (GreedyPotentialConfig(errors=2.0), {"contribution": 3.1, "error": 1.5}, Op.FOSSILIZE),
        (GreedyPotentialConfig(errors=2.0), {"contribution": 2.9, "error": 1.5}, Op.PRUNE),
    ],
)
def test_feature_scales_agree_with_the_feature_table(config: AgentConfig, shown: dict[str, float], op: Op) -> None:
    assert ops(decide(config, viewed(**shown))) == [op] * 4


def test_a_scale_that_differs_from_run_to_run_is_refused() -> None:
    assert feature_scale("contribution") == 50.0
    with pytest.raises(AssertionError, match="the scale of loss differs from run to run"):
        feature_scale("loss")


def test_an_unmeasured_seed_is_neither_kept_nor_pruned() -> None:
    legal = {Op.PRUNE: [0, 1, 2], Op.FOSSILIZE: [0, 1, 2]}
    unknown = worth(-9, 9, 9) | {"slot_contribution_measured": 0.0}
    assert ops(decide(HeuristicConfig(), see(9, legal=legal, **unknown))) == [Op.WAIT] * 4


def test_the_last_step_keeps_every_seed_with_a_positive_contribution() -> None:
    legal = {Op.FOSSILIZE: [0]}
    assert ops(decide(HeuristicConfig(), see(8, legal=legal, **worth(0.2, 0, 0)))) == [Op.WAIT] * 4
    assert ops(decide(HeuristicConfig(), see(9, legal=legal, **worth(0.2, 0, 0)))) == [Op.FOSSILIZE] * 4
    assert ops(decide(HeuristicConfig(), see(9, legal=legal, **worth(-0.2, 0, 0)))) == [Op.WAIT] * 4


def test_it_germinates_on_a_plateau_or_when_patience_ends() -> None:
    config, legal = HeuristicConfig(patience=7), {Op.GERMINATE: [0]}
    flat = {"accuracy": 0.5, "accuracy_3_ago": 0.499, "accuracy_3_ago_known": 1.0}
    assert ops(decide(config, see(4, legal=legal, **flat))) == [Op.GERMINATE] * 4
    assert ops(decide(config, see(4, legal=legal, **(flat | {"accuracy_3_ago": 0.4})))) == [Op.WAIT] * 4
    unknown = flat | {"accuracy_3_ago_known": 0.0}
    assert ops(decide(config, see(4, legal=legal, **unknown))) == [Op.WAIT] * 4
    assert ops(decide(config, see(7, legal=legal, **unknown))) == [Op.GERMINATE] * 4


def test_blueprints_rotate_and_a_new_host_starts_from_the_first() -> None:
    agent: Heuristic = HeuristicConfig(patience=0).build(SPEC, seed=0)
    state, planted = agent.start(4), []
    for step in (1, 2, 3, 4, 0):
        observation = see(step, legal={Op.GERMINATE: [0]})
        observation.legal_slots[1, Op.GERMINATE] = step > 2
        init = np.full(4, step in (0, 3))  # after a roll-back too, the next blueprint comes
        decision = agent.act(observation, state, is_init=init, uniform=np.zeros((4, len(Head))))
        state = decision.state
        planted.append(decision.action[:2, [Head.OP, Head.BLUEPRINT]].tolist())
    germinate, wait = int(Op.GERMINATE), [int(Op.WAIT), 0]
    assert [host0 for host0, _ in planted] == [[germinate, turn] for turn in (0, 1, 2, 0, 0)]
    assert [host1 for _, host1 in planted] == [wait, wait, [germinate, 0], [germinate, 1], wait]


def test_a_heuristic_that_teaches_counts_the_seeds_of_its_pupil() -> None:
    agent = HeuristicConfig(patience=0).build(SPEC, seed=0)
    seen = [see(step, legal={Op.GERMINATE: [0]}) for step in range(5)]
    assert [blueprint for *_, blueprint in advised(agent, seen)] == [0] * 5
    assert [blueprint for *_, blueprint in advised(agent, seen, follows=[1, 2])] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeuristicConfig(patience=-1), r"agent\.patience must be finite and at least 0, got -1"),
        (lambda: HeuristicConfig(plateau=-1.0), r"agent\.plateau must be finite and at least 0, got -1"),
        (lambda: HeuristicConfig(threshold=float("nan")), r"agent\.threshold must be finite and at least 0, got nan"),
        (lambda: RandomConfig(wait_weight=-1.0), r"agent\.wait_weight must be finite and at least 0, got -1"),
        (lambda: WaitConfig(gamma=2.0), r"agent\.gamma must be in \[0, 1\], got 2"),
    ],
)
def test_values_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
