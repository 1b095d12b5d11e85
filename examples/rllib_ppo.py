"""PPO of RLlib on single hosts: python examples/rllib_ppo.py [UPDATES] [OVERRIDES ...]

RLlib needs gymnasium 1.2, so install it in a separate virtual environment: pip install -e . 'ray[rllib]' gymnasium==1.2.2
"""

import sys

import gymnasium
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import esper

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]


def make(settings: dict[str, list[str]]) -> gymnasium.Env:
    return esper.make_env(settings["overrides"], flat=True)


register_env("esper", make)
ray.init(include_dashboard=False, log_to_driver=False)
root = esper.make_env(overrides).population.root  # RLlib passes its seed on to the hosts
config = PPOConfig().environment("esper", env_config={"overrides": overrides}).debugging(seed=root)
config.env_runners(num_env_runners=0)  # more of them train hosts in processes of their own
config.training(train_batch_size_per_learner=640, minibatch_size=160, num_epochs=4, gamma=1.0, lr=3e-4)
config.training(vf_clip_param=float("inf"))  # by default, no gradient where the value is off by more than 3 points
algorithm = config.build_algo()
for update in range(updates):
    found = algorithm.train()["env_runners"]
    print(f"update {update + 1}: return {found['episode_return_mean']:.2f}")
algorithm.stop()
ray.shutdown()
