"""Recurrent proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with masked, factored actions."""

# T steps, N hosts, H heads, S slots, M rows of a minibatch

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.agent.base import BoolArray, Decision, FloatArray, Learner, State
from esper.agent.ppo.diagnostics import Diagnostics, Look, diagnose, gradient_norms, look, parts_of
from esper.agent.ppo.distribution import free_parameters
from esper.agent.ppo.gae import against, gae, returns_to_go
from esper.agent.ppo.losses import Surrogate, clip_fraction, explained_variance, kl_estimate, masked_mean, r_squared
from esper.agent.ppo.network import PolicyNetwork
from esper.agent.ppo.nonfinite import first_sick, sentence
from esper.agent.ppo.objective import RATIO_TOLERANCE, check_replay, chunk_starts, losses
from esper.agent.ppo.popart import Moments, PopArt, discounted_sums
from esper.agent.ppo.targets import NEEDED, Targets, contributions
from esper.buffer.base import Buffer
from esper.buffer.rollout import Rollout, Seen
from esper.buffer.transition import Transition
from esper.env.actions import EnvSpec, Observation
from esper.seeding import torch_stream

if TYPE_CHECKING:
    from esper.agent.ppo.config import PPOConfig

STRIKES = 3
"""Minibatches in a row with numbers that are not finite, before the run ends."""
_REMEDY = {
    "slots": "with agent.slot_identity=true it has learned numbers for each of them and cannot be moved to others; train it with "
    "agent.slot_identity=false agent.slot_depth=true, or keep to hosts with these slots",
    "blueprints": "what it has learned of each goes by that list; offer the same in the same order",
    "features": "they are of another version of esper; train it anew",
    "slot features": "they are of another version of esper; train it anew",
}
"""What to do where a policy was trained with other names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateStats:
    """What one update came to."""

    policy_loss: float
    """Clipped surrogate, mean over minibatches that were learned from, as are the other means."""
    value_loss: float
    """Half the squared error of the critic, in its normalised scale; mean."""
    entropy: float
    """Entropy of the policy at steps that were not forced [nats]; mean."""
    kl: float
    """Estimated KL(policy that acted || policy after this update), at all steps that were not forced [nats]."""
    clip_fraction: float
    """Share of those steps whose ratio is outside the clipping interval, after this update."""
    explained_variance: float
    """Of the rollout's Monte-Carlo returns by the values the critic gave while acting; NaN where the returns do not vary."""
    first_ratio_error: float
    """Largest |ln ratio| of the rollout, before any step: rounding, or the replay is not what was lived."""
    grad_norm: float
    """Norm of the gradient before it was clipped; mean."""
    grad_clipped: float
    """Share of the minibatches learned from whose gradient was longer than `agent.max_grad_norm`, and was cut to it."""
    contribution_loss: float
    """Half the squared error of predicted contributions [(10 pp)^2]; mean. NaN where they are not predicted."""
    contribution_r2: float
    """R^2 of the contributions predicted while acting, before anything was learned from this rollout; NaN likewise."""
    learning_rate: float
    """Of this update."""
    entropy_coef: float
    """Of this update."""
    minibatches_skipped: float
    """Minibatches left out, since the policy had gone far enough [count]."""
    minibatches_nonfinite: float
    """Minibatches dropped, since a loss or a gradient was not finite [count]."""
    forced_fraction: float
    """Share of steps at which waiting was the only legal thing; the policy learns nothing there."""
    diagnostics: Diagnostics
    """More about it, head by head and part by part."""

    def metrics(self) -> dict[str, float]:
        """Flat values by name, as telemetry wants them."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "diagnostics"}
        return plain | self.diagnostics.metrics()


class PPO(Learner):
    """A recurrent policy and its critic, and how they learn."""

    def __init__(self, config: "PPOConfig", spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> None:
        self.config, self.spec, self.seed, self.buffer = config, spec, seed, buffer
        self.stats: UpdateStats | None = None
        """Statistics of the newest update."""
        self._number = 0
        """Number of the update under way, which names its random stream."""
        if config.aux_coef and (missing := [name for name in NEEDED if name not in spec.slot_feature_names]):
            raise ValueError(f"agent.aux_coef={config.aux_coef} needs slots that show {', '.join(missing)}: set agent.aux_coef=0")
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
            foresight=config.aux_coef > 0,
        )
        self.popart = PopArt(step=config.popart_step)
        self.returns = Moments()
        """Of the discounted returns of all rollouts so far, where rewards are scaled by their deviation."""
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
        self.parameters = list(self.network.parameters())
        """All that is learned; listed once, since walking the modules takes as long as their smaller layers."""
        self.parts = parts_of(self.network)
        """Parameters of the parts whose gradients are told apart."""
        self.updates = 0
        """Updates so far."""
        self.strikes = 0
        """Minibatches in a row, up to now, with numbers that were not finite."""

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """What the network remembers at the start."""
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
        """See `Controller`."""
        outputs, state = self.network.step(Seen.of(observation), state, torch.as_tensor(is_init))
        distribution = outputs.distribution
        action_NH = distribution.mode() if greedy else distribution.sample(torch.as_tensor(uniform))
        log_prob_N = distribution.log_prob(action_NH)
        # Of the action, and not of operations alone: a slot or a parameter drawn from no numbers may be an illegal one.
        for what, numbers in (("probabilities", log_prob_N), ("values", outputs.value_B)):
            if not bool(torch.isfinite(numbers).all()):
                raise FloatingPointError(f"the policy's {what} are not finite: look at observations and agent.learning_rate")
        by_head = self.config.surrogate is Surrogate.per_head
        return Decision(
            action=action_NH.numpy(),
            log_prob=log_prob_N.numpy(),
            value=self._in_rewards(outputs.value_B),
            head_log_prob=distribution.head_log_probs(action_NH).numpy() if by_head else None,
            state=state,
        )

    @torch.no_grad()
    def value(self, observation: Observation, state: State, *, is_init: BoolArray | None = None) -> FloatArray:
        """What the critic expects from here on `[N]` [reward]. Draws nothing and changes nothing."""
        fresh = np.zeros(len(observation.features), dtype=np.bool_) if is_init is None else is_init
        outputs, _ = self.network.step(Seen.of(observation), state, torch.as_tensor(fresh))
        return self._in_rewards(outputs.value_B)

    def _in_rewards(self, value_B: Tensor) -> FloatArray:
        """Values as rewards are paid, from those in the critic's scale."""
        return (self.unit * self.popart.denormalize(value_B)).numpy()

    @property
    def unit(self) -> float:
        """What rewards are divided by before anything is learned; 1 where they are not scaled [reward]."""
        return self.returns.deviation() if self.config.reward_scaling else 1.0

    # ---- learning

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
        self.stats = self.update(newest, progress=progress, generator=generator, earlier=earlier)
        return {f"policy/{name}": value for name, value in self.stats.metrics().items()}

    def update(
        self, rollout: Rollout, *, progress: float, generator: torch.Generator, earlier: Sequence[Rollout] = ()
    ) -> UpdateStats:
        """Learns from a full rollout of this very policy.

        Args:
            progress: share of the run behind us, in [0, 1].
            generator: shuffles the hosts.

        Raises:
            RuntimeError: the replay of the rollout does not reproduce its log-probabilities.
            FloatingPointError: losses or gradients of three minibatches in a row were not finite.
        """
        config = self.config
        assert rollout.full
        assert 0 <= progress <= 1
        if config.surrogate is Surrogate.per_head:
            told_TN = rollout.head_log_prob_TNH.sum(dim=2)
            assert torch.allclose(told_TN, rollout.log_prob_TN, atol=RATIO_TOLERANCE), (
                "what the heads added is not in this rollout"
            )
        learning_rate = config.learning_rate * (1 - progress)
        entropy_coef = config.entropy_coef + (config.entropy_final - config.entropy_coef) * progress
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        raw, rollout, unit = rollout, self._scaled(rollout), self.unit
        before = look(self.network, rollout)
        # All rows at once: minibatches see a part of them before the policy moves.
        error = check_replay(rollout, torch.arange(rollout.num_hosts), before.joint_TN - rollout.log_prob_TN)
        targets = self._targets(rollout)
        learned, dropped, first_error = self._passes(rollout, targets, entropy_coef, generator)
        self.updates += 1
        after = look(self.network, rollout)
        self._follow(raw)
        log_ratio_TN = after.joint_TN - rollout.log_prob_TN
        chosen_TN = ~rollout.forced_TN
        skipped = config.epochs * config.minibatches - len(learned) - dropped
        return UpdateStats(
            **{
                name: float(np.mean([numbers.get(name, math.nan) for numbers in learned])) if learned else math.nan
                for name in ("policy_loss", "value_loss", "entropy", "grad_norm", "grad_clipped", "contribution_loss")
            },
            kl=float(kl_estimate(log_ratio_TN, chosen_TN)),
            clip_fraction=float(clip_fraction(log_ratio_TN, chosen_TN, clip=config.clip)),
            explained_variance=targets.explained_variance,
            contribution_r2=self._foresight(before, targets),
            first_ratio_error=max(error, first_error),
            learning_rate=learning_rate,
            entropy_coef=entropy_coef,
            minibatches_skipped=float(skipped),
            minibatches_nonfinite=float(dropped),
            forced_fraction=float(rollout.forced_TN.float().mean()),
            diagnostics=self._diagnose(before, after, raw, learned, unit=unit, skipped=skipped),
        )

    def _passes(
        self, rollout: Rollout, targets: Targets, entropy_coef: float, generator: torch.Generator
    ) -> tuple[list[dict[str, float]], int, float]:
        """Learns minibatch by minibatch, until the policy has gone far enough.

        Returns:
            The numbers of each step, how many minibatches were dropped, and the largest |ln ratio| of the first.
        """
        config = self.config
        lived, taught = (rollout.folded(config.chunk), targets.folded(config.chunk)) if config.chunk else (rollout, targets)
        learned: list[dict[str, float]] = []
        dropped, first_error = 0, math.nan
        for epoch in range(config.epochs):
            if lived.chunks > 1:
                lived.initial_state = chunk_starts(self.network, rollout, config.chunk)
            for index, rows_M in enumerate(lived.minibatches(config.minibatches, generator)):
                log_ratio_TM, terms = self._losses(lived, taught, rows_M)
                if epoch == index == 0:  # once more, since chunks start with states of their own
                    first_error = check_replay(lived, rows_M, log_ratio_TM)
                if float(kl_estimate(log_ratio_TM.detach(), ~lived.forced_TN[:, rows_M])) > config.target_kl:
                    return learned, dropped, first_error
                numbers = self._step(terms, entropy_coef)
                learned += numbers
                dropped += not numbers
                if self.strikes >= STRIKES:
                    place = first_sick(self.network, lived, taught, rows_M)
                    raise FloatingPointError(sentence(terms, gradient_norms(self.parts), place, self.strikes))
        return learned, dropped, first_error

    def _foresight(self, before: Look, targets: Targets) -> float:
        """R^2 of the contributions that were predicted before anything was learned from this rollout; NaN where none were."""
        if before.contribution_BS is None or targets.contributions is None:
            return math.nan
        return r_squared(before.contribution_BS, *(tensor_TNS.flatten(0, 1) for tensor_TNS in targets.contributions))

    def _diagnose(
        self, before: Look, after: Look, rollout: Rollout, learned: list[dict[str, float]], *, unit: float, skipped: int
    ) -> Diagnostics:
        """What the update did: from the policy before to that after it, by steps of which `learned` holds the numbers.

        Args:
            rollout: with rewards and values as they were paid and told.
            unit: what they were divided by [reward].
            skipped: minibatches left out.
        """
        config, ends = self.config, (rollout.terminated_TN, rollout.truncated_TN)
        norms = {part: [numbers[f"grad_norm_{part}"] for numbers in learned] for part in self.parts}
        return diagnose(
            before,
            after,
            rollout,
            returns_TN=returns_to_go(rollout.reward_TN, rollout.next_value_TN, *ends, gamma=config.gamma),
            # Advantages are divided by no less: returns that differ less than this count as equal for the policy too.
            floor=(unit * config.advantage_floor) ** 2,
            target_kl=config.target_kl,
            grad_norm={part: float(np.mean(steps)) for part, steps in norms.items() if steps},
            skipped_fraction=skipped / (config.epochs * config.minibatches),
            blueprint_names=self.spec.blueprint_names,
        )

    def _scaled(self, rollout: Rollout) -> Rollout:
        """The rollout with rewards and values in units of the deviation of returns, as it stood when the rollout began."""
        if not self.config.reward_scaling:
            return rollout
        scaled = copy(rollout)
        for name in ("reward_TN", "value_TN", "successor_value_TN", "last_value_N"):
            setattr(scaled, name, getattr(rollout, name) / self.unit)
        return scaled

    def _follow(self, raw: Rollout) -> None:
        """Takes the returns of a rollout into the scale of rewards; what the critic knows moves with it."""
        if self.config.reward_scaling:
            before, ends_TN = self.unit, raw.terminated_TN | raw.truncated_TN
            self.returns = self.returns.merged(Moments.of(discounted_sums(raw.reward_TN, ends_TN, gamma=self.config.gamma)))
            self.popart.rescale(before / self.unit, self.network.value)

    def _targets(self, rollout: Rollout) -> Targets:
        """What the whole rollout teaches, before any host is dealt: twins need not share a minibatch.

        The scale of returns follows the new ones.
        """
        config, ends = self.config, (rollout.terminated_TN, rollout.truncated_TN)
        next_value_TN = rollout.next_value_TN
        advantage_TN = gae(rollout.reward_TN, rollout.value_TN, next_value_TN, *ends, gamma=config.gamma, lam=config.lam)
        lambda_return_TN = advantage_TN + rollout.value_TN
        mc_return_TN = returns_to_go(rollout.reward_TN, next_value_TN, *ends, gamma=config.gamma)
        self.popart.update(lambda_return_TN, self.network.value)
        advantage_TN = against(config.baseline, advantage_TN, mc_return_TN, config.twins)
        chosen_TN = ~rollout.forced_TN
        mean = masked_mean(advantage_TN, chosen_TN)
        deviation = masked_mean((advantage_TN - mean).square(), chosen_TN).sqrt()
        seen = rollout.seen
        found = contributions(rollout, self.spec.slot_feature_names) if config.aux_coef else None
        return Targets(
            advantage_TN=(advantage_TN - mean) / deviation.clamp(min=config.advantage_floor),
            value_TN=self.popart.normalize(lambda_return_TN),
            # Lambda returns contain the values themselves and would flatter the critic.
            explained_variance=explained_variance(rollout.value_TN, mc_return_TN),
            # Asked once for all minibatches: a choice that some of them lack adds exactly nothing there.
            free=free_parameters(seen.legal_slots.flatten(0, 1), seen.legal_values.flatten(0, 1), self.spec.head_sizes),
            contributions=found,
        )

    def _losses(self, rollout: Rollout, targets: Targets, rows_M: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """See `objective.losses`."""
        return losses(self.network, rollout, targets, rows_M, clip=self.config.clip, surrogate=self.config.surrogate)

    def _step(self, terms: dict[str, Tensor], entropy_coef: float) -> list[dict[str, float]]:
        """One gradient step; returns its numbers, or nothing where one of them was not finite and the step was left out."""
        loss = terms["policy_loss"] + self.config.value_coef * terms["value_loss"] - entropy_coef * terms["entropy"]
        if "contribution_loss" in terms:
            loss = loss + self.config.aux_coef * terms["contribution_loss"]
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        norms = gradient_norms(self.parts)
        norm = torch.tensor(math.hypot(*norms.values()))
        numbers = {name: float(term.detach()) for name, term in terms.items()} | {"grad_norm": float(norm)}
        if not all(map(math.isfinite, numbers.values())):
            self.strikes += 1
            return []
        nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
        self.optimizer.step()
        self.strikes = 0
        parts = {f"grad_norm_{part}": length for part, length in norms.items()}
        return [numbers | parts | {"grad_clipped": float(numbers["grad_norm"] > self.config.max_grad_norm)}]

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """All that learning goes on from: tensors and primitives only."""
        return {
            "names": self._names(),
            "network": self.network.state_dict(),
            "popart": self.popart.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": {"updates": self.updates, "strikes": self.strikes},
            "returns": list(self.returns),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave; without slot identity also where hosts have other slots, and any number of them.

        Raises:
            ValueError: it belongs to a policy that sees or does other things.
        """
        for what, names in self._names().items():
            trained = state["names"][what]
            if trained != names and (what != "slots" or self.config.slot_identity):
                was, here = ", ".join(trained), ", ".join(names)
                raise ValueError(f"this policy was trained with the {what} {was}, and here they are {here}: {_REMEDY[what]}")
        self.network.load_state_dict(state["network"])
        self.popart.load_state_dict(state["popart"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.strikes = state["counters"]["updates"], state["counters"]["strikes"]
        self.returns = Moments(*state.get("returns", ()))  # checkpoints from before rewards could be scaled have none

    def _names(self) -> dict[str, list[str]]:
        """What the inputs and outputs mean, in order."""
        spec = self.spec
        return {
            "slots": list(spec.slot_names),
            "blueprints": list(spec.blueprint_names),
            "features": list(spec.feature_names),
            "slot features": list(spec.slot_feature_names),
        }
