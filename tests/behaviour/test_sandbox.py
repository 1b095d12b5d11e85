"""The sandbox: its optimum against brute force, its observations, and PPO close to the optimum."""

# N hosts, S slots, Q kinds, H heads

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPOConfig
from esper.agent.scripted.base import RandomConfig, WaitConfig
from esper.env.actions import Head, Op, parameters_legal, segments
from esper.env.sandbox_optimum import every_action
from esper.env.sandbox_rules import SLOT_FEATURES, SandboxRules
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import OneSeedConfig
from esper.lifecycle.stages import SlotState, empty
from tests.behaviour.learned_share import Judge, learn
from tests.behaviour.oracle import Oracle
from tests.behaviour.sandbox import Sandbox, play

RULES = SandboxRules()


def small_rules() -> SandboxRules:
    """Two slots, one blueprint, three kinds."""
    return SandboxRules(worth_QSK=np.array([[[1.0], [0.2]], [[0.0], [0.7]], [[0.0], [0.0]]]), rent_K=(0.1,))


def by_hand(rules: SandboxRules) -> float:
    """Return the optimal value by recursion over all actions and observations of one host."""
    actions, known = every_action(rules), dict[tuple[object, ...], float]()

    def best(state: SlotState, belief_Q: np.ndarray, time: int) -> float:
        key = (time, belief_Q.round(12).tobytes(), *(array.tobytes() for array in state.arrays().values()))
        if key not in known:  # many orders of actions lead to it
            known[key] = reached(state, belief_Q, time)
        return known[key]

    def reached(state: SlotState, belief_Q: np.ndarray, time: int) -> float:
        if time == rules.num_steps:
            return 0.0
        values = []
        for action in actions:
            if not rules.legal(state)[0, action[Head.OP], action[Head.SLOT]]:
                continue
            after = rules.grow(state, action[None])
            value = float(belief_Q @ rules.reward(after, last=time + 1 == rules.num_steps)[0])
            shown_SQ = np.where(after.measured[0, :, None], rules.worth_of(after)[0], 0.0)
            for shown_S in np.unique(shown_SQ[:, belief_Q > 0], axis=1).T:
                told_Q = belief_Q * (shown_SQ == shown_S[:, None]).all(axis=0)
                for light_Q in rules.light_QS.T:
                    chance = float((told_Q * light_Q).sum())
                    value += chance * best(after, told_Q * light_Q / max(chance, 1e-12), time + 1) if chance > 0 else 0.0
            values.append(value)
        return max(values)

    kinds, slots, _ = rules.worth_QSK.shape
    newborn, total = empty(1, slots), 0.0
    for light_Q in rules.light_QS.T:
        chance = float(light_Q.mean())
        total += chance * best(newborn, light_Q / kinds / chance, 0)
    return total


# ---- the optimum


@cache
def optimal(light_accuracy: float) -> Oracle:
    """Return the optimal controller, which takes half a second to compute and keeps no state."""
    return Oracle(replace(RULES, light_accuracy=light_accuracy))


AT_ONCE = OneSeedConfig(min_prune_age=1, embargo=0, incubation=Incubation.none)
"""Seeds are active at once, so that a short episode has time to try one, remove it, and keep another."""


@pytest.mark.parametrize(
    ("steps", "light_accuracy", "slots"),
    [(4, 0.8, AT_ONCE), (5, 0.8, OneSeedConfig(min_prune_age=1, embargo=1))],
)
def test_the_optimum_matches_brute_force(steps: int, light_accuracy: float, slots: OneSeedConfig) -> None:
    rules = replace(small_rules(), num_steps=steps, light_accuracy=light_accuracy, slots=slots)
    value = by_hand(rules)
    assert value > 0.05, "the optimum is well above 0"
    assert Oracle(rules).value == pytest.approx(value, abs=1e-9)


