"""Statistics of an update: what it did to the policy, and how well the critic predicted. Nothing here trains anything."""

# T steps, N hosts, B = T * N decisions, H heads, R units of the core, Q quarters of predictions

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from esper.agent.ppo.losses import kl_estimate, masked_mean
from esper.agent.ppo.network import Outputs, PolicyNetwork
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Op

HEADS = {head: head.name.lower() for head in Head}
"""Action heads by their names in metrics."""
QUARTERS = ("lowest", "low", "high", "highest")
"""Quarters of the decisions, ordered by predicted value."""
PARTS: dict[str, tuple[str, ...]] = {
    "encoder": ("blueprint", "slot_in", "identity", "depth", "slot_out", "mix", "norm"),
    "core": ("core",),
    "heads": ("op", "slot_key", "core_key", "slot_score", "op_key", "parameter"),
    "critic": ("value_in", "value"),
}
"""Parts of the policy network, with the names of their layers in `PolicyNetwork`."""
SATURATED = 0.99
"""Absolute output above which a unit is saturated; a gate is saturated within 1 - this of 0 or 1."""
DEAD = 0.01
"""Standard deviation of its output, over all steps and hosts, below which a unit is dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadStats:
    """Statistics of one action head over its learnable steps: those with a choice in a head that mattered for the action."""

    steps: int
    """Number of learnable steps."""
    learnable: float
    """Learnable share of all steps."""
    entropy: float = float("nan")
    """Mean entropy, given the operation and the slot, after the update [nats]."""
    entropy_share: float = float("nan")
    """Mean share of the largest possible entropy of the legal values: 1 is uniform, 0 is deterministic."""
    ratio_max: float = float("nan")
    """Largest change of the probability of a chosen value by the update, up or down, as a factor >= 1."""
    ratio_q95: float = float("nan")
    """95 % quantile of this factor."""
    kl: float = float("nan")
    """Estimated KL divergence of the updated head from the one that acted, mean over learnable steps [nats]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreHealth:
    """Activations of an LSTM over a rollout, after the update."""

    h: float
    """Mean absolute output, below 1."""
    saturated: float
    """Share of outputs above 0.99 in absolute value."""
    gates_saturated: float
    """Share of input, forget and output gates within 0.01 of 0 or 1."""
    dead: float
    """Share of units whose output hardly varies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostics:
    """Detailed statistics of an update. What could not be measured is NaN, or missing from a dict."""

    steps: int
    """Number of decisions in the rollout."""
    explained_variance_floored: float
    """Explained variance with the variance of returns floored at agent.advantage_floor squared."""
    value_slope: float
    """Slope of returns regressed on predicted values: 1 is calibrated, below 1 the predictions spread too far."""
    value_intercept: float
    """Intercept of this regression [reward]."""
    value_error: dict[str, float]
    """Mean of return minus prediction by quarter of the decisions, ordered by prediction [reward]."""
    heads: dict[Head, HeadStats]
    ratio_max: float
    """Largest change of the probability of a whole action, up or down, as a factor >= 1."""
    ratio_q95: float
    """95 % quantile of this factor."""
    kl_of_target: float
    """KL divergence after the update, as a multiple of agent.target_kl."""
    skipped_fraction: float
    """Share of the minibatches skipped by the early stop at agent.target_kl."""
    grad_norm: dict[str, float]
    """Gradient norm of each part before clipping, mean over gradient steps."""
    core: CoreHealth | None
    """None if the policy has no LSTM."""
    germinations: int
    """Number of decisions that chose one of several blueprints."""
    top_blueprint: str
    """Blueprint chosen most often in them; empty if there were none."""
    top_blueprint_share: float
    """Its share of these decisions."""

    def metrics(self) -> dict[str, float]:
        """Return flat values by name, for telemetry."""
        plain = ("explained_variance_floored", "value_slope", "value_intercept", "ratio_max", "ratio_q95", "kl_of_target")
        values: dict[str, float] = {name: getattr(self, name) for name in plain}
        values["top_blueprint_share"] = self.top_blueprint_share
        values |= {f"value_error_{quarter}": error for quarter, error in self.value_error.items()}
        values |= {f"grad_norm_{part}": norm for part, norm in self.grad_norm.items()}
        for head, stats in self.heads.items():
            names = [entry.name for entry in fields(stats) if entry.name != "steps"]
            values |= {f"{name}_{HEADS[head]}": getattr(stats, name) for name in names}
        if self.core is not None:
            values |= {f"core_{entry.name}": getattr(self.core, entry.name) for entry in fields(self.core)}
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateStats:
    """Statistics of one update. Means are over gradient steps."""

    policy_loss: float
    """Mean clipped surrogate loss."""
    value_loss: float
    """Mean loss of the critic, in its normalised scale."""
    entropy: float
    """Mean entropy of the policy at unforced steps [nats]."""
    kl: float
    """Estimated KL(policy that acted || updated policy) at unforced steps [nats]."""
    clip_fraction: float
    """Share of unforced steps whose ratio is outside the clipping interval, after the update."""
    explained_variance: float
    """Share of the variance of Monte-Carlo returns explained by the values given while acting; NaN if returns do not vary."""
    first_ratio_error: float
    """Largest |ln ratio| before the first gradient step; above rounding, the replay differs from the rollout."""
    grad_norm: float
    """Mean gradient norm before clipping."""
    grad_clipped: float
    """Share of gradient steps whose gradient exceeded agent.max_grad_norm."""
    learning_rate: float
    """Learning rate of this update."""
    entropy_coef: float
    """Weight of the entropy bonus in this update."""
    minibatches_skipped: float
    """Minibatches skipped by the early stop at agent.target_kl [count]."""
    minibatches_nonfinite: float
    """Minibatches dropped because of a non-finite loss or gradient [count]."""
    forced_fraction: float
    """Share of forced steps, at which waiting was the only legal operation; the policy learns nothing there."""
    diagnostics: Diagnostics
    """Detailed statistics by head and by part of the network."""

    def metrics(self) -> dict[str, float]:
        """Return flat values by name, for telemetry."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "diagnostics"}
        return plain | self.diagnostics.metrics()


