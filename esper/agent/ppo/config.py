"""Recurrent PPO: its knobs. How it acts and learns is in `learner`."""

import math
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

from esper.agent.base import AgentConfig
from esper.agent.ppo.gae import Baseline
from esper.agent.ppo.learner import PPO
from esper.agent.ppo.losses import Surrogate
from esper.buffer.rollout import Forfeit
from esper.env.actions import EnvSpec


@dataclass(kw_only=True, slots=True)
class PPOConfig(AgentConfig):
    """A recurrent policy that learns by PPO."""

    greedy: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    """Does it remember?"""
    lam: float = 0.95
    """Weight of longer sums in advantages, in [0, 1]. 1 trusts the returns, 0 the critic; higher is less biased and noisier. With
    baseline=twins the policy's advantages know neither it nor the critic: it only says what the critic learns."""
    learning_rate: float = 2e-3
    """Step size of Adam in the first update, above 0; it falls linearly towards 0. Higher learns faster until it diverges."""
    epochs: int = 8
    """Passes over each rollout, at least 1. More learn more from it and strain the clip."""
    minibatches: int = 4
    """Parts a rollout is dealt into in each pass, at least 1 and at most N: hosts stay whole. More: noisier steps."""
    chunk: int = 0
    """Steps through which gradients flow back, a divisor of T: hosts are dealt in rows of as many. 0 means whole rows. Higher
    learns to remember for longer, in fewer and longer rows."""
    clip: float = 0.2
    """Half-width of the interval around 1 in which probability ratios earn anything, in (0, 1). Higher allows larger steps."""
    surrogate: Surrogate = Surrogate.joint
    """Whose ratio is clipped: joint is that of the whole action, per_head that of each of its heads, one by one."""
    target_kl: float = 0.03
    """An update ends when a minibatch finds the policy this far from the one that acted [nats], above 0. Higher stops later."""
    value_coef: float = 0.5
    """Weight of the critic's loss, at least 0. Higher lets the critic shape more of what they share."""
    aux_coef: float = 0.0
    """Weight of predicting what each seed will be found to contribute, at least 0. Higher lets that shape more of what the policy
    and the critic share; at 0 nothing is predicted."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus in the first update [1 / nat], at least 0. Higher explores more."""
    entropy_final: float = 0.001
    """The same at the end, to which it moves linearly, at least 0. Higher stays undecided."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm, above 0. Lower takes steadier and smaller steps."""
    twins: int = 2
    """Hosts that share instance, first weights and data order, at least 1; hosts must be a multiple of it. More tell an action's
    worth from a host's luck, and leave fewer different hosts in a rollout."""
    baseline: Baseline = Baseline.twins
    """What advantages are measured against."""
    forfeit: Forfeit = Forfeit.none
    """What a roll-back takes from the host's rewards before anything is learned from them, beside the penalty."""
    advantage_floor: float = 0.1
    """Advantages are divided by their deviation, but by no less than this [reward], above 0. Higher damps uneventful rollouts."""
    popart_step: float = 0.05
    """Weight of the newest rollout in the running scale of returns (PopArt), in [0, 1]. Higher follows faster and jumps more;
    at 0 there is no scale, and the critic learns rewards as they are."""
    reward_scaling: bool = False
    """Are rewards divided by the running deviation of discounted returns before anything is learned? The critic has a scale of
    its own (popart_step), and advantages are divided by their deviation, so that little but advantage_floor's unit changes."""
    hidden: int = 64
    """Units of the core, at least 1. More remember more and cost more."""
    slot_width: int = 32
    """Numbers that encode one slot, at least 1."""
    blueprint_width: int = 4
    """Numbers that stand for a blueprint, at least 1."""
    slot_identity: bool = True
    """Does a slot have learned numbers of its own? Without, and without slot_depth, slots whose features agree are the same
    to the policy. With, it cannot be moved to hosts with other slots."""
    slot_depth: bool = False
    """Is the policy told how deep in its host a slot is, from 0 for the first to 1 for the last? Unlike slot_identity this means
    the same in hosts with other slots."""
    wait_bias: float = 1.0
    """Added to the score of waiting at birth. Higher acts more rarely: beside one other operation, 1 waits in 73 % of steps."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        open_unit = "in (0, 1)"
        rules = {
            "lam": (0 <= self.lam <= 1, "in [0, 1]"),
            "clip": (0 < self.clip < 1, open_unit),
            "popart_step": (0 <= self.popart_step <= 1, "in [0, 1]"),
            "wait_bias": (math.isfinite(self.wait_bias), "finite"),
        }
        above_0 = ("learning_rate", "target_kl", "max_grad_norm", "advantage_floor")
        rules |= {name: (0 < getattr(self, name) < math.inf, "finite and above 0") for name in above_0}
        at_least_0 = ("value_coef", "aux_coef", "entropy_coef", "entropy_final")
        rules |= {name: (0 <= getattr(self, name) < math.inf, "finite and at least 0") for name in at_least_0}
        counts = ("epochs", "minibatches", "hidden", "slot_width", "blueprint_width", "twins")
        rules |= {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        rules["chunk"] = (self.chunk >= 0, "at least 0")
        defaults = PPOConfig.__dataclass_fields__
        for name, (fine, rule) in rules.items():
            if not fine:
                usual = defaults[name].default
                raise ValueError(f"agent.{name} must be {rule}, got {getattr(self, name)}: {usual} is a good start")
        if self.baseline is not Baseline.critic and self.twins < 2:
            got = f"agent.baseline={self.baseline} needs agent.twins of at least 2, got {self.twins}"
            raise ValueError(f"{got}: set agent.baseline=critic, or agent.twins=2")
        if self.clip > 0.3:
            warnings.warn(f"agent.clip={self.clip} hardly holds the policy back: 0.1 to 0.3 is usual", stacklevel=2)

    def acting(self) -> "PPOConfig":
        config = copy(self)
        config.chunk = 0
        return config

    def check_run(self, *, blueprints: Sequence[str], steps: int, incubates: bool = True) -> None:
        if self.chunk and steps % self.chunk:
            divisors = ", ".join(str(number) for number in range(1, steps + 1) if steps % number == 0)
            raise ValueError(f"agent.chunk={self.chunk} does not divide steps={steps}: choose one of {divisors}, or 0")

    def build(self, spec: EnvSpec, *, seed: int) -> PPO:
        return PPO(self, spec, seed=seed)


@dataclass(kw_only=True, slots=True)
class PPOMLPConfig(PPOConfig):
    """The same without memory: two layers of as many weights in place of the LSTM, for comparison."""

    recurrent: ClassVar[bool] = False
    """Does it remember?"""
