"""DQN of stable-baselines3, with every action as one number: python examples/sb3_dqn.py [UPDATES] [OVERRIDES ...]"""

import sys

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
    learning_starts=HOSTS * hosts.num_steps,
    gradient_steps=8,
    train_freq=1,
    target_update_interval=1000,
    gamma=1.0,
    verbose=1,
    seed=root,
)
agent.learn(updates * HOSTS * hosts.num_steps, log_interval=HOSTS)