def test_the_informed_value_matches_hand_calculation() -> None:
    """Planted in step 1, alpha 1/3, 2/3 and 1 in steps 2 to 4, then kept with a bonus of 4; rent from step 1."""
    light, heavy = ((1 / 3 + 2 / 3 + 8 - 1) + 4 - 10 * rent for rent in RULES.rent_K)
    value = (light + heavy + light + 0) / 4
    assert optimal(RULES.light_accuracy).informed_value == pytest.approx(value, abs=1e-5)  # alpha is in float32


def test_the_optimal_controller_earns_the_optimum() -> None:
    oracle = optimal(RULES.light_accuracy)
    return_N = play(Sandbox(RULES, num_hosts=5000, seed=1), oracle).reward_TN.sum(dim=0)
    error = float(return_N.std()) / len(return_N) ** 0.5
    assert abs(float(return_N.mean()) - oracle.value) < 4 * error
    assert error < 0.02 * oracle.value


def test_the_optimum_rises_with_light_accuracy() -> None:
    values = [optimal(light_accuracy).value for light_accuracy in (1 / 3, 0.5, RULES.light_accuracy, 0.9)]
    assert values == sorted(values)
    assert values[0] < 0.75 * values[2], "without the lights the optimum is far lower"
    assert values[-1] < optimal(RULES.light_accuracy).informed_value


def test_waiting_earns_zero_and_random_actions_less() -> None:
    env = Sandbox(RULES, num_hosts=2000)
    assert not play(env, WaitConfig().build(env.spec, seed=0)).reward_TN.any()
    assert play(env, RandomConfig().build(env.spec, seed=0)).reward_TN.sum(dim=0).mean() < 0


# ---- the environment


def test_observations_match_the_spec() -> None:
    env = Sandbox(RULES, num_hosts=5)
    spec, seen = env.spec, env.reset()
    assert seen.features.shape == (5, len(spec.feature_names))
    assert seen.slots.shape == (5, spec.num_slots, len(spec.slot_feature_names))
    assert seen.legal_slots.shape == (5, len(Op), spec.num_slots)
    assert seen.legal_values.shape == (5, sum(spec.head_sizes[Head.BLUEPRINT :]))
    assert {seen.features.dtype, seen.slots.dtype} == {np.dtype(np.float32)}
    for _ in range(2 * RULES.num_steps):
        seen, _, ended = env.step(np.zeros((5, len(Head)), np.int64))
        assert np.abs(seen.slots).max() <= 1.0
        assert ended.all() == (seen.features[0, 0] == 1.0), "the last step shows the first of the next episode"


def test_the_kind_is_hidden_until_a_seed_is_active() -> None:
    env = Sandbox(RULES, num_hosts=400)
    seen = env.reset()
    plant, advance = np.zeros((2, len(Head)), np.int64)
    plant[Head.OP], advance[Head.OP] = Op.GERMINATE, Op.ADVANCE
    for head, place in segments(env.spec.head_sizes).items():
        plant[head] = seen.legal_values[0, place].argmax()
    dark = [name for name in range(len(SLOT_FEATURES)) if SLOT_FEATURES[name] != "light"]
    for action, shows in ((plant, False), (advance, True)):
        seen, _, _ = env.step(np.tile(action, (400, 1)))
        first = [seen.slots[env.kind_N == kind][:, :, dark] for kind in range(4)]
        assert (first[0] == first[0][:1]).all()
        assert (first[0][0] != first[1][0]).any() == shows
    likely = [np.bincount(env.light_NT[env.kind_N == kind].ravel(), minlength=3) for kind in range(4)]
    assert [counts.argmax() for counts in likely[:3]] == [0, 1, 2]
    assert max(likely[3]) < 0.4 * sum(likely[3]), "lights of a barren host are uniform"


