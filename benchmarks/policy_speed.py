"""Steps per second of recurrent PPO in the sandbox, updates included: Esper's, and that of sb3-contrib.

    python benchmarks/policy_speed.py
    python benchmarks/policy_speed.py --hosts-apart --rounds 15
    python benchmarks/policy_speed.py --only ours

Both play the same hosts for the same number of steps, with an LSTM of 64 units and about as many weights in all, and take as
many gradient steps on minibatches of the same size. sb3-contrib has no recurrent policy with action masks: it sees the same
features as one vector, samples all eight heads each time (MultiDiscrete), and illegal actions wait; Esper's policy pays for the
masks. With `--hosts-apart` sb3 gets one Gymnasium environment per host, the usual way; without, the sandbox steps all hosts at
once for both, and the ratio is that of the learners. Timings exclude start-up and one update of warm-up. Needs the `oracles`
extra; without it, only Esper's policy is timed. Results: benchmarks/README.md.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from paired_timing import in_turn, print_comparison

sys.path.insert(0, str(Path(__file__).parents[1]))

from esper.agent.ppo.advantages import Baseline
from esper.agent.ppo.ppo import PPOConfig
from esper.env.sandbox_rules import SandboxRules
from tests.behaviour.sandbox import Sandbox, play

UPDATE = PPOConfig(target_kl=1e9, twins=1, baseline=Baseline.critic)
"""No update stops early."""


def make_ours(puzzle: SandboxRules, num_hosts: int) -> tuple[Callable[[int], None], int]:
    """Return a function that plays and learns for a number of updates, and the number of weights."""
    env = Sandbox(puzzle, num_hosts=num_hosts)
    agent = UPDATE.build(env.spec, seed=0)
    generator = torch.Generator().manual_seed(0)

    def run(updates: int) -> None:
        for _ in range(updates):
            agent.update(play(env, agent), progress=0.0, generator=generator)

    return run, sum(parameter.numel() for parameter in agent.network.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("ours", "sb3"), help="run one policy alone")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="length of an episode")
    parser.add_argument("--updates", type=int, default=3, help="updates per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts-apart", action="store_true", help="give sb3 one environment per host")
    parser.add_argument("--quick", action="store_true", help="a few hosts, one update: checks the script, measures nothing")
    given = parser.parse_args()
    if given.quick:
        given.hosts, given.steps, given.updates, given.rounds = 8, 6, 1, 2
    torch.set_num_threads(1)
    names = [given.only] if given.only else ["ours", "sb3"]
    puzzle = SandboxRules(num_steps=given.steps)
    makers = {"ours": partial(make_ours, puzzle, given.hosts)}
    if "sb3" in names:
        if find_spec("sb3_contrib"):
            from sb3_policy import make_sb3

            makers["sb3"] = partial(make_sb3, puzzle, UPDATE, given.hosts, apart=given.hosts_apart)
        else:
            print("sb3-contrib is not installed, so there is no comparison with it: pip install -e '.[oracles]'")
            names.remove("sb3")
    if not names:
        sys.exit(1)
    runs: dict[str, Callable[[], None]] = {}
    for name in names:
        run, weights = makers[name]()
        run(1)  # warm-up
        runs[name] = partial(run, given.updates)
        print(f"{name}: {weights} weights")
    print(f"{given.hosts} hosts, {given.updates * given.hosts * given.steps} steps per round")
    print_comparison(in_turn(runs, given.rounds), baseline=names[0])


if __name__ == "__main__":
    main()
