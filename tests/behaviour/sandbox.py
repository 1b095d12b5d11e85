"""The sandbox with typed observations, and an episode of it as a rollout."""

# T steps, N hosts, H heads

import numpy as np

from esper.agent.base import Controller
from esper.buffer.rollout import Rollout
from esper.env.actions import Head
from esper.env.sandbox import SandboxEnv
from esper.env.sandbox_rules import SandboxRules
from esper.env.spec import Observation, as_observation
from esper.seeding import stream


class Sandbox:
    """A `SandboxEnv` whose `reset` and `step` return what a controller takes."""

    def __init__(self, rules: SandboxRules, *, num_hosts: int, seed: int = 0, twins: int = 1) -> None:
        self.env = SandboxEnv(rules, num_hosts=num_hosts, seed=seed, num_twins=twins)
        self.spec, self.root = self.env.layout, seed

    @property
    def episode(self) -> int:
        return self.env.episode

    @property
    def kind_N(self) -> np.ndarray:
        return self.env.kind_N

    @property
    def light_NT(self) -> np.ndarray:
        return self.env.light_NT

    @property
    def op_N(self) -> np.ndarray:
        return self.env.op_N

    def reset(self, episode: int | None = None) -> Observation:
        return as_observation(self.env.reset(options={} if episode is None else {"episode": episode})[0])

    def step(self, action_NH: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray]:
        arrays, reward_N, terminated_N, _, _ = self.env.step(action_NH)
        return as_observation(arrays), reward_N, terminated_N


def play(env: Sandbox, controller: Controller, *, episode: int | None = None, greedy: bool = False) -> Rollout:
    """Play an episode; each host has its own stream of action noise."""
    spec = env.spec
    observation = env.reset(episode)
    names = ((env.root, "action", env.episode, host) for host in range(spec.num_hosts))
    uniform_TNH = np.stack([stream(*name).random((spec.num_steps, len(Head))) for name in names], axis=1)
    rollout, state = Rollout(spec), controller.start(spec.num_hosts)
    is_init = np.ones(spec.num_hosts, dtype=np.bool_)
    for uniform_NH in uniform_TNH:
        decision = controller.act(observation, state, is_init=is_init, uniform=uniform_NH, greedy=greedy)
        following, reward, terminated = env.step(decision.action)
        rollout.add(observation, decision, reward=reward, terminated=terminated, is_init=is_init)
        observation, state, is_init = following, decision.state, terminated
    return rollout
