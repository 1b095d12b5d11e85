"""Statistics of an update: how it changed the policy, and how well the critic predicted. They do not affect training.

Metrics are returned by name; the tag is `policy/` plus the name. esper/telemetry/tags.py lists the meaning of every tag.
"""

# T steps, N hosts, B = T * N decisions, H heads, R units of the core, Q quarters of predictions

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.agent.ppo.losses import clip_fraction, kl_estimate, masked_mean
from esper.agent.ppo.network import Outputs, PolicyNetwork
from esper.buffer.rollout import Rollout
from esper.env.actions import Head

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
"""Standard deviation of a unit's output over all steps and hosts, below which the unit is dead."""


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


def calibration(value: Tensor, target: Tensor) -> dict[str, float]:
    """Compute slope and intercept of targets regressed on values; empty if the values do not vary."""
    assert value.shape == target.shape
    value, target = value.double(), target.double()
    centred = value - value.mean()
    spread = centred.square().mean()
    if spread <= 0:
        return {}
    slope = float((centred * (target - target.mean())).mean() / spread)
    return {"value_slope": slope, "value_intercept": float(target.mean()) - slope * float(value.mean())}


def error_by_quarter(value: Tensor, target: Tensor) -> dict[str, float]:
    """Compute the mean of target minus value in each quarter of the entries, ordered by value; empty below four entries."""
    assert value.shape == target.shape
    value, target = value.flatten(), target.flatten()
    if value.numel() < len(QUARTERS):
        return {}
    order = value.argsort(stable=True)
    errors_Q = (target - value)[order].tensor_split(len(QUARTERS))
    return {f"value_error_{name}": float(error.double().mean()) for name, error in zip(QUARTERS, errors_Q, strict=True)}


# ---- the policy


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyEvaluation:
    """The outputs of a policy on the actions of a rollout."""

    log_prob_BH: Tensor
    """Log-probability of each head's value."""
    entropy_BH: Tensor
    """Entropy of each head [nats]."""
    choices_BH: Tensor
    """Number of legal values; 0 for heads without effect."""
    joint_TN: Tensor
    """Log-probability of whole actions."""
    core: dict[str, float]
    """See `core_health`; empty if the policy has no LSTM."""


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
        core=core_health(network.core, outputs, rollout.is_init_TN) if isinstance(network.core, nn.LSTM) else {},
    )


def ratio_factors(log_ratio: Tensor, mask: Tensor, suffix: str = "") -> dict[str, float]:
    """Compute the maximum and 95 % quantile of max(ratio, 1 / ratio) over the marked entries; empty if none is marked."""
    assert log_ratio.shape == mask.shape
    factors = log_ratio[mask].abs().double().exp()
    if not factors.numel():
        return {}
    return {f"ratio_max{suffix}": float(factors.max()), f"ratio_q95{suffix}": float(factors.quantile(0.95))}


def head_stats(before: PolicyEvaluation, after: PolicyEvaluation) -> dict[str, float]:
    """Compute the statistics of every head from evaluations before and after an update.

    Each statistic is a mean over the learnable steps of the head, in which it had a choice and an effect on the action.
    """
    stats: dict[str, float] = {}
    for head, name in HEADS.items():
        choices_B = after.choices_BH[:, head]
        learnable_B = choices_B > 1
        stats[f"learnable_{name}"] = float(learnable_B.float().mean())
        if not learnable_B.any():
            continue
        entropy_B, log_ratio_B = after.entropy_BH[:, head], after.log_prob_BH[:, head] - before.log_prob_BH[:, head]
        stats[f"entropy_{name}"] = float(masked_mean(entropy_B, learnable_B))
        stats[f"entropy_share_{name}"] = float(masked_mean(entropy_B / choices_B.clamp(min=2).log(), learnable_B))
        stats |= ratio_factors(log_ratio_B, learnable_B, f"_{name}")
        stats[f"kl_{name}"] = float(kl_estimate(log_ratio_B, learnable_B))
    return stats


