"""Recurrent proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with masked, factored actions."""

# T steps, N hosts, H heads, M rows of a minibatch, B = T * M decisions

import math
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.agent.base import AgentConfig, Controller, Learner, check_twins
from esper.agent.ppo.advantages import Baseline, Targets, apply_baseline, gae, returns_to_go, vtrace_advantages
from esper.agent.ppo.diagnostics import diagnose, evaluate_rollout, gradient_norms, parts_of
from esper.agent.ppo.distribution import free_parameters
from esper.agent.ppo.imitation import SHARE, UNDEFINED, teacher_actions
from esper.agent.ppo.losses import (
    RATIO_TOLERANCE,
    Reference,
    Surrogate,
    check_replay,
    chunk_starts,
    compute_losses,
    kl_estimate,
    masked_mean,
)
from esper.agent.ppo.network import PolicyNetwork
from esper.agent.ppo.popart import PopArt
from esper.agent.ppo.program import PolicyProgram
from esper.buffer.base import Buffer, BufferConfig
from esper.buffer.rollout import Rollout, TensorObservation
from esper.buffer.transition import Decision, State, Transition
from esper.env.actions import Op
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray
from esper.ranges import check_ranges
from esper.seeding import stream, torch_stream

MAX_STRIKES = 3
"""Number of consecutive non-finite minibatches after which the run ends."""
_REMEDY = {
    "slots": "agent.slot_identity=true learns an embedding per slot, which cannot move to other slots; train with "
    "agent.slot_identity=false agent.slot_depth=true, or use hosts with these slots",
    "blueprints": "offer the same blueprints in the same order",
    "features": "set env.timetable and task.events as in training; if another version of esper wrote the checkpoint, train the "
    "policy again",
    "slot features": "another version of esper wrote the checkpoint; train the policy again",
}
"""Remedy by kind of name that differs between a checkpoint and this run."""


