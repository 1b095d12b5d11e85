"""PPO of stable-baselines3 in DACBench: python examples/dacbench_ppo.py [UPDATES] [OVERRIDES ...]

DACBench has many dependencies, so install it in a separate virtual environment: pip install -e . dacbench stable-baselines3
"""

import sys

import numpy as np
from dacbench.agents import StaticAgent
from dacbench.wrappers import PerformanceTrackingWrapper
from stable_baselines3 import PPO

from esper.wrappers.dac import GrowthBenchmark

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
TEST = 16

benchmark = GrowthBenchmark(overrides=overrides)
benchmark.register_wrapper(PerformanceTrackingWrapper)
env = benchmark.get_environment()
model = PPO("MlpPolicy", env, n_steps=320, batch_size=80, n_epochs=4, gamma=1.0, seed=0, device="cpu", verbose=1)
model.learn(updates * model.n_steps)


def returns(act):
    """Return the mean return on the first instances of the test set."""
    found = []
    for instance in range(TEST):
        seen, _ = env.reset(options={"instance_id": instance})
        rewards, over = [], False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(act(seen))
            rewards.append(reward)
            over = terminated or truncated
        found.append(sum(rewards))
    return np.mean(found)


env.unwrapped.use_test_set()
waiting = StaticAgent(env, np.zeros_like(env.action_space.sample()))
print(f"never growing: {returns(lambda seen: waiting.act(seen, 0)):.2f} on {TEST} test instances")
print(f"PPO: {returns(lambda seen: model.predict(seen)[0]):.2f}")