def top_blueprint_share(rollout: Rollout, choices_BH: Tensor) -> float:
    """Compute the share of the most frequent blueprint among choices between several; NaN without such choices."""
    blueprint_B = rollout.action_TNH.flatten(0, 1)[:, Head.BLUEPRINT][choices_BH[:, Head.BLUEPRINT] > 1]
    return float(torch.bincount(blueprint_B).max()) / len(blueprint_B) if len(blueprint_B) else float("nan")


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
    """Compute the norm of the current gradient of each part; 0 if it has none."""
    gradients = {part: [p.grad.flatten() for p in parameters if p.grad is not None] for part, parameters in parts.items()}
    # Gradients are many and small: concatenated, each part costs one reduction.
    return {part: float(torch.linalg.vector_norm(torch.cat(pieces))) if pieces else 0.0 for part, pieces in gradients.items()}


@torch.no_grad()
def core_health(core: nn.LSTM, outputs: Outputs, is_init_TN: Tensor) -> dict[str, float]:
    """Compute the saturation and dead units of an LSTM, with gates recomputed as i, f, g, o = gates(x_t, h_{t-1})."""
    h_TNR, h_BR = outputs.core_output_TNR, outputs.core_output_TNR.flatten(0, 1)
    previous_TNR = torch.cat([torch.zeros_like(h_TNR[:1]), h_TNR[:-1]]) * ~is_init_TN[:, :, None]
    bias = core.get_parameter("bias_ih_l0") + core.get_parameter("bias_hh_l0")
    sums = nn.functional.linear(outputs.core_input_TNR, core.get_parameter("weight_ih_l0"), bias)
    sums += nn.functional.linear(previous_TNR, core.get_parameter("weight_hh_l0"))
    enter, forget, _, leave = sums.sigmoid().chunk(4, dim=-1)
    gates = torch.cat([enter, forget, leave])
    return {
        "core_h": float(h_BR.abs().mean()),
        "core_saturated": float((h_BR.abs() > SATURATED).float().mean()),
        "core_gates_saturated": float(((gates - 0.5).abs() > SATURATED - 0.5).float().mean()),
        "core_dead": float((h_BR.std(dim=0, correction=0) < DEAD).float().mean()),
    }


def diagnose(
    before: PolicyEvaluation, after: PolicyEvaluation, rollout: Rollout, *, mc_return_TN: Tensor, clip: float, floor: float
) -> dict[str, float]:
    """Compute the statistics of an update. Statistics that could not be measured are NaN or missing.

    Args:
        before: evaluation of the policy that acted.
        after: evaluation of the updated policy.
        rollout: the rollout on which both were evaluated.
        mc_return_TN: Monte-Carlo returns [reward]. Lambda returns contain the values themselves and would flatter the critic.
        clip: half-width of the clipping interval.
        floor: smallest variance of returns that matters [reward^2].
    """
    unforced_TN, log_ratio_TN = ~rollout.forced_TN, after.joint_TN - rollout.log_prob_TN
    return {
        "kl": float(kl_estimate(log_ratio_TN, unforced_TN)),
        "clip_fraction": float(clip_fraction(log_ratio_TN, unforced_TN, clip=clip)),
        "forced_fraction": float(rollout.forced_TN.float().mean()),
        "explained_variance": explained_variance(rollout.value_TN, mc_return_TN),
        "explained_variance_floored": explained_variance(rollout.value_TN, mc_return_TN, floor=floor),
        "top_blueprint_share": top_blueprint_share(rollout, after.choices_BH),
        **calibration(rollout.value_TN, mc_return_TN),
        **error_by_quarter(rollout.value_TN, mc_return_TN),
        **ratio_factors(log_ratio_TN, unforced_TN),
        **head_stats(before, after),
        **after.core,
    }
