"""Runs one episode of all hosts under a controller, in training and in evaluation."""

# N hosts, T steps, H heads

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from torch import Tensor

from esper.agent.base import Controller
from esper.buffer.transition import Decision, Transition
from esper.env.actions import ActionError, Head
from esper.env.base import Environment, EpisodeRecord
from esper.env.spec import as_observation
from esper.phases import marked
from esper.seeding import stream


def play(
    env: Environment,
    controller: Controller,
    *,
    greedy: bool = False,
    record: Callable[[Transition], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[EpisodeRecord], None] | None = None,
) -> EpisodeRecord:
    """Run one episode from the environment's current start to its end.

    Each host draws its actions from a random stream of its own, so that they do not depend on the number of hosts.

    Args:
        greedy: if true, take the most probable actions instead of sampling.
        record: called with every transition.
        progress: called with the number of steps done and T, also before the first step.
        watch: called with the record of the episode so far, after every step.
    """
    begun = time.perf_counter()
    num_hosts, num_steps = env.num_envs, env.num_steps
    names = ((env.root, "action", env.split, env.episode, host) for host in range(num_hosts))
    uniform_TNH = np.stack([stream(*name).random((num_steps, len(Head))) for name in names], axis=1)
    episode, no_host_N = env.record(), np.zeros(num_hosts, dtype=np.bool_)
    observation, state = as_observation(env.observation()), controller.start(num_hosts)
    is_init_N = np.ones(num_hosts, dtype=np.bool_)
    for step in range(num_steps):
        if progress:
            progress(step, num_steps)
        asked = time.perf_counter()
        with marked("act"):
            decision = controller.act(observation, state, is_init=is_init_N, uniform=uniform_TNH[step], greedy=greedy)
        episode.act_seconds += time.perf_counter() - asked
        check_decision(decision, num_hosts, controller)
        arrays, reward_N, terminated_N, _, info = env.step(decision.action)
        if record:
            transition = Transition(
                observation=observation,
                decision=decision,
                reward_N=reward_N,
                terminated_N=terminated_N,
                is_init_N=is_init_N,
                rolled_back_N=info.get("rolled_back", no_host_N),
                signals=info.get("signals"),
                paid=info.get("components", {}),
                restored_N=info.get("restored_potential"),
                cause_N=info.get("cause"),
            )
            record(transition)
        episode.add(info, reward_N)
        if step + 1 == num_steps:
            episode.close(info)
        if watch:
            watch(episode)
        observation, state, is_init_N = as_observation(arrays), decision.state, terminated_N
    episode.seconds = time.perf_counter() - begun
    if progress:
        progress(num_steps, num_steps)
    return episode


def check_decision(decision: Decision, num_hosts: int, controller: object) -> None:
    """Raise ActionError if a controller returned no decision, or a tensor of its state does not have a row for each host, so that
    they would share one."""
    if not isinstance(cast(object, decision), Decision):
        raise ActionError(f"{type(controller).__name__}.act() returns a {type(decision).__name__}: return a Decision")
    for name, value in cast(dict[str, Any], decision.state).items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        if shape is None or shape[:1] != (num_hosts,):
            got = f"the type {type(value).__name__}" if shape is None else f"the shape {shape}"
            raise ActionError(
                f"{type(controller).__name__}.act() returns a state whose {name!r} has {got}: return a tensor [N, ...], with a "
                f"row for each of the {num_hosts} hosts"
            )
