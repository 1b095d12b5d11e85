"""The growth environment: Gymnasium's contract, independence of hosts, and bookkeeping."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.passive_env_checker import check_action_space, check_observation_space
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from esper.env.actions import PINNED, Head, Op
from esper.env.spec import as_observation
from esper.lifecycle.roles import Blend
from esper.lifecycle.slots import EveryBlockConfig, OneSeedConfig
from esper.lifecycle.stages import Stage
from esper.measure.costs import count_parameters
from esper.reward.modes import OnlineConfig, SparseConfig
from esper.seeds.gated import Gate
from esper.task.instances import Split


def batched(final_obs):
    """Stack one dict per host into arrays `[N, ...]`."""
    return {name: np.stack([one[name] for one in final_obs]) for name in final_obs[0]}


def play(env, actions_of, steps, *, reset=None, key=0):
    """Play an episode; return (observation, reward, signals) of each step, and the rows of all hosts at the end."""
    observation, _ = reset if reset is not None else env.reset()
    record = []
    for step in range(steps):
        observation, reward, _, _, info = env.step(actions_of(observation, step, key))
        record.append((observation, reward, info["signals"], env.pool.shards[0].network.host.flat.detach().clone()))
    return record


# ---- Gymnasium's contract


def test_spaces_pass_gymnasiums_checks(make_env):
    env = make_env(2, 2)
    check_action_space(env.single_action_space)
    check_observation_space(env.single_observation_space)
    assert env.single_action_space.nvec.tolist() == list(env.layout.head_sizes)
    assert env.action_space.shape == (2, len(Head))


def test_every_observation_is_in_the_space(make_env, random_actions):
    env = make_env(3, 4)
    observation, info = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert info == {}
    for step in range(9):  # two episodes
        observation, reward, terminated, truncated, info = env.step(random_actions(observation, step))
        assert env.observation_space.contains(observation)
        assert all(np.isfinite(observation[name]).all() for name in ("features", "slots"))
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
        assert not truncated.any()
        assert terminated.all() == (step % 4 == 3)
        if terminated.any():
            assert env.observation_space.contains(batched(info["final_obs"]))
            assert info["_final_obs"].all()


def test_autoreset_mode_suits_gymnasiums_statistics_wrapper(make_env, random_actions):
    env = make_env(2, 3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    wrapped = RecordEpisodeStatistics(env)
    observation, _ = wrapped.reset(seed=0)
    paid = np.zeros(2)
    for step in range(6):
        observation, reward, terminated, _, info = wrapped.step(random_actions(observation, step))
        paid += reward
        if terminated.any():
            assert info["episode"]["l"].tolist() == [3, 3]
            assert info["episode"]["r"] == pytest.approx(paid, rel=1e-5)
            paid[:] = 0


def test_a_step_before_the_first_reset_is_refused(make_env):
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        make_env(1, 1).step(np.zeros((1, len(Head)), dtype=np.int64))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({(1, Head.BLUEPRINT): -4}, "the action of host 1 has blueprint=-4: it must be from 0 to"),
        ({(0, Head.SLOT): -3}, "the action of host 0 has slot=-3: it must be from 0 to 2"),
        ({(1, Head.OP): len(Op)}, f"the action of host 1 has op={len(Op)}: it must be from 0 to {len(Op) - 1}"),
    ],
)
def test_actions_outside_the_space_are_refused(make_env, plan_actions, change, sentence):
    env = make_env(2, 2)
    env.reset()
    action = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    with pytest.raises(ValueError, match="must be integers, got float64"):
        env.step(action.astype(float))
    with pytest.raises(ValueError, match=r"must have the shape \(2, 8\), one row per host and one number per head, got \(1, 8\)"):
        env.step(action[:1])
    for place, value in change.items():
        action[place] = value
    with pytest.raises(ValueError, match=sentence):
        env.step(action)


def test_final_obs_is_the_last_of_the_episode(make_env, plan_actions):
    env = make_env(2, 2)
    first, _ = env.reset(seed=4)
    env.step(plan_actions((Op.GERMINATE, 0, 0), (Op.WAIT, 0, 0)))
    names = env.sampler.instances()
    observation, _, terminated, _, info = env.step(plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0)))
    assert terminated.all()
    time_left = env.layout.feature_names.index("time_left")
    final = batched(info["final_obs"])
    assert final["features"][:, time_left].tolist() == [0.0, 0.0]
    assert final["blueprints"][0].tolist() == [0, 2, 2]
    assert observation["features"][:, time_left].tolist() == [1.0, 1.0]
    assert (observation["blueprints"] == 2).all()
    assert info["final_info"]["instance"] == names
    assert (env.episode, env.time) == (1, 0)
    assert not np.array_equal(observation["features"], first["features"])


def test_test_accuracy_is_that_of_the_committed_network(make_env, plan_actions):
    slots = EveryBlockConfig(auto_advance=["training", "blending", "holding"])
    env = make_env(2, 6, slots=slots, test_at_end=True)
    env.reset(seed=0)
    germinate = plan_actions((Op.GERMINATE, 1, 1), (Op.GERMINATE, 1, 1))
    wait = plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    env.step(germinate)
    for _ in range(3):
        env.step(wait)
    assert (env.state.stage[:, 1] == Stage.HOLDING).all()
    env.step(plan_actions((Op.FOSSILIZE, 1, 0), (Op.WAIT, 0, 0)))
    # measured before the hosts are dropped: the test part with the fossil (host 0) and without any seed (host 1)
    seen = {}
    forgetful_reset = env.reset

    def peek(**kwargs):
        alpha = np.zeros((1, 2, 3), dtype=np.float32)
        alpha[0, 0, 1] = 1.0
        seen["test"] = env.pool.validate(alpha, test=True).accuracy_VM[0]
        seen["all in"] = env.pool.validate(np.ones((1, 2, 3), dtype=np.float32)).accuracy_VM[0]
        seen["committed"] = env.pool.validate(alpha).accuracy_VM[0]
        return forgetful_reset(**kwargs)

    env.reset = peek
    _, _, _, _, info = env.step(wait)
    assert info["final_info"]["test_accuracy"].tolist() == seen["test"].tolist()
    assert info["signals"].accuracy_N.tolist() == seen["all in"].tolist()
    assert info["signals"].effects.committed_accuracy_N.tolist() == seen["committed"].tolist()
    plain = make_env(1, 1)
    plain.reset()
    assert "test_accuracy" not in plain.step(plan_actions((Op.WAIT, 0, 0)))[4]["final_info"]


def test_online_accuracy_is_the_mean_over_the_epochs_with_all_seeds_as_they_are(make_env, plan_actions):
    slots = EveryBlockConfig(auto_advance=["training", "blending", "holding"])
    env = make_env(2, 6, slots=slots, test_online=True, reward=OnlineConfig(rent=0.0))
    env.reset(seed=0)
    germinate, wait = plan_actions((Op.GERMINATE, 1, 1), (Op.WAIT, 0, 0)), plan_actions((Op.WAIT, 0, 0), (Op.WAIT, 0, 0))
    served, paid, flops = [], [], []
    settle = env.guard.settle

    def peek(*args):
        settle(*args)
        served.append(env.pool.validate(env.state.alpha[None], test=True).accuracy_VM[0])
        flops.append(env.meter.measuring_N.copy())

    env.guard.settle = peek
    for step in range(6):
        *_, info = env.step(wait if step else germinate)
        paid.append(info["components"]["online"])
        assert info["components"]["online"] == pytest.approx(info["signals"].accuracy_N / 6)
    assert info["final_info"]["online_accuracy"] == pytest.approx(np.mean(served, axis=0))
    assert np.array_equal(info["measuring_flops"], flops[-1]), "scoring is no part of growing a host"
    assert "test_accuracy" not in info["final_info"]
    assert not np.allclose(served[0], served[-1])


# ---- named randomness


def test_equal_seeds_give_equal_bits(make_env, random_actions):
    one, two = (play(make_env(3, 5), random_actions, 5) for _ in range(2))
    for (seen, paid, signals, rows), (seen2, paid2, signals2, rows2) in zip(one, two, strict=True):
        assert all(np.array_equal(seen[name], seen2[name]) for name in seen)
        assert np.array_equal(paid, paid2)
        assert np.array_equal(signals.train_loss_N, signals2.train_loss_N)
        assert rows.equal(rows2)


def test_reset_with_the_same_seed_repeats_the_episode(make_env, random_actions):
    env = make_env(2, 4)
    one = play(env, random_actions, 3, reset=env.reset(seed=7))
    two = play(env, random_actions, 3, reset=env.reset(seed=7))
    assert all(np.array_equal(a[0]["features"], b[0]["features"]) and a[3].equal(b[3]) for a, b in zip(one, two, strict=True))
    other = play(env, random_actions, 1, reset=env.reset(seed=8))
    assert not other[0][3].equal(one[0][3])


def test_reset_selects_an_episode_by_number(make_env):
    env = make_env(2, 3)
    env.reset(seed=7)
    second, _ = env.reset()
    again, _ = make_env(2, 3, seed=7).reset(options={"episode": 1})
    assert np.array_equal(second["features"], again["features"])


def test_held_out_hosts_differ_from_training_hosts(make_env):
    env, other = make_env(2, 1), make_env(2, 1, split=Split.HELD_OUT)
    env.reset()
    other.reset()
    assert not env.pool.shards[0].network.host.flat.equal(other.pool.shards[0].network.host.flat)


def assert_same_hosts(few, many, hosts):
    """Assert equality up to float32 rounding of 5 epochs: relative losses and weights to 1e-4, accuracies to one image of 50."""
    for (_, paid, one, rows), (_, paid2, two, rows2) in zip(few, many, strict=True):
        assert np.array_equal(one.op_N, two.op_N[:hosts])
        assert np.array_equal(one.after.stage, two.after.stage[:hosts])
        np.testing.assert_allclose(one.train_loss_N, two.train_loss_N[:hosts], rtol=1e-4)
        np.testing.assert_allclose(one.loss_N, two.loss_N[:hosts], rtol=1e-4)
        np.testing.assert_allclose(one.accuracy_N, two.accuracy_N[:hosts], atol=2.01)
        np.testing.assert_allclose(paid, paid2[:hosts], atol=5.0)
        width = min(len(rows), len(rows2))
        np.testing.assert_allclose(rows[:width].numpy(), rows2[:width].numpy(), atol=1e-4)


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_host_is_independent_of_the_number_of_hosts(make_env, random_actions, hosts):
    many = play(make_env(6, 5), random_actions, 5)
    assert_same_hosts(play(make_env(hosts, 5), random_actions, 5), many, hosts)


@pytest.mark.parametrize("members", [1, 4])
def test_a_host_is_independent_of_the_shards(make_env, random_actions, members, monkeypatch):
    whole = play(make_env(6, 5), random_actions, 5)
    monkeypatch.setattr("esper.pool.local.os.cpu_count", lambda: 2)  # two shards at a time, side by side
    env = make_env(6, 5, members_per_shard=members)
    assert len(env.pool.places) == -(-6 // members)
    assert_same_hosts(play(env, random_actions, 5), whole, 6)


# ---- actions


@pytest.mark.parametrize(
    "slots",
    [
        EveryBlockConfig(),
        OneSeedConfig(),
        EveryBlockConfig(auto_advance=[], embargo=0, min_prune_age=0),
        EveryBlockConfig(auto_advance=["training", "blending", "holding"], where=["r0c2", "r0c0"]),
    ],
    ids=["every_block", "one_seed", "by_hand", "by_itself"],
)
def test_legal_actions_are_never_refused(make_env, random_actions, slots):
    env = make_env(4, 12, slots=slots)
    observation, _ = env.reset()
    refused = env.layout.feature_names.index("last_refused")
    for step in range(12):
        actions = random_actions(observation, step)
        observation, _, _, _, info = env.step(actions)
        last = batched(info["final_obs"]) if "final_obs" in info else observation
        assert (last["features"][:, refused] == 0).all()
        assert np.array_equal(info["signals"].op_N, actions[:, Head.OP])


def test_illegal_actions_are_refused_without_effect(make_env, plan_actions):
    env, calm = make_env(6, 4), make_env(6, 4)
    env.reset()
    calm.reset()
    wrong = plan_actions(
        (Op.PRUNE, 0, 0), (Op.FOSSILIZE, 1, 0), (Op.ADVANCE, 2, 0), (Op.SET_ALPHA_TARGET, 0, 0), *[(1, 0, 0)] * 2
    )
    wrong[4, Head.ALPHA_TARGET] = (PINNED[Head.ALPHA_TARGET] + 1) % 3
    wrong[5, Head.STYLE] = 1
    observation, reward, _, _, info = env.step(wrong)
    assert observation["features"][:, env.layout.feature_names.index("last_refused")].tolist() == [1.0] * 6
    assert (info["signals"].op_N == Op.WAIT).all()
    waited, reward_of_waiting, *_ = calm.step(plan_actions(*[(Op.WAIT, 0, 0)] * 6))
    assert np.array_equal(reward, reward_of_waiting)
    assert env.pool.shards[0].network.host.flat.equal(calm.pool.shards[0].network.host.flat)
    assert np.array_equal(observation["slots"], waited["slots"])


def test_irrelevant_heads_have_no_effect(make_env, plan_actions):
    env, other = make_env(2, 2), make_env(2, 2)
    env.reset()
    other.reset()
    actions = plan_actions((Op.WAIT, 0, 0), (Op.GERMINATE, 1, 1))
    strange = actions.copy()
    strange[0, 1:] = [2, 1, 3, 2, 0, 3, 4]
    strange[1, [Head.ALPHA_SPEED, Head.ALPHA_CURVE]] = [3, 4]
    one, two = env.step(actions), other.step(strange)
    assert np.array_equal(one[0]["features"], two[0]["features"])
    assert np.array_equal(one[0]["slots"], two[0]["slots"])
    assert np.array_equal(one[1], two[1])


def test_unused_slots_stay_closed_and_unknown_names_are_refused(make_env):
    env = make_env(1, 1, slots=EveryBlockConfig(where=["r0c1"]))
    observation, _ = env.reset()
    assert observation["legal_slots"][0, Op.GERMINATE].tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match=r"slots\.where=r9c9 .* r0c0, r0c1, r0c2"):
        make_env(1, 1, slots=EveryBlockConfig(where=["r9c9"]))


# ---- rewards and observations


@pytest.mark.parametrize("reward", [None, SparseConfig()], ids=["shaped", "sparse"])
def test_reward_terms_sum_to_the_reward(make_env, random_actions, reward):
    env = make_env(4, 5, reward=reward)
    observation, _ = env.reset()
    for step in range(5):
        observation, paid, _, _, info = env.step(random_actions(observation, step))
        total = np.sum(list(info["components"].values()), axis=0)
        np.testing.assert_allclose(paid, total, atol=1e-4)


def test_shaping_sums_to_minus_the_initial_potential(make_env, random_actions, gamma):
    env = make_env(4, 6)
    observation, _ = env.reset(seed=2)
    first = env.accuracy_NH[:, 0].copy()  # an empty host has no stage potential
    total = np.zeros(4)
    for step in range(6):
        observation, _, _, _, info = env.step(random_actions(observation, step))
        total += gamma**step * info["components"]["shaping"]
    np.testing.assert_allclose(total, -first, atol=1e-3)


def test_signals_hold_the_measurements_of_the_step(make_env, plan_actions):
    env = make_env(1, 8, slots=OneSeedConfig(auto_advance=["training", "blending", "holding"]))
    env.reset(seed=1)
    before = env.accuracy_NH[0, 0]
    wait = plan_actions((Op.WAIT, 0, 0))
    signals = env.step(plan_actions((Op.GERMINATE, 1, 1)))[4]["signals"]
    assert signals.accuracy_before_N[0] == before
    assert signals.params_before_NS.sum() == 0
    assert signals.params_NS[0].tolist() == [0, env.costs.params.seed_KS[1, 1], 0]
    assert not signals.after.measured.any()
    assert np.isnan(signals.effects.committed_accuracy_N).all()
    signals = env.step(wait)[4]["signals"]
    assert signals.after.measured[0].tolist() == [False, True, False]
    off = env.pool.validate(np.zeros((1, 1, 3), dtype=np.float32)).accuracy_VM[0, 0]
    assert signals.after.contribution[0, 1] == pytest.approx(signals.accuracy_N[0] - off, abs=1e-4)
    assert signals.host_params == sum(p.numel() for p in env.task.host(1, Split.TRAINING, 0, 0).parameters())


def test_gate_parameters_count_as_parameters_of_the_seed(make_env, plan_actions):
    env = make_env(1, 4)
    env.reset()
    env.step(plan_actions((Op.GERMINATE, 1, 1)))
    bare = env.costs.params.of(env.state)
    env.state.blend[0, 1] = Blend.GATE
    channels = env.task.host(0, env.split, 0, 0).slots[1].channels
    assert (env.costs.params.of(env.state) - bare).tolist() == [[0, count_parameters(Gate(channels)), 0]]
    assert bare[0, 1] > 0


def test_the_observation_matches_the_state(make_env, plan_actions):
    env = make_env(2, 4)
    env.reset(seed=1)
    arrays, *_ = env.step(plan_actions((Op.GERMINATE, 2, 1), (Op.WAIT, 0, 0)))
    seen = as_observation(arrays)
    host, slot = env.layout.feature_names.index, env.layout.slot_feature_names.index
    assert seen.features[:, host("time_left")].tolist() == [0.75, 0.75]
    assert seen.features[:, host("accuracy")] == pytest.approx(env.accuracy_NH[:, 0] / 100)
    assert seen.features[:, host("accuracy_1_ago_known")].tolist() == [1, 1]
    assert seen.features[:, host("accuracy_2_ago_known")].tolist() == [0, 0]
    assert seen.features[:, host("last_op_germinate")].tolist() == [1, 0]
    assert seen.features[:, host("seeds_left")] == pytest.approx([2 / 3, 1])
    assert seen.slots[0, :, slot("stage_training")].tolist() == [0, 0, 1]
    assert seen.slots[0, 2, slot("params")] == pytest.approx(env.costs.params.seed_KS[1, 2] / env.host_params)
    assert seen.slots[..., slot("potential_measured")].all()
    assert seen.slots[..., slot("potential_relative")].sum(axis=1) == pytest.approx([0, 0], abs=1e-4)
    assert seen.blueprints.tolist() == [[2, 2, 1], [2, 2, 2]]
    assert seen.legal_ops[:, Op.WAIT].all()
    assert np.array_equal(seen.legal_slots, arrays["legal_slots"] == 1)


def test_features_are_of_order_one(make_env, random_actions):
    env = make_env(4, 8)
    observation, _ = env.reset()
    for step in range(7):
        observation, *_ = env.step(random_actions(observation, step))
        assert np.abs(observation["features"]).max() <= 5.0
        assert np.abs(observation["slots"]).max() <= 10.0
