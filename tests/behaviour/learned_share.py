"""Share of the sandbox's optimum that PPO reaches with the default config, by seed.

    python tests/behaviour/learned_share.py --seeds 5

By default advantages are measured against twins; `--twins 1` takes as many different hosts, and the critic;
`--baseline blend` takes both. With `--twins 4`, 64 hosts are too few different ones for some seeds.

The share is 0 for waiting and 1 for the optimal controller; random actions are
below 0. Returns are measured on held-out hosts, as the optimum plus the mean difference to the
optimal controller on the same hosts, which cancels most of the variance.
"""

import argparse
import time

import numpy as np
import torch

from esper.agent.base import Controller
from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPO, PPOConfig
from esper.agent.scripted.base import RandomConfig
from esper.env.sandbox_rules import SandboxRules
from tests.behaviour.oracle import Oracle
from tests.behaviour.sandbox import Sandbox, play

JUDGED, JUDGING_SEED = 20_000, 9_999


class Judge:
    """Measures controllers on the same hosts."""

    def __init__(self, oracle: Oracle, hosts: int = JUDGED) -> None:
        self.value = oracle.value
        self.env = Sandbox(oracle.rules, num_hosts=hosts, seed=JUDGING_SEED)
        self.best_N = self.returns(oracle)

    def returns(self, controller: Controller, *, greedy: bool = True) -> np.ndarray:
        return play(self.env, controller, episode=0, greedy=greedy).reward_TN.sum(dim=0).double().numpy()

    def share(self, controller: Controller, *, greedy: bool = True) -> tuple[float, float]:
        """Return the share of the optimum, and its standard error."""
        behind_N = (self.returns(controller, greedy=greedy) - self.best_N) / self.value
        return 1 + float(behind_N.mean()), float(behind_N.std() / len(behind_N) ** 0.5)


def learn(
    rules: SandboxRules, *, seed: int, hosts: int, updates: int, twins: int = 2, baseline: Baseline = Baseline.twins
) -> PPO:
    """Train PPO with the default config; without twins, against the critic."""
    env = Sandbox(rules, num_hosts=hosts, seed=seed, twins=twins)
    agent = PPOConfig(twins=twins, baseline=baseline if twins > 1 else Baseline.critic).build(env.spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for update in range(updates):
        agent.update(play(env, agent), progress=update / updates, generator=generator)
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--twins", type=int, default=2)
    parser.add_argument("--baseline", type=Baseline, choices=list(Baseline), default=Baseline.twins)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rules = SandboxRules()
    oracle = Oracle(rules)
    judge = Judge(oracle)
    blind = Oracle(SandboxRules(light_accuracy=1 / rules.worth_QSK.shape[1])).value
    chance, _ = judge.share(RandomConfig().build(judge.env.spec, seed=0), greedy=False)
    print(
        f"optimum {oracle.value:.3f} a host; without a look at the lights {blind / oracle.value:.3f} of it, chance {chance:.3f}"
    )
    print("| seed | greedy | standard error | drawn | seconds | seconds of one core |\n|---|---|---|---|---|---|")
    for seed in range(given.seeds):
        begun, busy = time.perf_counter(), time.process_time()
        agent = learn(rules, seed=seed, hosts=given.hosts, updates=given.updates, twins=given.twins, baseline=given.baseline)
        seconds, busy = time.perf_counter() - begun, time.process_time() - busy
        (greedy, error), (drawn, _) = judge.share(agent), judge.share(agent, greedy=False)
        print(f"| {seed} | {greedy:.3f} | {error:.3f} | {drawn:.3f} | {seconds:.0f} | {busy:.0f} |", flush=True)


if __name__ == "__main__":
    main()
