"""Imitation of a teacher: before PPO begins, the policy learns to act as another controller would on the same hosts."""

# T steps, N hosts, H heads, B decisions

import numpy as np
import torch
from torch import Tensor

from esper.agent.base import Controller, Revisable
from esper.agent.ppo.distribution import ActionDistribution
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Op, parameters_legal
from esper.env.spec import Observation
from esper.lifecycle.stages import IntArray

SHARE = 0.25
"""Share of the updates that imitate a teacher, unless agent.imitation sets it."""
SMOOTHING = 0.05
"""Share of each target that is spread evenly over all legal values of a head; the rest is the teacher's choice. Without it, the
policy would stop exploring, and twins would act alike: PPO would get no gradient when it takes over."""
UNDEFINED = ("kl", "ratio", "clip_fraction", "policy_loss", "entropy_coef")
"""Beginnings of the names of PPO's metrics, which are undefined while the policy imitates."""


def teacher_actions(
    teacher: Controller, rollout: Rollout, head_sizes: tuple[int, ...], *, rng: np.random.Generator, named: str
) -> Tensor:
    """Return what the teacher would do in every step of a rollout `[T, N, H]`.

    The teacher sees the observations and keeps a state of its own, but the hosts follow the policy, so that the policy is
    corrected in the states to which it leads (DAgger, Ross et al. 2011, arXiv:1011.0686). A teacher whose state records its own
    acts is told what the policy did instead. It acts greedily; one that draws its actions all the same takes them from `rng`.

    Args:
        head_sizes: number of values of each head.
        named: setting that names the teacher, as in agent.teacher=heuristic.

    Raises:
        ValueError: an action is illegal.
    """
    state, action_TNH = teacher.start(rollout.num_hosts), torch.zeros_like(rollout.action_TNH)
    for step in range(rollout.num_steps):
        seen = Observation(**{name: tensor[step].numpy() for name, tensor in rollout.seen.tensors().items()})
        is_init_N, uniform_NH = rollout.is_init_TN[step].numpy(), rng.random((rollout.num_hosts, len(Head)))
        decision = teacher.act(seen, state, is_init=is_init_N, uniform=uniform_NH, greedy=True)
        _check(decision.action, seen, head_sizes, named)
        action_TNH[step] = torch.from_numpy(decision.action)
        if isinstance(teacher, Revisable):
            state = teacher.revise(seen, state, decision, rollout.action_TNH[step].numpy())
        else:
            state = decision.state
    return action_TNH


def _check(action_NH: IntArray, seen: Observation, head_sizes: tuple[int, ...], named: str) -> None:
    """Raise ValueError if an action of the teacher is illegal: the policy cannot learn it."""
    legal_N = np.all((action_NH >= 0) & (action_NH < head_sizes), axis=1)
    action = np.where(legal_N[:, None], action_NH, 0)
    legal_N &= seen.legal_slots[np.arange(len(action)), action[:, Head.OP], action[:, Head.SLOT]]
    legal_N &= parameters_legal(action, seen.legal_values, head_sizes)
    if not legal_N.all():
        faulty = action_NH[~legal_N][0].tolist()
        op = Op(faulty[Head.OP]).name.lower() if faulty[Head.OP] in list(Op) else str(faulty[Head.OP])
        values = ", ".join(f"{head.name.lower()} {value}" for head, value in zip(list(Head)[1:], faulty[1:], strict=True))
        raise ValueError(
            f"{named} chose {op} ({values}), which is illegal there: choose another teacher; if it is your own, let it choose "
            "from observation.legal_slots and legal_values"
        )


def imitation_loss(distribution: ActionDistribution, taught_BH: Tensor) -> Tensor:
    """Compute the cross-entropy of the policy with smoothed choices of the teacher `[B]` [nats].

    The target of each head that matters for the teacher's action is (1 - `SMOOTHING`) * the teacher's choice + `SMOOTHING` *
    uniform over the legal values (label smoothing, Szegedy et al. 2016, arXiv:1512.00567). A head with one legal value adds 0.
    """
    chosen_B, spread_B = distribution.log_prob(taught_BH), distribution.uniform_log_prob(taught_BH)
    return -(1 - SMOOTHING) * chosen_B - SMOOTHING * spread_B