# ---- the critic


def explained_variance(value: Tensor, target: Tensor, *, floor: float = 0.0) -> float:
    """Compute 1 - Var(target - value) / max(Var(target), floor), with population variances; NaN if the denominator is 0.

    1 is a perfect critic, 0 one that predicts a constant. If targets hardly vary, the ratio of two tiny variances can be any
    large negative number; the floor, in squared units of the targets, is the variance below which they count as equal.
    """
    assert value.shape == target.shape
    target = target.double()
    spread = target.var(correction=0).clamp(min=floor)
    return float(1 - (target - value.double()).var(correction=0) / spread) if spread > 0 else float("nan")


def calibration(value: Tensor, target: Tensor) -> tuple[float, float]:
    """Compute slope and intercept of targets regressed on values; NaN if the values do not vary."""
    assert value.shape == target.shape
    value, target = value.double(), target.double()
    centred = value - value.mean()
    spread = centred.square().mean()
    if spread <= 0:
        return float("nan"), float("nan")
    slope = float((centred * (target - target.mean())).mean() / spread)
    return slope, float(target.mean()) - slope * float(value.mean())


def error_by_quarter(value: Tensor, target: Tensor) -> dict[str, float]:
    """Compute the mean of target minus value in each quarter of the entries, ordered by value; empty below four entries."""
    assert value.shape == target.shape
    value, target = value.flatten(), target.flatten()
    if value.numel() < len(QUARTERS):
        return {}
    order = value.argsort(stable=True)
    errors_Q = (target - value)[order].tensor_split(len(QUARTERS))
    return {name: float(error.double().mean()) for name, error in zip(QUARTERS, errors_Q, strict=True)}


