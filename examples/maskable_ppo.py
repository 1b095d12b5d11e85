"""MaskablePPO of sb3-contrib chooses legal actions only: python examples/maskable_ppo.py [UPDATES] [OVERRIDES ...]"""

import sys

from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecMonitor

import esper
from esper.wrappers.sb3 import SB3VecEnv

HOSTS = 32

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
hosts = esper.make_vec_env(overrides, num_envs=HOSTS, flat=True, discrete=True)
envs = VecMonitor(SB3VecEnv(hosts))
root = hosts.population.root  # the agent passes its seed on to the hosts
agent = MaskablePPO(
    "MlpPolicy", envs, n_steps=hosts.num_steps, batch_size=HOSTS * hosts.num_steps // 4, gamma=1.0, verbose=1, seed=root
)
agent.learn(updates * HOSTS * hosts.num_steps)
