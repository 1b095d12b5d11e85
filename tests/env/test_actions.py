"""Action heads, fixed and free: legality, effects in an environment, and every controller."""

import warnings

import numpy as np
import pytest

from esper.agent.ppo.ppo import PPOConfig
from esper.agent.scripted.base import RandomConfig, WaitConfig
from esper.agent.scripted.heuristic import HeuristicConfig
from esper.agent.scripted.schedule import ScheduleConfig
from esper.buffer.rollout import Rollout
from esper.env.actions import ALPHA_TARGETS, PARAMETER_HEADS, PINNED, STYLES, TEMPOS, VALUES, Head, HeadsConfig, Op, legal_values
from esper.env.spec import as_observation
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig, StrictConfig, gradient_ratio
from esper.lifecycle.ramps import Curve
from esper.lifecycle.roles import Blend, Fossils, Incubation
from esper.lifecycle.slots import EveryBlockConfig, Isolation
from esper.lifecycle.stages import LIVE, OCCUPIED, TAKES_PART, Stage
from esper.seeding import torch_stream
from esper.training.play import play

FREE = HeadsConfig(**{head.name.lower(): "free" for head in VALUES})
BY_ITSELF = ["training", "blending", "holding"]


def columns(legal):
    """Return the legal values of each parameter head of the first host."""
    sizes = [legal.shape[1] - sum(map(len, VALUES.values())), *map(len, VALUES.values())]
    parts = np.split(legal[0], np.cumsum(sizes)[:-1])
    return {head: np.flatnonzero(part).tolist() for head, part in zip(PARAMETER_HEADS, parts, strict=True)}


def named(op, slot=0, blueprint=0, **parameters):
    """Return an action with parameters by name, by default the fixed ones."""
    row = np.zeros(len(Head), dtype=np.int64)
    row[[Head.OP, Head.SLOT, Head.BLUEPRINT]] = op, slot, blueprint
    for head, usual in PINNED.items():
        name = parameters.get(head.name.lower())
        row[head] = usual if name is None else list(VALUES[head]).index(name)
    return row


def drawn(observation, rng):
    """Return a legal random action of each host."""
    seen = as_observation(observation)
    rows = []
    for host in range(len(seen.features)):
        op = rng.choice(np.flatnonzero(seen.legal_ops[host]))
        row = [op, rng.choice(np.flatnonzero(seen.legal_slots[host, op]))]
        rows.append(row + [rng.choice(legal) for legal in columns(seen.legal_values[host : host + 1]).values()])
    return np.array(rows)


# ---- tables


def test_action_values_match_the_specification():
    assert TEMPOS == {"fast": 3, "standard": 5, "slow": 8}
    assert ALPHA_TARGETS == {"half": 0.5, "seventy": 0.7, "full": 1.0}
    assert VALUES[Head.ALPHA_SPEED] == {"instant": 0, "fast": 3, "medium": 5, "slow": 8}
    assert list(VALUES[Head.ALPHA_CURVE]) == ["linear", "cosine", "sigmoid_gentle", "sigmoid", "sigmoid_sharp"]
    assert STYLES == {
        "linear_add": (Blend.ADD, Curve.LINEAR),
        "linear_multiply": (Blend.MULTIPLY, Curve.LINEAR),
        "sigmoid_add": (Blend.ADD, Curve.SIGMOID),
        "gated": (Blend.GATE, Curve.LINEAR),
    }


