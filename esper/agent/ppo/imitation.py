"""Imitation of a teacher: before PPO begins, the policy learns to act as another controller would on the same hosts."""

# T steps, N hosts, H heads

import numpy as np
import torch
from torch import Tensor

from esper.agent.base import Controller
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Observation

SHARE = 0.25
"""Share of the updates that imitate a teacher, unless agent.imitation sets it."""
MEASURES_OF_STEPS = ("kl", "ratio", "clip_fraction")
"""Beginnings of the names of metrics that say how far PPO has moved the policy; they are undefined while it imitates."""


def teacher_actions(teacher: Controller, rollout: Rollout) -> Tensor:
    """Return the teacher's most probable action in every step of a rollout `[T, N, H]`.

    The teacher sees the observations and keeps a state of its own, but the hosts follow the policy, so that the policy is
    corrected in the states to which it leads (DAgger, Ross et al. 2011, arXiv:1011.0686).
    """
    state, half_NH = teacher.start(rollout.num_hosts), np.full((rollout.num_hosts, len(Head)), 0.5)
    action_TNH = torch.zeros_like(rollout.action_TNH)
    for step in range(rollout.num_steps):
        seen = {name: tensor[step].numpy() for name, tensor in rollout.seen.tensors().items()}
        is_init_N = rollout.is_init_TN[step].numpy()
        decision = teacher.act(Observation(**seen), state, is_init=is_init_N, uniform=half_NH, greedy=True)
        action_TNH[step], state = torch.from_numpy(decision.action), decision.state
    return action_TNH
