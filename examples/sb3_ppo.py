"""PPO of stable-baselines3 grows 32 hosts at once: python examples/sb3_ppo.py [UPDATES] [OVERRIDES ...]"""

import sys

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

import esper
from esper.wrappers.sb3 import SB3VecEnv

HOSTS = 32

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
hosts = esper.make_vec_env(overrides, num_envs=HOSTS)
envs = VecMonitor(SB3VecEnv(hosts))
root = hosts.population.root  # the agent passes its seed on to the hosts
agent = PPO(
    "MultiInputPolicy", envs, n_steps=hosts.num_steps, batch_size=HOSTS * hosts.num_steps // 4, gamma=1.0, verbose=1, seed=root
)
agent.learn(updates * HOSTS * hosts.num_steps)

held_out = esper.make_vec_env(overrides, num_envs=HOSTS, split="held_out")


def mean_return(act):
    """Return the mean return on held-out hosts."""
    seen, _ = held_out.reset(seed=root)
    total = 0.0
    for _ in range(held_out.num_steps):
        seen, reward, *_, info = held_out.step(act(seen))
        total += (reward + info.get("restored_potential", 0.0)).mean()  # shaping deducts this twice after a rollback
    return total


never = np.zeros(held_out.action_space.shape, dtype=np.int64)
print(f"never growing: {mean_return(lambda seen: never):.2f} on {HOSTS} held-out hosts")
print(f"PPO: {mean_return(lambda seen: agent.predict(seen)[0]):.2f}")