@pytest.mark.parametrize("head", VALUES)
def test_a_head_is_fixed_at_its_value_or_free(head):
    others = {"alpha_speed": "slow"} if head == Head.ALPHA_CURVE else {}
    for number, name in enumerate(VALUES[head]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            heads = HeadsConfig(**{head.name.lower(): name}, **others)
        assert columns(legal_values(2, 3, heads))[head] == [number]
    heads = HeadsConfig(**{head.name.lower(): "free"}, **others)
    legal = columns(legal_values(2, 3, heads))
    assert legal[head] == list(range(len(VALUES[head])))
    assert legal[Head.BLUEPRINT] == [0, 1, 2]
    assert [other for other, values in legal.items() if len(values) > 1] == [Head.BLUEPRINT, head]
    with pytest.raises(ValueError, match=rf"agent\.heads\.{head.name.lower()}=odd is not known: choose one of .*, free"):
        HeadsConfig(**{head.name.lower(): "odd"})


def test_by_default_only_the_blueprint_is_free():
    names = {head.name.lower(): list(VALUES[head])[number] for head, number in PINNED.items()}
    assert names == {
        "style": "linear_add", "tempo": "fast", "alpha_target": "full", "alpha_speed": "instant", "alpha_curve": "linear",
    }  # fmt: skip


def test_without_incubation_tempo_is_fixed():
    slots = EveryBlockConfig(incubation=Incubation.none)
    assert columns(legal_values(1, 2, FREE, slots))[Head.TEMPO] == [0]
    assert columns(legal_values(1, 2, HeadsConfig(tempo="slow"), slots))[Head.TEMPO] == [2]
    assert len(columns(legal_values(1, 2, FREE, EveryBlockConfig()))[Head.TEMPO]) == 3


def test_a_curve_without_a_ramp_is_refused_and_a_partial_target_warns():
    with pytest.raises(ValueError, match=r"agent\.heads\.alpha_curve=free has no effect while .*alpha_speed is instant"):
        HeadsConfig(alpha_curve="free")
    with pytest.warns(UserWarning, match=r"agent\.heads\.alpha_target=half keeps every seed below alpha 1"):
        HeadsConfig(alpha_target="half")


# ---- in an environment


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize(
    ("auto", "others"),
    [(BY_ITSELF, {}), (["training"], {"prune_after": 9, "isolation": Isolation.until_kept, "fossils": Fossils.frozen})],
    ids=["by_itself", "by_hand"],
)
def test_legal_actions_are_carried_out_with_all_heads_free(make_env, incubation, auto, others):
    slots = EveryBlockConfig(incubation=incubation, auto_advance=auto, min_prune_age=0, embargo=1, **others)
    env, rng = make_env(6, 14, slots=slots, heads=FREE), np.random.default_rng(3)
    observation, _ = env.reset(seed=1)
    for _ in range(14):
        actions = drawn(observation, rng)
        observation, reward, _, _, info = env.step(actions)
        assert np.isfinite(reward).all()
        assert np.array_equal(info["signals"].op_N, actions[:, Head.OP]), "legal actions are carried out"
        assert env.observation_space.contains(observation)
        part = info["signals"].after.within(*TAKES_PART)
        learnt = lifecycle.roles(info["signals"].after, slots).learns
        assert np.array_equal(np.isfinite(info["signals"].after.gradient_norm), learnt)
        assert not (learnt & ~part).any()


def rows_of(env, host):
    """Return the state of a host's seeds by name."""
    return {name: row[host].clone() for name, row in env.pool.shards[0].network.rows().items() if name.startswith("seed")}


def test_a_dying_seed_stops_learning_and_is_cleared(make_env):
    slots = EveryBlockConfig(auto_advance=BY_ITSELF, min_prune_age=0)
    env = make_env(1, 20, slots=slots, heads=FREE)
    env.reset(seed=0)
    env.step(named(Op.GERMINATE, 1, 1)[None])
    for _ in range(4):
        env.step(named(Op.WAIT)[None])
    weights = [row for row in rows_of(env, 0).values() if row.abs().sum() > 0]
    assert weights
    accuracies = []
    for op in (Op.PRUNE, *[Op.WAIT] * 4):
        assert env.state.stage[0, 1] in (Stage.HOLDING, Stage.BLENDING)
        kept = {name: row for name, row in rows_of(env, 0).items() if "momentum" not in name}
        _, _, _, _, info = env.step(named(op, 1, alpha_speed="medium")[None])
        accuracies.append(info["signals"].accuracy_N[0])
        if env.state.stage[0, 1] == Stage.BLENDING:
            assert all(rows_of(env, 0)[name].equal(row) for name, row in kept.items()), "a dying seed does not learn"
    assert env.state.stage[0, 1] == Stage.PRUNED
    assert not any(row.any() for row in rows_of(env, 0).values()), "its bank is empty"


@pytest.mark.parametrize("rule", [{"prune_after": 4}, {"prune_below": 99.0}])
def test_a_seed_removed_by_a_rule_is_cleared_and_frees_the_cap(make_env, rule):
    slots = EveryBlockConfig(auto_advance=BY_ITSELF, min_prune_age=0, embargo=0, max_seeds=1, **rule)
    env = make_env(2, 20, slots=slots)
    env.reset(seed=0)
    env.step(np.stack([named(Op.GERMINATE, 1, 1), named(Op.WAIT)]))
    ages = 0
    while env.state.within(*LIVE)[0, 1]:
        observation, *_, info = env.step(np.stack([named(Op.WAIT)] * 2))
        ages += 1
    assert ages == 4  # by age; or after training, two epochs of blending, and one at alpha 1
    assert info["signals"].after.within(Stage.PRUNED)[0, 1]
    assert not any(row.any() for row in rows_of(env, 0).values())
    observation, *_ = env.step(np.stack([named(Op.WAIT)] * 2))
    assert observation["legal_slots"][0, Op.GERMINATE].tolist() == [1, 1, 1]


def test_the_gradient_ratio_is_measured_in_the_last_epoch(make_env, monkeypatch):
    env = make_env(2, 6, heads=FREE)
    env.reset(seed=0)
    reports = []
    epoch = env.pool.epoch
    monkeypatch.setattr(env.pool, "epoch", lambda *args, **more: reports.append(epoch(*args, **more)) or reports[-1])
    *_, info = env.step(np.stack([named(Op.GERMINATE, 2, 1), named(Op.WAIT)]))
    after, report = info["signals"].after, reports[-1].report
    wanted = report.seed_norm_MS[0, 2] / report.host_norm_M[0] * np.sqrt(env.host_params / env.costs.params.seed_KS[1, 2])
    assert after.gradient_ratio[0, 2] == pytest.approx(wanted, rel=1e-5)
    assert after.gradient_ratio[0, 2] > 0
    assert np.isnan(np.delete(after.gradient_ratio.ravel(), 2)).all()
    assert np.array_equal(
        after.gradient_ratio,
        gradient_ratio(report.seed_norm_MS, report.host_norm_M, info["signals"].params_NS, env.host_params),
        equal_nan=True,
    )


@pytest.mark.parametrize(
    ("gates", "opens"),
    [
        (GatesConfig(min_gradient_ratio=1e-6), True),
        (GatesConfig(min_gradient_ratio=1e6), False),
        (GatesConfig(max_gradient_norm=1e-9), False),
        (GatesConfig(min_improvement=-100.0), True),
        (GatesConfig(min_improvement=100.0), False),
        (GatesConfig(min_training=4), False),
        (StrictConfig(min_training=1, min_improvement=-100.0, min_gradient_ratio=0.0, max_gradient_norm=1e9), True),
    ],
)
def test_gates_use_measurements_of_the_environment(make_env, gates, opens):
    env = make_env(1, 6, gates=gates)
    env.reset(seed=0)
    observation, *_ = env.step(named(Op.GERMINATE, 1, 1)[None])
    assert observation["legal_slots"][0, Op.ADVANCE].tolist() == [0, int(opens), 0]


def test_min_contribution_is_compared_with_the_measurement(make_env):
    def may_keep(gates):
        env = make_env(1, 9, slots=EveryBlockConfig(auto_advance=BY_ITSELF), gates=gates)
        env.reset(seed=1)
        observation, *_ = env.step(named(Op.GERMINATE, 1, 1)[None])
        for _ in range(4):
            observation, *_ = env.step(named(Op.WAIT)[None])
        return bool(observation["legal_slots"][0, Op.FOSSILIZE, 1]), env.state

    open_, state = may_keep(GatesConfig())
    worth, error = float(state.contribution[0, 1]), float(state.contribution_error[0, 1])
    assert open_
    assert error > 0
    assert may_keep(GatesConfig(min_contribution=worth - 0.01))[0]
    assert not may_keep(GatesConfig(min_contribution=worth + 0.01))[0]
    assert may_keep(GatesConfig(min_contribution=worth - 2 * error - 0.01, contribution_z=2.0))[0]
    assert not may_keep(GatesConfig(min_contribution=worth - 2 * error + 0.01, contribution_z=2.0))[0]


# ---- the observation


def test_the_observation_shows_ramps_and_blends(make_env):
    env = make_env(2, 12, slots=EveryBlockConfig(auto_advance=BY_ITSELF, min_prune_age=0), heads=FREE)
    env.reset(seed=0)
    wait = named(Op.WAIT)

    def seen(one, two):
        observation, *_ = env.step(np.stack([one, two]))
        names = env.layout.slot_feature_names
        return [dict(zip(names, observation["slots"][host, host].tolist(), strict=True)) for host in (0, 1)]

    half = {"style": "linear_multiply", "tempo": "standard", "alpha_target": "half"}
    one, two = seen(named(Op.GERMINATE, 0, 1, **half), named(Op.GERMINATE, 1, 0, style="gated"))
    assert (one["blend_add"], one["blend_multiply"], one["blend_gate"]) == (0, 1, 0)
    assert (two["blend_add"], two["blend_multiply"], two["blend_gate"]) == (0, 0, 1)
    assert (one["alpha_target"], one["time_to_target"], one["alpha_up"], one["gradient_measured"]) == (0.5, 0, 0, 1)
    assert 0 < one["gradient_ratio"] <= 1
    one, two = seen(wait, wait)
    assert (one["alpha"], one["alpha_up"], one["time_to_target"]) == (pytest.approx(0.1), 1, 4 / 8)
    assert (two["alpha"], two["alpha_up"], two["time_to_target"]) == (pytest.approx(1 / 3), 1, 2 / 8)
    one, two = seen(wait, named(Op.PRUNE, 1, alpha_speed="slow"))
    assert (two["alpha_up"], two["alpha_down"], two["dying"], two["alpha_target"], two["time_to_target"]) == (0, 1, 1, 0, 7 / 8)
    assert two["gradient_measured"] == 0
    assert (one["dying"], one["alpha_down"]) == (0, 0)
    empty = {name: env.observation()["slots"][0, 2, rank] for rank, name in enumerate(env.layout.slot_feature_names)}
    assert not any(empty[name] for name in empty if name.startswith(("alpha", "blend", "dying", "time", "gradient", "improve")))


def test_improvement_counts_from_the_start_of_the_stage(make_env):
    env = make_env(1, 6)
    env.reset(seed=0)
    first = env.accuracy_NH[0, 0]
    observation, *_ = env.step(named(Op.GERMINATE, 1, 1)[None])
    rank = env.layout.slot_feature_names.index("improvement")
    assert observation["slots"][0, 1, rank] == pytest.approx((env.accuracy_NH[0, 0] - first) / 50, abs=1e-6)
    second = env.accuracy_NH[0, 0]
    observation, *_ = env.step(named(Op.ADVANCE, 1)[None])
    assert observation["slots"][0, 1, rank] == pytest.approx((env.accuracy_NH[0, 0] - second) / 50, abs=1e-6)
    assert observation["slots"][0, [0, 2], rank].tolist() == [0, 0]


# ---- controllers


@pytest.mark.parametrize("incubation", [Incubation.straight_through, Incubation.none])
@pytest.mark.parametrize(
    "agent",
    [
        PPOConfig(hidden=8, slot_width=8, minibatches=2, epochs=1, wait_bias=-2.0),
        HeuristicConfig(patience=0, threshold=0.0),
        RandomConfig(wait_weight=0.2),
        ScheduleConfig(slot=1, blueprint="conv_light"),
        WaitConfig(),
    ],
    ids=lambda agent: type(agent).__name__,
)
def test_every_controller_works_with_all_heads_free(make_env, agent, incubation):
    slots = EveryBlockConfig(incubation=incubation, min_prune_age=1)
    env = make_env(4, 10, slots=slots, heads=FREE)
    env.reset(seed=0)
    controller, rollout, refused = agent.build(env.layout, seed=0), Rollout(env.layout), []

    def record(step):
        rollout.add(
            step.observation, step.decision, reward=step.reward_N, terminated=step.terminated_N, is_init=step.is_init_N
        ) if isinstance(agent, PPOConfig) else None
        rank = env.layout.feature_names.index("last_refused")
        refused.append(step.observation.features[:, rank].any())

    episode = play(env, controller, record=record)
    assert not any(refused)
    if isinstance(agent, PPOConfig):
        stats = controller.update(rollout, progress=0.0, generator=torch_stream(0, "minibatches", 0))
        assert np.isfinite(stats["policy_loss"])
        assert stats["entropy"] > 0
    if isinstance(agent, ScheduleConfig | HeuristicConfig):
        assert episode.fossilized > 0, "seeds reach alpha 1, so they can be fossilized"
    assert episode.signals.after.within(*OCCUPIED).any() == (not isinstance(agent, WaitConfig))


def test_the_record_counts_fates_of_seeds_not_operations(make_env):
    schedule = ScheduleConfig(slot=1, blueprint="conv_light")
    kept = make_env(3, 8, slots=EveryBlockConfig(auto_advance=[*BY_ITSELF, "fossilized"]))
    kept.reset(seed=0)
    episode = play(kept, schedule.build(kept.layout, seed=0))
    assert (episode.fossilized, episode.tally["pruned"], episode.ops[Op.FOSSILIZE], episode.ops[Op.GERMINATE]) == (3, 0, 0, 3)
    removed = make_env(3, 5, slots=EveryBlockConfig(auto_advance=BY_ITSELF, min_prune_age=0, prune_after=2))
    removed.reset(seed=0)
    episode = play(removed, schedule.build(removed.layout, seed=0))
    assert (episode.fossilized, episode.tally["pruned"], episode.ops[Op.PRUNE]) == (0, 3, 0)
