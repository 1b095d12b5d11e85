"""PPO of stable-baselines3 grows 32 hosts at once: python examples/sb3_ppo.py [UPDATES] [OVERRIDES ...]"""

import sys

import numpy as np
from stable_baselines3 import PPO

import esper
from esper.wrappers.sb3 import SB3VecEnv

HOSTS = 32

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
hosts = esper.make_vec_env(overrides, num_envs=HOSTS)
envs = SB3VecEnv(hosts)
agent = PPO(
    "MultiInputPolicy", envs, n_steps=hosts.num_steps, batch_size=HOSTS * hosts.num_steps // 4, gamma=1.0, verbose=1, seed=0
)
agent.learn(updates * HOSTS * hosts.num_steps)

held_out = esper.make_vec_env(overrides, num_envs=HOSTS, split="held_out")


def mean_return(act):
    """Return the mean return of hosts that no agent trains on."""
    seen, _ = held_out.reset(seed=0)
    total = 0.0
    for _ in range(held_out.num_steps):
        seen, reward, *_ = held_out.step(act(seen))
        total += reward.mean()
    return total


never = np.zeros(held_out.action_space.shape, dtype=np.int64)
print(f"never growing: {mean_return(lambda seen: never):.2f} on {HOSTS} held-out hosts")
print(f"PPO: {mean_return(lambda seen: agent.predict(seen)[0]):.2f}")
