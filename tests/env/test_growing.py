"""Growth potential in the observation, informed seeds, and the controller that follows potential."""

# N hosts, S slots, K blueprints

import itertools

import numpy as np
import pytest
import torch

from esper.agent.scripted.greedy import GreedyPotentialConfig
from esper.env.actions import Op
from esper.env.observation import best_potential, exp_potential, log_potential
from esper.env.spec import as_observation
from esper.seeds.blueprints.base import Init
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.training.play import play


def column(env, name):
    return env.layout.slot_feature_names.index(name)


@pytest.mark.parametrize("steps", [0, 1])
def test_potential_is_observed_per_blueprint_from_the_start(make_env, plan_actions, steps):
    env = make_env(2, 4)
    after = as_observation(env.reset(seed=1)[0])
    names = [f"potential_of_{name}" for name in ("norm", "conv_light")]
    assert env.layout.slot_feature_names[-2:] == tuple(names)
    for _ in range(steps):
        after = as_observation(env.step(plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)))[0])
    assert env.potential_NSK.shape == (2, 3, 2)
    assert (env.potential_NSK > 0).all()
    assert after.slots[..., column(env, "potential_measured")].all()
    for kind, name in enumerate(names):
        seen = after.slots[..., column(env, name)]
        np.testing.assert_allclose(seen, log_potential(env.potential_NSK[..., kind]), rtol=1e-6)
        np.testing.assert_allclose(exp_potential(seen), env.potential_NSK[..., kind], rtol=1e-4)
    np.testing.assert_allclose(after.slots[..., column(env, "potential")], log_potential(env.potential_NSK.max(2)), rtol=1e-6)
    relative = np.log1p(1e8 * env.potential_NSK.max(2))
    relative -= relative.mean(1, keepdims=True)
    np.testing.assert_allclose(after.slots[..., column(env, "potential_relative")], relative, atol=1e-4)


def test_initial_potential_is_measured_on_each_hosts_first_batches(make_env):
    """Potential is independent of other hosts, and measuring it leaves the weights unchanged."""
    many, few = make_env(3, 4), make_env(1, 4)
    for env in (many, few):
        env.reset(seed=1)
    np.testing.assert_allclose(few.potential_NSK[0], many.potential_NSK[0], rtol=1e-3)
    assert not np.allclose(many.potential_NSK[0], many.potential_NSK[1], rtol=1e-2)
    born = few.task.host(1, few.split, 0, 0)
    assert few.pool.shards[0].network.rows()["host"][0].equal(torch.nn.utils.parameters_to_vector(born.parameters()))


def test_potential_is_measured_every_second_epoch(make_env, plan_actions):
    env = make_env(1, 6)
    env.reset(seed=1)
    seen = [env.potential_NSK]
    for _ in range(4):
        env.step(plan_actions((Op.WAIT, 0, 0)))
        seen.append(env.potential_NSK)
    assert [np.array_equal(a, b) for a, b in itertools.pairwise(seen)] == [False, True, False, True]


def test_unknown_potential_is_zero_and_huge_potential_saturates():
    potential = np.array([[[np.nan, 2.0], [np.nan, np.nan], [np.inf, 0.0]]], np.float32)
    assert best_potential(potential).tolist()[0][0] == 2.0
    assert np.isnan(best_potential(potential)[0, 1])
    assert log_potential(np.array([0.0, np.inf], np.float32)).tolist() == pytest.approx([0, np.log1p(1e14) / 10])


def seeds(env):
    """Return the parameters of the only seed of each host `[N, P]`."""
    pairs = [(shard, member) for shard in env.pool.shards for member in range(shard.members)]
    return np.stack([sum(row[member].numpy() for row in _rows(shard)) for shard, member in pairs])


def _rows(shard):
    return [row for name, row in shard.network.rows().items() if name.startswith("seed/")]


def informed_env(make_env, init, **others):
    return make_env(3, 6, blueprints={"norm": NormConfig(), "conv_light": ConvLightConfig(init=init)}, **others)


@pytest.mark.parametrize("after", [0, 2])
def test_an_informed_seed_differs_in_its_filters_only(make_env, plan_actions, after):
    born, hosts = {}, {}
    for init in Init:
        env = informed_env(make_env, init)
        env.reset(seed=1)
        for _ in range(after):
            env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 3))
        env.act(plan_actions(*[(Op.GERMINATE, 1, 1)] * 3))
        born[init] = seeds(env)
        rows = [item for shard in env.pool.shards for item in shard.network.rows().items()]
        hosts[init] = [row.clone() for name, row in rows if "seed" not in name]
        assert all(shard.network.host.flat.grad is None for shard in env.pool.shards)
    assert all(one.equal(other) for one, other in zip(*hosts.values(), strict=True))
    filters = 4 * 4 * 9  # slot 1 has 4 channels
    assert (born[Init.default] == born[Init.informed])[:, filters:].all()
    assert (born[Init.default] != born[Init.informed])[:, :filters].all()
    np.testing.assert_allclose(*[np.linalg.norm(rows[:, :filters], axis=1) for rows in born.values()], rtol=1e-5)


def test_an_informed_seed_depends_on_its_own_host_only(make_env, plan_actions):
    born = []
    for members in (1, 3):
        env = informed_env(make_env, Init.informed, members_per_shard=members)
        env.reset(seed=2)
        env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 3))
        env.act(plan_actions(*[(Op.GERMINATE, 0, 1)] * 3))
        born.append(seeds(env))
    np.testing.assert_allclose(born[0], born[1], rtol=1e-2, atol=1e-3)


def test_greedy_potential_plants_at_the_largest_potential(make_env):
    env = make_env(4, 14)
    env.reset(seed=3)
    controller = GreedyPotentialConfig(at=2, threshold=0.0, errors=0.0).build(env.layout, seed=0)
    steps = []

    def look(transition):
        op, slot, blueprint = transition.decision.action[:, :3].T
        for host in np.flatnonzero(op == Op.GERMINATE):
            seen = transition.observation.slots[host][:, -2:]
            legal = transition.observation.legal_slots[host, Op.GERMINATE]
            steps.append(seen[slot[host], blueprint[host]] == seen[legal].max())

    episode = play(env, controller, record=look)
    assert len(steps) >= 4
    assert all(steps[:4])
    assert episode.ops[Op.FOSSILIZE] + episode.ops[Op.PRUNE] > 0
