"""DQN of stable-baselines3, with every action as one number: python examples/sb3_dqn.py [UPDATES] [OVERRIDES ...]"""

import sys

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import VecMonitor

import esper
from esper.wrappers.sb3 import SB3VecEnv

HOSTS = 32

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
hosts = esper.make_vec_env(overrides, num_envs=HOSTS, flat=True, discrete=True)
envs = VecMonitor(SB3VecEnv(hosts))
root = hosts.population.root  # the agent passes its seed on to the hosts
agent = DQN(
    "MlpPolicy",
    envs,
    learning_rate=3e-4,
    learning_starts=HOSTS * hosts.num_steps,
    batch_size=256,
    gamma=1.0,
    train_freq=1,
    gradient_steps=32,
    target_update_interval=2000,
    exploration_fraction=0.4,
    policy_kwargs={"net_arch": [256, 256]},
    verbose=1,
    seed=root,
)
agent.learn(updates * HOSTS * hosts.num_steps, log_interval=HOSTS)

held_out = esper.make_vec_env(overrides, num_envs=HOSTS, split="held_out", flat=True, discrete=True)


def mean_return(act):
    """Return the mean return on held-out hosts."""
    seen, _ = held_out.reset(seed=root)
    total = 0.0
    for _ in range(held_out.num_steps):
        seen, reward, *_, info = held_out.step(act(seen))
        total += (reward + info.get("restored_potential", 0.0)).mean()  # shaping deducts this twice after a rollback
    return total


print(f"never growing: {mean_return(lambda seen: np.zeros(HOSTS, dtype=np.int64)):.2f} on {HOSTS} held-out hosts")
print(f"DQN: {mean_return(lambda seen: agent.predict(seen, deterministic=True)[0]):.2f}")