def test_illegal_actions_become_wait() -> None:
    env, rng = Sandbox(RULES, num_hosts=300), np.random.default_rng(0)
    seen = env.reset()
    refused = 0
    for _ in range(RULES.num_steps - 1):
        action = np.stack([rng.integers(0, size, 300) for size in env.spec.head_sizes], axis=1)
        for head, place in segments(env.spec.head_sizes).items():
            held = seen.legal_values[:, place].argmax(axis=1)
            action[:, head] = np.where(rng.random(300) < 0.9, held, action[:, head])
        legal = seen.legal_slots[np.arange(300), action[:, Head.OP], action[:, Head.SLOT]]
        legal &= parameters_legal(action, seen.legal_values, env.spec.head_sizes)
        seen, _, _ = env.step(action)
        assert np.array_equal(env.op_N, np.where(legal, action[:, Head.OP], Op.WAIT))
        refused += int((~legal).sum())
    assert refused > 300


def test_hosts_are_independent_of_each_other() -> None:
    few, many = (Sandbox(RULES, num_hosts=hosts, seed=3) for hosts in (3, 11))
    agent = PPOConfig(wait_bias=-1.0, twins=1, baseline=Baseline.critic).build(few.spec, seed=0)
    for episode in range(2):
        one, two = play(few, agent, episode=episode), play(many, agent, episode=episode)
        assert len(one.action_TNH.unique(dim=1)[0]) > 1
        assert torch.equal(one.action_TNH, two.action_TNH[:, :3])
        assert torch.equal(one.reward_TN, two.reward_TN[:, :3])


def test_twins_have_the_same_kind_and_lights() -> None:
    env = Sandbox(RULES, num_hosts=40, twins=4)
    env.reset()
    rows = np.concatenate([env.kind_N[:, None], env.light_NT], axis=1).reshape(10, 4, -1)
    assert (rows == rows[:, :1]).all()
    assert len(np.unique(rows[:, 0], axis=0)) == 10
    alone = Sandbox(RULES, num_hosts=10)
    alone.reset()
    assert np.array_equal(alone.kind_N, env.kind_N[::4])


# ---- learning


SHORT = SandboxRules(num_steps=5, worth_QSK=RULES.worth_QSK[:3], light_accuracy=0.8, slots=AT_ONCE)
"""A shorter problem without barren hosts, to learn in seconds; learned_share.py runs the full one."""


@pytest.fixture(scope="module")
def judges() -> list[Judge]:
    """Judges by the optimum, and by the optimum of a controller that does not see the lights."""
    return [Judge(Oracle(rules), hosts=4000) for rules in (SHORT, replace(SHORT, light_accuracy=1 / 3))]


@pytest.mark.slow
@pytest.mark.parametrize("twins", [1, 2], ids=["critic", "default"])
def test_ppo_comes_close_to_the_optimum_by_reading_the_lights(judges: list[Judge], twins: int) -> None:
    seeing, blind = judges
    assert blind.value < 0.7 * seeing.value
    agent = learn(SHORT, seed=0, hosts=64, updates=40, twins=twins)
    share, error = seeing.share(agent)
    assert share > 0.95
    assert share < 1 + 4 * error, "no controller exceeds the optimum"
    in_the_dark, error = blind.share(agent)
    assert in_the_dark < 1 + 4 * error


def test_a_restored_learner_continues_bit_for_bit() -> None:
    def go_on(agent, episodes):
        env = Sandbox(RULES, num_hosts=8)
        for episode in episodes:
            generator = torch.Generator().manual_seed(episode)
            agent.update(play(env, agent, episode=episode), progress=episode / 4, generator=generator)
        return agent

    spec = RULES.layout(8)
    whole = go_on(PPOConfig(twins=1, baseline=Baseline.critic).build(spec, seed=0), range(4))
    first = go_on(PPOConfig(twins=1, baseline=Baseline.critic).build(spec, seed=0), range(2))
    second = PPOConfig(twins=1, baseline=Baseline.critic).build(spec, seed=99)
    second.load_state_dict(first.state_dict())
    again = go_on(second, range(2, 4)).state_dict()
    for part in ("network", "popart"):
        assert all(torch.equal(again[part][name], tensor) for name, tensor in whole.state_dict()[part].items())
