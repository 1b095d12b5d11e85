"""Recurrent proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with masked, factored actions."""

# T steps, N hosts, H heads, M hosts of a minibatch, R recurrent units

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.agent.base import BoolArray, Decision, FloatArray, State
from esper.agent.gae import against, gae, returns_to_go
from esper.agent.losses import clip_fraction, clipped_surrogate, explained_variance, kl_estimate, masked_mean, value_loss
from esper.agent.network import PolicyNetwork
from esper.agent.normalize import PopArt
from esper.buffer import Rollout, Seen
from esper.env.actions import EnvSpec, Observation
from esper.seeding import torch_stream

if TYPE_CHECKING:
    from esper.agent.ppo import PPOConfig

RATIO_TOLERANCE = 1e-4
"""How far the replay of a rollout may be from it before the first step, in |ln ratio|: rounding is a hundred times smaller."""
STRIKES = 3
"""Minibatches in a row with numbers that are not finite, before the run ends."""


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
    """Largest |ln ratio| of the first minibatch, before any step: rounding, or the replay is not what was lived."""
    grad_norm: float
    """Norm of the gradient before it was clipped; mean."""
    learning_rate: float
    """Of this update."""
    entropy_coef: float
    """Of this update."""
    minibatches_skipped: float
    """Minibatches not learned from, since the policy had gone far enough or a number was not finite [count]."""
    forced_fraction: float
    """Share of steps at which waiting was the only legal thing; the policy learns nothing there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Targets:
    """What a rollout teaches."""

    advantage_TN: Tensor
    """Normalised over the steps at which there was a choice."""
    value_TN: Tensor
    """Lambda returns in the critic's scale."""
    explained_variance: float


