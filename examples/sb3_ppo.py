"""PPO of stable-baselines3 grows 32 hosts at once: python examples/sb3_ppo.py [UPDATES] [OVERRIDES ...]"""

import sys

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