@dataclass(kw_only=True, slots=True)
class PPOConfig(AgentConfig):
    """A recurrent policy trained by PPO."""

    greedy: ClassVar[bool] = True
    buffered: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True
    """If true, the core is an LSTM; if false, two feed-forward layers."""
    lam: float = 0.95
    """GAE lambda, in [0, 1]. 0 trusts the critic, 1 the returns; higher: less bias, more variance. With agent.baseline=twins it
    affects only the critic's targets."""
    learning_rate: float = 2e-3
    """Initial step size of Adam, above 0; falls linearly to 0 over the run. Higher: faster learning, until it diverges."""
    epochs: int = 8
    """Passes over each rollout, at least 1. Higher: more learning per rollout, until agent.target_kl stops the update early."""
    minibatches: int = 4
    """Minibatches per pass, from 1 to hosts; each holds whole hosts. Higher: more and noisier gradient steps."""
    chunk: int = 0
    """Steps of backpropagation through time, a divisor of steps; 0 means the whole episode. Higher: learns longer dependencies,
    from fewer and longer sequences."""
    clip: float = 0.2
    """Half-width of the clipping interval of probability ratios around 1, in (0, 1). Higher: larger policy steps."""
    surrogate: Surrogate = Surrogate.joint
    """Probability ratio that is clipped: joint (of the whole action) or per_head (of each action head separately)."""
    target_kl: float = 0.03
    """KL divergence from the acting policy at which an update stops early [nats], above 0. Higher: stops later."""
    value_coef: float = 0.5
    """Weight of the critic's loss, at least 0. Higher: the critic shapes more of the shared layers."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus in the first update [1 / nat], at least 0. Higher: more exploration."""
    entropy_final: float = 0.001
    """Weight of the entropy bonus at the end of the run, reached linearly [1 / nat], at least 0. Higher: a more random final
    policy."""
    reference: Reference = Reference.uniform
    """Policy towards which the entropy bonus pulls: uniform (over legal actions), or initial (waits as agent.wait_bias says,
    otherwise uniform). Use initial where the right moment may come late: a uniform policy acts at once."""
    max_grad_norm: float = 0.5
    """Maximum gradient norm, above 0; larger gradients are clipped. Lower: outliers count less; Adam's steps keep their size."""
    twins: int = 2
    """Hosts that share instance, initial weights and data order, at least 1; hosts must be a multiple of it. Higher: less noisy
    advantages, fewer distinct hosts per rollout."""
    baseline: Baseline = Baseline.twins
    """Baseline of the advantages: critic (GAE), twins (leave-one-out mean of the twins' returns) or blend (mean of both)."""
    advantage_floor: float = 0.1
    """Lower bound of the standard deviation that divides advantages [reward], above 0. Higher: damps uneventful rollouts."""
    popart_step: float = 0.05
    """Weight of the newest rollout in the running scale of value targets (PopArt), in [0, 1]. Higher: adapts faster, less
    steadily; 0 leaves the targets unscaled."""
    hidden: int = 64
    """Units of the core, at least 1. Higher: more memory, more compute."""
    slot_width: int = 32
    """Width of a slot's encoding, at least 1. Higher: more detail per slot, more compute."""
    blueprint_width: int = 4
    """Width of a blueprint's embedding, at least 1. Higher: more detail per blueprint."""
    slot_identity: bool = True
    """If true, each slot has a learned embedding, and the policy cannot move to hosts with other slots. If this and
    agent.slot_depth are false, the policy cannot tell slots with equal features apart."""
    slot_depth: bool = False
    """If true, the policy sees the depth of each slot, from 0 (first) to 1 (last), which transfers to other hosts."""
    standardize: bool = False
    """If true, the policy sees each feature minus its mean and divided by its standard deviation over all earlier rollouts, so
    that small differences count as much as large ones."""
    wait_bias: float = 1.0
    """Initial bias of the logit of waiting. Higher: acts more rarely; against one other operation, 1 waits in 73 % of steps."""
    teacher: str | None = None
    """Controller that the policy imitates at first: an agent that needs no training, such as heuristic; the folder of a run, such
    as one of agent=react_bandit, or FOLDER/best; or that of a saved policy. Null for none."""
    imitation: float | None = None
    """Share of the updates, at the start, in which the policy only imitates agent.teacher, in (0, 1]; null means 0.25. Higher:
    closer to the teacher, less time to become better than it."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        ranges = {
            "[0, 1]": ["lam", "popart_step"],
            "(0, 1)": ["clip"],
            "(-inf, inf)": ["wait_bias"],
            "(0, inf)": ["learning_rate", "target_kl", "max_grad_norm", "advantage_floor"],
            "[0, inf)": ["chunk", "value_coef", "entropy_coef", "entropy_final"],
            "[1, inf)": ["epochs", "minibatches", "hidden", "slot_width", "blueprint_width", "twins"],
        }
        check_ranges("agent", self, ranges)
        if self.imitation is not None:
            check_ranges("agent", self, {"(0, 1]": ["imitation"]})
            if self.teacher is None:
                raise ValueError(f"agent.imitation={self.imitation} has no effect without a teacher: set agent.teacher")
        if self.baseline is not Baseline.critic and self.twins < 2:
            got = f"agent.baseline={self.baseline} needs agent.twins of at least 2, got {self.twins}"
            raise ValueError(f"{got}: set agent.baseline=critic, or agent.twins=2")
        if self.clip > 0.3:
            warnings.warn(f"agent.clip={self.clip} hardly limits policy steps: 0.1 to 0.3 is usual", stacklevel=2)

    def network_size(self, slots: int, features: int, slot_features: int) -> tuple[int, int, Sequence[str]]:
        units, width, table = self.hidden, self.slot_width, self.blueprint_width
        weights = units * (10 * units + features + 3 * width) + width * (4 * width + table + slot_features)
        keys = sorted(("hidden", "slot_width", "blueprint_width"), key=lambda name: -getattr(self, name))
        return weights, 14 * units + slots * (12 * width + table), [f"agent.{key}" for key in keys[:2]]

    def acting(self) -> "PPOConfig":
        config = copy(self)
        config.chunk = 0
        return config

    @property
    def num_twins(self) -> int:
        return self.twins

    @property
    def imitates(self) -> str | None:
        return self.teacher

    def check_run(self, *, blueprints: Sequence[str], steps: int, hosts: int, incubates: bool = True) -> None:
        if self.chunk and steps % self.chunk:
            divisors = ", ".join(str(number) for number in range(1, min(steps, 1000) + 1) if steps % number == 0)
            raise ValueError(f"agent.chunk={self.chunk} does not divide steps={steps}: choose one of {divisors}, or 0")
        if self.minibatches > hosts:
            raise ValueError(
                f"agent.minibatches={self.minibatches} exceeds hosts={hosts}, and a minibatch consists of whole hosts: "
                f"set agent.minibatches to at most {hosts}"
            )
        check_twins(hosts, self.twins, "agent.twins=1 agent.baseline=critic")

    def check_buffer(self, buffer: BufferConfig, name: str) -> None:
        if not buffer.reuses:
            return
        for key, value, needed in (
            ("baseline", self.baseline, Baseline.critic),
            ("chunk", self.chunk, 0),
            ("surrogate", self.surrogate, Surrogate.joint),
        ):
            if value != needed:
                raise ValueError(f"buffer={name} needs agent.{key}={needed}, got {value}: set agent.{key}={needed}")

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "PPO":
        return PPO(self, spec, seed=seed, buffer=buffer)


@dataclass(kw_only=True, slots=True)
class PPOMLPConfig(PPOConfig):
    """A PPO policy without memory, for comparison: two feed-forward layers with as many weights replace the LSTM."""

    recurrent: ClassVar[bool] = False


class PPO(Learner):
    """A PPO learner: the policy, its critic, and the update that trains them."""

    def __init__(self, config: PPOConfig, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> None:
        self.config, self.spec, self.seed, self.buffer = config, spec, seed, buffer
        self._number = 0
        """Number of the current update, which keys its random stream."""
        self.network = PolicyNetwork(
            spec,
            hidden=config.hidden,
            slot_width=config.slot_width,
            blueprint_width=config.blueprint_width,
            slot_identity=config.slot_identity,
            slot_depth=config.slot_depth,
            wait_bias=config.wait_bias,
            generator=torch_stream(seed, "policy_init"),
            recurrent=config.recurrent,
            standardize=config.standardize,
        )
        self.popart = PopArt(step=config.popart_step)
        self._optimizer_state: dict[str, Any] | None = None
        """State that the optimizer will continue from, until it is built."""
        self.parameters = list(self.network.parameters())
        """All parameters, cached: traversing the modules takes as long as running the smaller layers."""
        self.parts = parts_of(self.network)
        """Parameters by part of the network, for gradient norms."""
        self.strikes = 0
        """Consecutive non-finite minibatches so far."""
        self.teacher: Controller | None = None
        """Controller to imitate at first; None while acting only, or if there is none."""
        self._reference_O: Tensor | None = None
        if config.reference is Reference.initial:
            self._reference_O = torch.zeros(len(Op))
            self._reference_O[Op.WAIT] = config.wait_bias

    @cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Adam, built for the first update: PyTorch then imports torch._dynamo, which takes seconds and is never used."""
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.config.learning_rate, eps=1e-5, fused=True)
        if self._optimizer_state is not None:
            optimizer.load_state_dict(self._optimizer_state)
            self._optimizer_state = None
        return optimizer

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """Return the recurrent state before the first step."""
        return self.network.start(num_hosts)

    @torch.no_grad()
    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: BoolArray,
        uniform: npt.NDArray[np.float64],
        greedy: bool = False,
    ) -> Decision:
        """See `Controller.act`."""
        outputs, state = self.network.step(TensorObservation.of(observation), state, torch.as_tensor(is_init))
        distribution = outputs.distribution
        action_NH = distribution.mode() if greedy else distribution.sample(torch.as_tensor(uniform))
        log_prob_N = distribution.log_prob(action_NH)
        # Check the whole action: a slot or a parameter drawn from NaN logits may be illegal.
        for what, numbers in (("probabilities", log_prob_N), ("values", outputs.value_B)):
            if not bool(torch.isfinite(numbers).all()):
                remedy = "lower agent.learning_rate, or check the observations"
                raise FloatingPointError(f"the policy's {what} are not finite: {remedy}")
        per_head = self.config.surrogate is Surrogate.per_head
        return Decision(
            action=action_NH.numpy(),
            log_prob=log_prob_N.numpy(),
            value=self.popart.denormalize(outputs.value_B).numpy(),
            head_log_prob=distribution.head_log_probs(action_NH).numpy() if per_head else None,
            state=state,
        )

    # ---- learning

    def follow(self, teacher: Controller) -> None:
        self.teacher = teacher

    def begin(self, update: int) -> None:
        """Start a new rollout."""
        assert self.buffer is not None, "a policy without a buffer can only act"
        self._number = update
        self.buffer.begin(self.spec)

    def observe(self, transition: Transition) -> None:
        """Store one step of every host."""
        assert self.buffer is not None
        self.buffer.add(transition)

    def learn(self, progress: float) -> dict[str, float]:
        """Learn from the rollouts of the buffer; see `update`."""
        assert self.buffer is not None
        assert self.buffer.ready()
        generator = torch_stream(self.seed, "minibatches", self._number)
        newest, *earlier = self.buffer.rollouts()
        metrics = self.update(newest, progress=progress, generator=generator, earlier=earlier)
        return {f"policy/{name}": value for name, value in metrics.items()}

    def update(
        self, rollout: Rollout, *, progress: float, generator: torch.Generator, earlier: Sequence[Rollout] = ()
    ) -> dict[str, float]:
        """Train on a full rollout of this policy, and return metrics by name, the tag without `policy/`.

        Args:
            rollout: T steps of N hosts under the current weights.
            progress: completed share of the run, in [0, 1].
            generator: shuffles the hosts.
            earlier: complete rollouts of earlier policies to learn from as well, with V-trace and clipping around the current
                policy.

        Raises:
            RuntimeError: the replay of the rollout does not reproduce its log-probabilities.
            FloatingPointError: `MAX_STRIKES` consecutive minibatches had a non-finite loss or gradient.
        """
        config = self.config
        self._check_rollout(rollout)
        assert 0 <= progress <= 1
        learning_rate = config.learning_rate * (1 - progress)
        entropy_coef = config.entropy_coef + (config.entropy_final - config.entropy_coef) * progress
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        before = evaluate_rollout(self.network, rollout)
        # Check all rows now: minibatches cover only a part of them before the first gradient step.
        error = check_replay(rollout, torch.arange(rollout.num_hosts), before.joint_TN - rollout.log_prob_TN)
        self._label([rollout, *earlier], progress)
        targets = self._targets(rollout)
        data, data_targets = self._window([rollout, *earlier]) if earlier else (rollout, targets)
        steps, dropped, first_error = self._optimize(data, data_targets, entropy_coef, generator)
        after = evaluate_rollout(self.network, rollout)
        planned = config.epochs * config.minibatches * (1 + len(earlier))
        skipped = planned - len(steps) - dropped
        self.network.update_statistics(rollout.seen)  # after all replays, which need the statistics of the rollout
        # The policy treats returns that differ by less than the floor as equal.
        floor = config.advantage_floor**2
        clip = self._clip(1 + len(earlier))
        found = diagnose(before, after, rollout, mc_return_TN=targets.mc_return_TN, clip=clip, floor=floor)
        metrics = found | {
            **{name: float(np.mean([step[name] for step in steps])) for name in (steps[0] if steps else ())},
            "kl_of_target": found["kl"] / config.target_kl,
            "first_ratio_error": max(error, first_error),
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
            "minibatches_skipped": float(skipped),
            "skipped_fraction": skipped / planned,
            "minibatches_nonfinite": float(dropped),
        }
        if data.taught_TNH is not None:
            metrics |= dict.fromkeys((name for name in metrics if name.startswith(UNDEFINED)), math.nan)
        return metrics

    def _label(self, rollouts: Sequence[Rollout], progress: float) -> None:
        """Ask the teacher about rollouts, the newest first, that it has not seen yet. Once its time is over, it is never asked
        again: a longer run must not undo what PPO has learned."""
        if self.config.teacher is not None and progress >= (self.config.imitation or SHARE):
            self.independent = True
        if self.teacher is None or self.independent:
            return
        named, sizes = f"agent.teacher={self.config.teacher}", self.spec.head_sizes
        for age, rollout in enumerate(rollouts):
            if rollout.taught_TNH is None:
                rng = stream(self.seed, "teacher", self._number - age)
                rollout.taught_TNH = teacher_actions(self.teacher, rollout, sizes, rng=rng, named=named)

    def _check_rollout(self, rollout: Rollout) -> None:
        """Assert that a rollout is complete and has what the surrogate needs."""
        assert rollout.full
        if self.config.surrogate is Surrogate.per_head:
            joint_TN = rollout.head_log_prob_TNH.sum(dim=2)
            assert torch.allclose(joint_TN, rollout.log_prob_TN, atol=RATIO_TOLERANCE), (
                "the rollout lacks the log-probabilities of the heads"
            )

    def _targets(self, rollout: Rollout) -> Targets:
        """Compute training targets of the whole rollout, since twins need not share a minibatch; update PopArt."""
        config, reward_TN, terminated_TN = self.config, rollout.reward_TN, rollout.terminated_TN
        gae_TN = gae(reward_TN, rollout.value_TN, terminated_TN, gamma=config.gamma, lam=config.lam)
        lambda_return_TN = gae_TN + rollout.value_TN
        mc_return_TN = returns_to_go(reward_TN, terminated_TN, gamma=config.gamma)
        self.popart.update(lambda_return_TN, self.network.value)
        advantage_TN = apply_baseline(config.baseline, gae_TN, mc_return_TN, config.twins)
        seen = rollout.seen
        return Targets(
            advantage_TN=self._normalize(advantage_TN, rollout),
            value_TN=self.popart.normalize(lambda_return_TN),
            mc_return_TN=mc_return_TN,
            # Computed once for all minibatches: a head that has no choice in one of them contributes exactly 0 there.
            free=free_parameters(seen.legal_slots.flatten(0, 1), seen.legal_values.flatten(0, 1), self.spec.head_sizes),
        )

    @torch.no_grad()
    def _window(self, rollouts: Sequence[Rollout]) -> tuple[Rollout, Targets]:
        """Join rollouts, the newest first, and compute their targets under the current policy and critic."""
        config, rollout = self.config, Rollout.joined(rollouts)
        shape = (rollout.num_steps, rollout.num_hosts)
        seen = rollout.seen
        free = free_parameters(seen.legal_slots.flatten(0, 1), seen.legal_values.flatten(0, 1), self.spec.head_sizes)
        outputs, _ = self.network.unroll(seen, self.network.start(rollout.num_hosts), rollout.is_init_TN, free)
        log_ratio_TN = outputs.distribution.log_prob(rollout.action_TNH.flatten(0, 1)).view(shape) - rollout.log_prob_TN
        advantage_TN, value_TN = vtrace_advantages(
            rollout.reward_TN,
            self.popart.denormalize(outputs.value_B).view(shape),
            rollout.terminated_TN,
            log_ratio_TN,
            gamma=config.gamma,
            lam=config.lam,
        )
        return rollout, Targets(
            advantage_TN=self._normalize(advantage_TN, rollout),
            value_TN=self.popart.normalize(value_TN),
            mc_return_TN=torch.zeros(shape),
            free=free,
            anchor_TN=log_ratio_TN,
            num_current=rollouts[0].num_hosts,
        )

    def _normalize(self, advantage_TN: Tensor, rollout: Rollout) -> Tensor:
        """Shift and scale advantages to mean 0 and deviation 1 over the steps that were not forced."""
        unforced_TN = ~rollout.forced_TN
        mean = masked_mean(advantage_TN, unforced_TN)
        deviation = masked_mean((advantage_TN - mean).square(), unforced_TN).sqrt()
        return (advantage_TN - mean) / deviation.clamp(min=self.config.advantage_floor)

    def _optimize(
        self, rollout: Rollout, targets: Targets, entropy_coef: float, generator: torch.Generator
    ) -> tuple[list[dict[str, float]], int, float]:
        """Take gradient steps on minibatches until all passes are done or the KL target is exceeded.

        Returns:
            Metrics of each step, the number of dropped minibatches, and the largest |ln ratio| of the first minibatch.
        """
        config = self.config
        rows, row_targets = (rollout.folded(config.chunk), targets.folded(config.chunk)) if config.chunk else (rollout, targets)
        window = rows.num_hosts // (row_targets.num_current or rows.num_hosts)
        steps: list[dict[str, float]] = []
        dropped, first_error = 0, math.nan
        for epoch in range(config.epochs):
            if rows.chunks > 1:
                rows.initial_state = chunk_starts(self.network, rollout, config.chunk)
            for index, rows_M in enumerate(rows.minibatches(config.minibatches * window, generator)):
                log_ratio_TM, terms = self._losses(rows, row_targets, rows_M)
                if epoch == index == 0:  # a second check, since chunks have initial states of their own
                    first_error = check_replay(rows, rows_M, log_ratio_TM)
                # Only actions of the policy before the update estimate how far it has moved.
                counted_TM = ~rows.forced_TN[:, rows_M] & (rows_M < (row_targets.num_current or rows.num_hosts))
                far = float(kl_estimate(log_ratio_TM.detach(), counted_TM)) > config.target_kl
                if far and rows.taught_TNH is None:
                    return steps, dropped, first_error
                metrics = self._step(terms, entropy_coef)
                if metrics is None:
                    dropped += 1
                else:
                    steps.append(metrics)
                if self.strikes >= MAX_STRIKES:
                    raise FloatingPointError(nonfinite_message(terms, gradient_norms(self.parts), self.strikes))
        return steps, dropped, first_error

    def _losses(self, rollout: Rollout, targets: Targets, rows_M: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """See `compute_losses`."""
        clip = self._clip(rollout.num_hosts // (targets.num_current or rollout.num_hosts))
        surrogate, reference_O = self.config.surrogate, self._reference_O
        return compute_losses(self.network, rollout, targets, rows_M, clip=clip, surrogate=surrogate, reference_O=reference_O)

    def _clip(self, window: int) -> float:
        """Return the half-width of the clipping interval: a window of M rollouts narrows it by (M + 1) / 2, which keeps the bound
        of GePPO (Queeney et al. 2021)."""
        return self.config.clip / ((window + 1) / 2)

    def _step(self, terms: dict[str, Tensor], entropy_coef: float) -> dict[str, float] | None:
        """Take one gradient step and return its metrics; None, without a step, if a loss or gradient is non-finite."""
        # Up to a constant, entropy is minus the divergence from a uniform policy.
        drawn = -terms["divergence"] if "divergence" in terms else terms["entropy"]
        loss = terms["policy_loss"] + self.config.value_coef * terms["value_loss"] - entropy_coef * drawn
        if "imitation_loss" in terms:
            loss = terms["imitation_loss"] + self.config.value_coef * terms["value_loss"]
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        norms = gradient_norms(self.parts)
        norm = torch.tensor(math.hypot(*norms.values()))
        metrics = {name: float(term.detach()) for name, term in terms.items()} | {"grad_norm": float(norm)}
        if not all(map(math.isfinite, metrics.values())):
            self.strikes += 1
            return None
        nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
        self.optimizer.step()
        self.strikes = 0
        metrics |= {f"grad_norm_{part}": part_norm for part, part_norm in norms.items()}
        return metrics | {"grad_clipped": float(metrics["grad_norm"] > self.config.max_grad_norm)}

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training resumes from: tensors and primitives only."""
        return self.acting_state() | {"optimizer": self.optimizer.state_dict()}

    def acting_state(self) -> dict[str, Any]:
        return {
            "names": self._names(),
            "network": self.network.state_dict(),
            "popart": self.popart.state_dict(),
            "counters": {"strikes": self.strikes} | ({"independent": self.independent} if self.config.teacher else {}),
        }

    def program(self) -> nn.Module | None:
        return PolicyProgram(self.network, self.config.heads)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict` or `acting_state`. Without slot identity, slots may differ in names and number.

        Raises:
            ValueError: the policy was trained with other observations or actions.
            TypeError: a tensor has another dtype.
        """
        for what, names in self._names().items():
            trained = state["names"][what]
            if trained != names and (what != "slots" or self.config.slot_identity):
                was, here = ", ".join(trained), ", ".join(names)
                raise ValueError(f"this policy was trained with the {what} {was}, but this run has {here}: {_REMEDY[what]}")
        for part, module in (("network", self.network), ("popart", self.popart)):
            for name, tensor in module.state_dict().items():  # PyTorch would cast other dtypes
                if name in state[part] and state[part][name].dtype != tensor.dtype:
                    raise TypeError(f"{name} is {state[part][name].dtype}, not {tensor.dtype}")
            module.load_state_dict(state[part])
        if "optimizer" in state:
            self.__dict__.pop("optimizer", None)
            self._optimizer_state = state["optimizer"]
        self.strikes = state["counters"]["strikes"]
        self.independent = state["counters"].get("independent", False)

    def _names(self) -> dict[str, list[str]]:
        """Return the names of inputs and outputs, in order."""
        spec = self.spec
        return {
            "slots": list(spec.slot_names),
            "blueprints": list(spec.blueprint_names),
            "features": list(spec.feature_names),
            "slot features": list(spec.slot_feature_names),
        }


def nonfinite_message(terms: Mapping[str, Tensor], gradients: Mapping[str, float], count: int) -> str:
    """Return the error message for a run that ends because of non-finite minibatches.

    Args:
        terms: terms of the objective by name.
        gradients: gradient norms by part of the network, before clipping.
        count: consecutive non-finite minibatches.
    """
    names = [name for name, term in terms.items() if not bool(term.isfinite())]
    names += [f"gradient of the {part}" for part, norm in gradients.items() if not math.isfinite(norm)]
    return (
        f"non-finite in {count} consecutive minibatches: {', '.join(names)}; lower agent.learning_rate, or check the observations"
    )
