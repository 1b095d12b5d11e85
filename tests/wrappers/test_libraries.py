"""Fused hosts as environments of stable-baselines3 and TorchRL: the numbers are those of the vector environment."""

import numpy as np
import pytest

from esper.config import ConfigError
from esper.env.actions import Head, Op
from esper.wrappers.hosts import make_env, make_vec_env

SANDBOX = ["env=sandbox", "steps=5"]
HOSTS = 3
ACTIONS = np.array([[Op.GERMINATE, 1, 0, 0, 0, 2, 0, 0]] + [[Op.WAIT] + [0] * (len(Head) - 1)] * (HOSTS - 1))


def test_sb3_sees_what_the_vector_environment_shows() -> None:
    sb3 = pytest.importorskip("esper.wrappers.sb3", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    plain, wrapped = make_vec_env(SANDBOX, num_envs=HOSTS), sb3.SB3VecEnv(make_vec_env(SANDBOX, num_envs=HOSTS))
    wrapped.seed(7)
    wanted, seen = plain.reset(seed=7)[0], wrapped.reset()
    for step in range(5):
        assert all(np.array_equal(seen[name], wanted[name]) for name in wanted)
        masks = wrapped.env_method("action_masks", indices=[0, 2])
        assert np.array_equal(masks, plain.action_masks()[[0, 2]])
        wanted, reward_N, _, _, info = plain.step(ACTIONS)
        seen, paid_N, ended_N, infos = wrapped.step(ACTIONS)
        assert np.array_equal(paid_N, reward_N)
        assert ended_N.all() == ended_N.any() == (step == 4)
    assert all(np.array_equal(infos[1]["terminal_observation"][name], info["final_obs"][1][name]) for name in wanted)
    assert [one["op"] for one in infos] == info["op"].tolist()
    assert wrapped.reset_infos == [{"root": 7, "host_episode": 0}] * HOSTS
    assert wrapped.metadata["render_fps"] == plain.metadata["render_fps"]
    assert wrapped.get_attr("num_steps") == [5] * HOSTS
    assert wrapped.has_attr("action_masks")
    next_episode = wrapped.reset()
    wrapped.seed(7)
    assert not np.array_equal(next_episode["slots"], wrapped.reset()["slots"]), "a seed starts from the first episode again"
    wrapped.set_options({"episode": 2})
    assert np.array_equal(next_episode["slots"], wrapped.reset()["slots"])
    wrapped.reset()
    assert wrapped.envs.population.episode == 3, "options hold for one reset"
    wrapped.set_options([{"episode": host} for host in range(HOSTS)])
    with pytest.raises(ConfigError, match="different options"):
        wrapped.reset()


def test_torchrl_sees_what_the_vector_environment_shows() -> None:
    torchrl = pytest.importorskip("esper.wrappers.torchrl", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    import torch
    from torchrl.envs.utils import check_env_specs

    plain = make_vec_env(SANDBOX, num_envs=HOSTS, flat=True)
    wrapped = torchrl.TorchRLEnv(make_vec_env(SANDBOX, num_envs=HOSTS, flat=True))
    wrapped.set_seed(7)
    check_env_specs(wrapped)
    wrapped.set_seed(7)
    wanted, _ = plain.reset(seed=7)
    row = wrapped.reset()
    for step in range(12):
        assert np.array_equal(row["observation"], wanted)
        assert np.array_equal(row["action_mask"], plain.action_masks())
        wanted, reward_N, ended_N, _, info = plain.step(ACTIONS)
        row["action"] = torch.from_numpy(ACTIONS)
        row, then = wrapped.step_and_maybe_reset(row)
        assert np.array_equal(row["next", "reward"][:, 0], reward_N)
        assert np.array_equal(row["next", "done"][:, 0], ended_N)
        last = np.stack(list(info["final_obs"])) if ended_N.all() else wanted
        assert np.array_equal(row["next", "observation"], last), step
        row = then
    before = wrapped.envs.population.episode
    wrapped.reset()
    assert wrapped.envs.population.episode == before + 1, "a reset in the middle starts new hosts"


def test_torchrl_resets_all_hosts_or_none_before_their_episodes_end() -> None:
    torchrl = pytest.importorskip("esper.wrappers.torchrl", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    import torch
    from torchrl.envs import StepCounter, TransformedEnv

    env = torchrl.TorchRLEnv(make_vec_env(SANDBOX, num_envs=HOSTS, flat=True))
    counted = TransformedEnv(env, StepCounter(max_steps=2))
    row = counted.reset()
    for _ in range(2):
        row["action"] = torch.from_numpy(ACTIONS)
        _, row = counted.step_and_maybe_reset(row)
    assert env.envs.population.episode == 1, "all were cut"
    row["action"] = torch.from_numpy(ACTIONS)
    row["step_count"][1] = 1  # as after a rollback of the others
    with pytest.raises(ConfigError, match="host 1 cannot be reset before its episode ends, since all hosts train in lockstep"):
        counted.step_and_maybe_reset(row)


def test_torchrl_takes_flat_observations_only() -> None:
    torchrl = pytest.importorskip("esper.wrappers.torchrl", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    with pytest.raises(ConfigError, match="takes flat observations"):
        torchrl.TorchRLEnv(make_vec_env(SANDBOX, num_envs=HOSTS))
    with pytest.raises(ConfigError, match="takes flat observations of several hosts"):
        torchrl.TorchRLEnv(make_env(SANDBOX))


def test_sb3_takes_several_hosts() -> None:
    sb3 = pytest.importorskip("esper.wrappers.sb3", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    with pytest.raises(ConfigError, match=r"takes esper.make_vec_env\(...\), got a HostEnv"):
        sb3.SB3VecEnv(make_env(SANDBOX))