# ---- the policy


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyEvaluation:
    """The outputs of a policy on the actions of a rollout."""

    log_prob_BH: Tensor
    """Log-probability of each head's value."""
    entropy_BH: Tensor
    """Entropy of each head [nats]."""
    choices_BH: Tensor
    """Number of legal values; 0 for heads that did not matter."""
    joint_TN: Tensor
    """Log-probability of whole actions."""
    core: CoreHealth | None
    """None if the policy has no LSTM."""


@torch.no_grad()
def evaluate_rollout(network: PolicyNetwork, rollout: Rollout) -> PolicyEvaluation:
    """Run a policy over the observations of a rollout and evaluate the actions taken there."""
    state = rollout.initial_state or network.start(rollout.num_hosts)
    outputs, _ = network.unroll(rollout.seen, state, rollout.is_init_TN)
    distribution, action_BH = outputs.distribution, rollout.action_TNH.flatten(0, 1)
    return PolicyEvaluation(
        log_prob_BH=distribution.head_log_probs(action_BH),
        entropy_BH=distribution.head_entropies(action_BH),
        choices_BH=distribution.head_choices(action_BH),
        joint_TN=distribution.log_prob(action_BH).view(rollout.num_steps, rollout.num_hosts),
        core=core_health(network.core, outputs, rollout.is_init_TN) if isinstance(network.core, nn.LSTM) else None,
    )


def ratio_factors(log_ratio: Tensor, mask: Tensor) -> tuple[float, float]:
    """Compute the maximum and 95 % quantile of max(ratio, 1 / ratio) over the marked entries; NaN if none is marked."""
    assert log_ratio.shape == mask.shape
    factors = log_ratio[mask].abs().double().exp()
    if not factors.numel():
        return float("nan"), float("nan")
    return float(factors.max()), float(factors.quantile(0.95))


def head_stats(before: PolicyEvaluation, after: PolicyEvaluation) -> dict[Head, HeadStats]:
    """Compute the statistics of every head from evaluations before and after an update."""
    stats: dict[Head, HeadStats] = {}
    for head in Head:
        choices_B = after.choices_BH[:, head]
        learnable_B = choices_B > 1
        steps, share = int(learnable_B.sum()), float(learnable_B.float().mean())
        if not steps:
            stats[head] = HeadStats(steps=0, learnable=0.0)
            continue
        entropy_B, log_ratio_B = after.entropy_BH[:, head], after.log_prob_BH[:, head] - before.log_prob_BH[:, head]
        ratio_max, ratio_q95 = ratio_factors(log_ratio_B, learnable_B)
        stats[head] = HeadStats(
            steps=steps,
            learnable=share,
            entropy=float(masked_mean(entropy_B, learnable_B)),
            entropy_share=float(masked_mean(entropy_B / choices_B.clamp(min=2).log(), learnable_B)),
            ratio_max=ratio_max,
            ratio_q95=ratio_q95,
            kl=float(kl_estimate(log_ratio_B, learnable_B)),
        )
    return stats


def top_blueprint(rollout: Rollout, choices_BH: Tensor, names: tuple[str, ...]) -> tuple[int, str, float]:
    """Return how often one of several blueprints was chosen, the one chosen most often, and its share of these choices."""
    action_BH = rollout.action_TNH.flatten(0, 1)
    germinated_B = (action_BH[:, Head.OP] == Op.GERMINATE) & (choices_BH[:, Head.BLUEPRINT] > 1)
    counts = torch.bincount(action_BH[germinated_B, Head.BLUEPRINT], minlength=len(names))
    total = int(counts.sum())
    return (total, names[int(counts.argmax())], float(counts.max()) / total) if total else (0, "", float("nan"))


# ---- the network