class PPO:
    """A recurrent policy and its critic, and how they learn."""

    def __init__(self, config: "PPOConfig", spec: EnvSpec, *, seed: int) -> None:
        self.config, self.spec = config, spec
        self.network = PolicyNetwork(
            spec,
            hidden=config.hidden,
            slot_width=config.slot_width,
            blueprint_width=config.blueprint_width,
            slot_identity=config.slot_identity,
            wait_bias=config.wait_bias,
            generator=torch_stream(seed, "policy_init"),
        )
        self.popart = PopArt(step=config.popart_step)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, eps=1e-5)
        self.updates = 0
        """Updates so far."""
        self.strikes = 0
        """Minibatches in a row, up to now, with numbers that were not finite."""

    # ---- acting

    def start(self, num_hosts: int) -> State:
        """Zeros."""
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
        for what, numbers in (("probabilities", distribution.op_BO), ("values", outputs.value_B)):
            if not bool(torch.isfinite(numbers).all()):
                raise FloatingPointError(f"the policy's {what} are not finite: look at observations and agent.learning_rate")
        action_NH = distribution.mode() if greedy else distribution.sample(torch.as_tensor(uniform))
        return Decision(
            action=action_NH.numpy(),
            log_prob=distribution.log_prob(action_NH).numpy(),
            value=self.popart.denormalize(outputs.value_B).numpy(),
            state=state,
        )

    @torch.no_grad()
    def value(self, observation: Observation, state: State, *, is_init: BoolArray | None = None) -> FloatArray:
        """What the critic expects from here on `[N]` [reward]. Draws nothing and changes nothing."""
        fresh = np.zeros(len(observation.features), dtype=np.bool_) if is_init is None else is_init
        outputs, _ = self.network.step(Seen.of(observation), state, torch.as_tensor(fresh))
        return self.popart.denormalize(outputs.value_B).numpy()

    # ---- learning

    def update(self, rollout: Rollout, *, progress: float, generator: torch.Generator) -> UpdateStats:
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
        learning_rate = config.learning_rate * (1 - progress)
        entropy_coef = config.entropy_coef + (config.entropy_final - config.entropy_coef) * progress
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        targets = self._targets(rollout)
        learned: list[dict[str, float]] = []
        first_error, far_enough = float("nan"), False
        for epoch in range(config.epochs):
            for index, rows_M in enumerate(rollout.minibatches(config.minibatches, generator)):
                log_ratio_TM, terms = self._losses(rollout, targets, rows_M)
                if epoch == index == 0:
                    first_error = self._check_replay(rollout, rows_M, log_ratio_TM)
                far_enough = float(kl_estimate(log_ratio_TM.detach(), ~rollout.forced_TN[:, rows_M])) > config.target_kl
                if far_enough:
                    break
                learned += self._step(terms, entropy_coef)
            if far_enough:
                break
        self.updates += 1
        with torch.no_grad():
            log_ratio_TN, _ = self._losses(rollout, targets, torch.arange(rollout.num_hosts))
        chosen_TN = ~rollout.forced_TN
        return UpdateStats(
            **{
                name: float(np.mean([terms[name] for terms in learned])) if learned else float("nan")
                for name in ("policy_loss", "value_loss", "entropy", "grad_norm")
            },
            kl=float(kl_estimate(log_ratio_TN, chosen_TN)),
            clip_fraction=float(clip_fraction(log_ratio_TN, chosen_TN, clip=config.clip)),
            explained_variance=targets.explained_variance,
            first_ratio_error=first_error,
            learning_rate=learning_rate,
            entropy_coef=entropy_coef,
            minibatches_skipped=float(config.epochs * config.minibatches - len(learned)),
            forced_fraction=float(rollout.forced_TN.float().mean()),
        )

    def _targets(self, rollout: Rollout) -> _Targets:
        """Advantages, value targets, and how well the critic knew; the scale of returns follows the new ones."""
        config, ends = self.config, (rollout.terminated_TN, rollout.truncated_TN)
        next_value_TN = rollout.next_value_TN
        advantage_TN = gae(rollout.reward_TN, rollout.value_TN, next_value_TN, *ends, gamma=config.gamma, lam=config.lam)
        lambda_return_TN = advantage_TN + rollout.value_TN
        lived_TN = returns_to_go(rollout.reward_TN, next_value_TN, *ends, gamma=config.gamma)
        self.popart.update(lambda_return_TN, self.network.value)
        advantage_TN = against(config.baseline, advantage_TN, lived_TN, config.twins)
        chosen_TN = ~rollout.forced_TN
        mean = masked_mean(advantage_TN, chosen_TN)
        deviation = masked_mean((advantage_TN - mean).square(), chosen_TN).sqrt()
        return _Targets(
            advantage_TN=(advantage_TN - mean) / deviation.clamp(min=config.advantage_floor),
            value_TN=self.popart.normalize(lambda_return_TN),
            # Lambda returns contain the values themselves and would flatter the critic.
            explained_variance=explained_variance(rollout.value_TN, lived_TN),
        )

    def _losses(self, rollout: Rollout, targets: _Targets, rows_M: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Replays some hosts from their start: log-ratios `[T, M]`, and the terms of the objective by name."""
        state = rollout.initial_state or self.start(rollout.num_hosts)
        state = {name: tensor[rows_M] for name, tensor in state.items()}
        outputs, _ = self.network.unroll(rollout.seen[:, rows_M], state, rollout.is_init_TN[:, rows_M])
        shape = (rollout.num_steps, len(rows_M))
        log_prob_TM = outputs.distribution.log_prob(rollout.action_TNH[:, rows_M].flatten(0, 1)).view(shape)
        log_ratio_TM = log_prob_TM - rollout.log_prob_TN[:, rows_M]
        chosen_TM = ~rollout.forced_TN[:, rows_M]
        terms = {
            "policy_loss": clipped_surrogate(log_ratio_TM, targets.advantage_TN[:, rows_M], chosen_TM, clip=self.config.clip),
            "value_loss": value_loss(outputs.value_B.view(shape), targets.value_TN[:, rows_M]),
            "entropy": masked_mean(outputs.distribution.entropy().view(shape), chosen_TM),
        }
        return log_ratio_TM, terms

    def _check_replay(self, rollout: Rollout, rows_M: Tensor, log_ratio_TM: Tensor) -> float:
        """Largest |ln ratio|: before the first step, policy and rollout are the same policy, and must say the same."""
        error_TM = log_ratio_TM.detach().abs()
        worst = float(error_TM.max())
        if worst > RATIO_TOLERANCE:
            step, column = divmod(int(error_TM.argmax()), len(rows_M))
            host = int(rows_M[column])
            lived, now = float(rollout.log_prob_TN[step, host]), float(log_ratio_TM.detach()[step, column])
            raise RuntimeError(
                f"the policy does not reproduce its rollout: at step {step} of host {host}, action "
                f"{rollout.action_TNH[step, host].tolist()} had log-probability {lived:.6f} and has {lived + now:.6f}; "
                "weights, masks, recurrent state or resets differ from those of the rollout"
            )
        return worst

    def _step(self, terms: dict[str, Tensor], entropy_coef: float) -> list[dict[str, float]]:
        """One gradient step; returns its numbers, or nothing where one of them was not finite and the step was left out."""
        loss = terms["policy_loss"] + self.config.value_coef * terms["value_loss"] - entropy_coef * terms["entropy"]
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm)
        numbers = {name: float(term.detach()) for name, term in terms.items()} | {"grad_norm": float(norm)}
        sick = [name for name, number in numbers.items() if not math.isfinite(number)]
        if not sick:
            self.optimizer.step()
            self.strikes = 0
            return [numbers]
        self.strikes += 1
        if self.strikes >= STRIKES:
            raise FloatingPointError(
                f"{', '.join(sick)} not finite in {self.strikes} minibatches in a row: lower agent.learning_rate, "
                "or look at the rewards and observations"
            )
        return []

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """All that learning goes on from: tensors and primitives only."""
        return {
            "names": self._names(),
            "network": self.network.state_dict(),
            "popart": self.popart.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": {"updates": self.updates, "strikes": self.strikes},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave.

        Raises:
            ValueError: it belongs to a policy that sees or does other things.
        """
        for what, names in self._names().items():
            if state["names"][what] != names:
                raise ValueError(
                    f"this policy was trained with the {what} {', '.join(state['names'][what])}, "
                    f"and here they are {', '.join(names)}: use the config that it was trained with"
                )
        self.network.load_state_dict(state["network"])
        self.popart.load_state_dict(state["popart"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates, self.strikes = state["counters"]["updates"], state["counters"]["strikes"]

    def _names(self) -> dict[str, list[str]]:
        """What the inputs and outputs mean, in order."""
        spec = self.spec
        return {
            "slots": list(spec.slot_names),
            "blueprints": list(spec.blueprint_names),
            "features": list(spec.feature_names),
            "slot features": list(spec.slot_feature_names),
        }