def parts_of(network: PolicyNetwork) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of each part."""
    part_of = {layer: part for part, layers in PARTS.items() for layer in layers}
    parts: dict[str, list[nn.Parameter]] = {part: [] for part in PARTS}
    for name, parameter in network.named_parameters():
        layer = name.partition(".")[0]
        assert layer in part_of, f"add layer {layer} of the policy network to PARTS"
        parts[part_of[layer]].append(parameter)
    return {part: parameters for part, parameters in parts.items() if parameters}


def gradient_norms(parts: Mapping[str, Iterable[nn.Parameter]]) -> dict[str, float]:
    """Compute the norm of the present gradient of each part; 0 if it has none."""
    gradients = {part: [p.grad.flatten() for p in parameters if p.grad is not None] for part, parameters in parts.items()}
    # Gradients are many and small: concatenated, each part costs one reduction.
    return {part: float(torch.linalg.vector_norm(torch.cat(pieces))) if pieces else 0.0 for part, pieces in gradients.items()}


@torch.no_grad()
def core_health(core: nn.LSTM, outputs: Outputs, is_init_TN: Tensor) -> CoreHealth:
    """Compute the health of an LSTM. Its gates follow from inputs and outputs: i, f, g, o = gates(x_t, h_{t-1})."""
    h_TNR, h_BR = outputs.core_output_TNR, outputs.core_output_TNR.flatten(0, 1)
    previous_TNR = torch.cat([torch.zeros_like(h_TNR[:1]), h_TNR[:-1]]) * ~is_init_TN[:, :, None]
    bias = core.get_parameter("bias_ih_l0") + core.get_parameter("bias_hh_l0")
    sums = nn.functional.linear(outputs.core_input_TNR, core.get_parameter("weight_ih_l0"), bias)
    sums += nn.functional.linear(previous_TNR, core.get_parameter("weight_hh_l0"))
    enter, forget, _, leave = sums.sigmoid().chunk(4, dim=-1)
    gates = torch.cat([enter, forget, leave])
    return CoreHealth(
        h=float(h_BR.abs().mean()),
        saturated=float((h_BR.abs() > SATURATED).float().mean()),
        gates_saturated=float(((gates - 0.5).abs() > SATURATED - 0.5).float().mean()),
        dead=float((h_BR.std(dim=0, correction=0) < DEAD).float().mean()),
    )


def diagnose(
    before: PolicyEvaluation,
    after: PolicyEvaluation,
    rollout: Rollout,
    *,
    mc_return_TN: Tensor,
    floor: float,
    target_kl: float,
    grad_norm: dict[str, float],
    skipped_fraction: float,
    blueprint_names: tuple[str, ...],
) -> Diagnostics:
    """Compute the diagnostics of one update.

    Args:
        before: evaluation of the policy that acted.
        after: evaluation of the updated policy.
        rollout: the rollout that both were evaluated on.
        mc_return_TN: Monte-Carlo returns [reward].
        floor: smallest variance of returns that matters [reward^2].
        target_kl: unit of `kl_of_target` [nats].
        grad_norm: gradient norms by part.
        skipped_fraction: share of skipped minibatches.
        blueprint_names: names of the blueprints in the order of their head.
    """
    unforced_TN, log_ratio_TN = ~rollout.forced_TN, after.joint_TN - rollout.log_prob_TN
    slope, intercept = calibration(rollout.value_TN, mc_return_TN)
    ratio_max, ratio_q95 = ratio_factors(log_ratio_TN, unforced_TN)
    germinations, top, top_share = top_blueprint(rollout, after.choices_BH, blueprint_names)
    return Diagnostics(
        steps=rollout.value_TN.numel(),
        explained_variance_floored=explained_variance(rollout.value_TN, mc_return_TN, floor=floor),
        value_slope=slope,
        value_intercept=intercept,
        value_error=error_by_quarter(rollout.value_TN, mc_return_TN),
        heads=head_stats(before, after),
        ratio_max=ratio_max,
        ratio_q95=ratio_q95,
        kl_of_target=float(kl_estimate(log_ratio_TN, unforced_TN)) / target_kl,
        skipped_fraction=skipped_fraction,
        grad_norm=grad_norm,
        core=after.core,
        germinations=germinations,
        top_blueprint=top,
        top_blueprint_share=top_share,
    )
