"""What an update did to the policy and what the critic knew, in numbers: pure functions, and two passes that learn nothing."""

# T steps, N hosts, B = T * N decisions, H heads, R units of the core, Q quarters of predictions, t steps of one stretch

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from esper.agent.ppo.losses import kl_estimate, masked_mean
from esper.agent.ppo.network import PolicyNetwork
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Op

HEADS = {head: head.name.lower() for head in Head}
"""Heads as metrics name them."""
QUARTERS = ("lowest", "low", "high", "highest")
"""Quarters of the decisions, by what the critic predicted."""
PARTS: dict[str, tuple[str, ...]] = {
    "encoder": ("blueprint", "slot_in", "identity", "depth", "slot_out", "mix", "norm"),
    "core": ("core",),
    "heads": ("op", "slot_key", "core_key", "slot_score", "op_key", "parameter"),
    "critic": ("value_in", "value"),
    "foresight": ("foresight",),
}
"""Parts of the policy network, and what `PolicyNetwork` calls their layers."""
SATURATED = 0.99
"""An output beyond this in absolute value, or a gate within 1 - this of 0 or 1, hardly passes a gradient on."""
DEAD = 0.01
"""A unit whose output deviates less than this from its mean, over all steps and hosts, tells the heads nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadStats:
    """One action head over the steps that it can learn from: those at which it mattered for what was done, and had a choice."""

    steps: int
    """Number of these steps."""
    learnable: float
    """Their share of all steps."""
    entropy: float = float("nan")
    """Mean entropy at these steps, given the operation and the slot, after the update [nats]."""
    entropy_share: float = float("nan")
    """Mean share of the largest entropy that the legal values allowed: 1 is chance, 0 has decided."""
    ratio_max: float = float("nan")
    """Largest change of a chosen value's probability by the update, as a factor of at least 1: up or down."""
    ratio_q95: float = float("nan")
    """95 % quantile of this factor."""
    kl: float = float("nan")
    """Estimated divergence of the updated head from the one that acted, mean over these steps [nats]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreHealth:
    """An LSTM over a rollout, after the update."""

    h: float
    """Mean absolute output, below 1."""
    c: float
    """Mean absolute cell state."""
    saturated: float
    """Share of outputs beyond 0.99 in absolute value."""
    gates_saturated: float
    """Share of input, forget and output gates that are within 0.01 of 0 or 1."""
    dead: float
    """Share of units whose output hardly ever changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostics:
    """How an update went. What could not be measured is NaN, or missing in a dict."""

    steps: int
    """Decisions of the rollout."""
    explained_variance_floored: float
    """As `explained_variance`, but of a variance of no less than agent.advantage_floor squared."""
    value_slope: float
    """Slope of returns on predicted values: 1 is calibrated, below 1 says that predictions spread too far."""
    value_intercept: float
    """Return where the prediction is 0, by the same line [reward]."""
    value_error: dict[str, float]
    """Mean of return less prediction in each quarter of the decisions, ordered by prediction [reward]."""
    heads: dict[Head, HeadStats]
    ratio_max: float
    """Largest change of a whole action's probability, as a factor of at least 1: up or down."""
    ratio_q95: float
    """95 % quantile of this factor."""
    kl_of_target: float
    """KL after the update, in units of agent.target_kl."""
    skipped_fraction: float
    """Share of the minibatches left out, since the policy had gone far enough."""
    grad_norm: dict[str, float]
    """Norm of the gradient of each part before clipping, mean over the minibatches learned from."""
    core: CoreHealth | None
    """None where the policy has no LSTM."""
    germinations: int
    """How often a blueprint was chosen where there were several."""
    top_blueprint: str
    """The one chosen most often; empty where none was."""
    top_blueprint_share: float
    """Its share."""

    def metrics(self) -> dict[str, float]:
        """Flat values by name, as telemetry wants them."""
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


# ---- the critic


def floored_explained_variance(value: Tensor, target: Tensor, *, floor: float) -> float:
    """1 - Var(target - value) / max(Var(target), floor), with variances of the population.

    Where targets hardly vary, the plain form divides one small number by a smaller one and can be any large negative number. The
    floor says which variance is small, in the unit of the targets squared; above it the two forms are the same.
    """
    assert value.shape == target.shape
    target = target.double()
    return float(1 - (target - value.double()).var(correction=0) / target.var(correction=0).clamp(min=floor))


def calibration(value: Tensor, target: Tensor) -> tuple[float, float]:
    """Slope and intercept of the least-squares line of targets on values; NaN where the values do not vary."""
    assert value.shape == target.shape
    value, target = value.double(), target.double()
    centred = value - value.mean()
    spread = centred.square().mean()
    if spread <= 0:
        return float("nan"), float("nan")
    slope = float((centred * (target - target.mean())).mean() / spread)
    return slope, float(target.mean()) - slope * float(value.mean())


def error_by_quarter(value: Tensor, target: Tensor) -> dict[str, float]:
    """Mean of target less value in each quarter of the entries, ordered by value. Needs four entries; fewer give nothing."""
    assert value.shape == target.shape
    value, target = value.flatten(), target.flatten()
    if value.numel() < len(QUARTERS):
        return {}
    order = value.argsort(stable=True)
    errors_Q = (target - value)[order].tensor_split(len(QUARTERS))
    return {name: float(error.double().mean()) for name, error in zip(QUARTERS, errors_Q, strict=True)}


# ---- the policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a network says of a rollout, head by head."""

    log_prob_BH: Tensor
    entropy_BH: Tensor
    choices_BH: Tensor
    """Number of legal values; 0 for heads that did not matter."""
    joint_TN: Tensor
    """Log-probability of whole actions."""
    core: CoreHealth | None
    contribution_BS: Tensor | None
    """Predicted contributions [10 pp]; None where nobody asked for them."""


@torch.no_grad()
def look(network: PolicyNetwork, rollout: Rollout) -> Look:
    """One pass of a network over a rollout, in which nothing is learned."""
    state = rollout.initial_state or network.start(rollout.num_hosts)
    with overheard(network.core) as stretches:
        outputs, _ = network.unroll(rollout.seen, state, rollout.is_init_TN)
    distribution, action_BH = outputs.distribution, rollout.action_TNH.flatten(0, 1)
    return Look(
        log_prob_BH=distribution.head_log_probs(action_BH),
        entropy_BH=distribution.head_entropies(action_BH),
        choices_BH=distribution.head_choices(action_BH),
        joint_TN=distribution.log_prob(action_BH).view(rollout.num_steps, rollout.num_hosts),
        core=core_health(network.core, stretches) if isinstance(network.core, nn.LSTM) else None,
        contribution_BS=outputs.contribution_BS,
    )


def ratio_factors(log_ratio: Tensor, mask: Tensor) -> tuple[float, float]:
    """Largest and 95 % quantile of max(ratio, 1 / ratio) over the marked entries; NaN where none is marked."""
    assert log_ratio.shape == mask.shape
    factors = log_ratio[mask].abs().double().exp()
    if not factors.numel():
        return float("nan"), float("nan")
    return float(factors.max()), float(factors.quantile(0.95))


def head_stats(before: Look, after: Look) -> dict[Head, HeadStats]:
    """Every head that the policy has, before and after an update."""
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
    """How often a blueprint was chosen out of several, which of them most often, and its share of these choices."""
    action_BH = rollout.action_TNH.flatten(0, 1)
    chosen_B = (action_BH[:, Head.OP] == Op.GERMINATE) & (choices_BH[:, Head.BLUEPRINT] > 1)
    counts = torch.bincount(action_BH[chosen_B, Head.BLUEPRINT], minlength=len(names))
    total = int(counts.sum())
    return (total, names[int(counts.argmax())], float(counts.max()) / total) if total else (0, "", float("nan"))


# ---- the network


def parts_of(network: PolicyNetwork) -> dict[str, list[nn.Parameter]]:
    """The parameters of each part."""
    part_of = {layer: part for part, layers in PARTS.items() for layer in layers}
    parts: dict[str, list[nn.Parameter]] = {part: [] for part in PARTS}
    for name, parameter in network.named_parameters():
        layer = name.partition(".")[0]
        assert layer in part_of, f"say in PARTS to which part of the network {layer} belongs"
        parts[part_of[layer]].append(parameter)
    return {part: parameters for part, parameters in parts.items() if parameters}


def gradient_norms(parts: Mapping[str, Iterable[nn.Parameter]]) -> dict[str, float]:
    """Norm of the present gradient of each part; 0 where it has none."""
    gradients = {part: [p.grad.flatten() for p in parameters if p.grad is not None] for part, parameters in parts.items()}
    # They are many and small: laid end to end, a part costs one sum.
    return {part: float(torch.linalg.vector_norm(torch.cat(pieces))) if pieces else 0.0 for part, pieces in gradients.items()}


Stretch = tuple[Tensor, tuple[Tensor, Tensor], Tensor]
"""Of an LSTM's call: inputs `[t, N, R]`, state before them `[1, N, R]` twice, and outputs `[t, N, R]`."""


@contextmanager
def overheard(core: nn.Module) -> Generator[list[Stretch]]:
    """The calls of an LSTM while the context lasts: one for each stretch of time without a reset."""
    stretches: list[Stretch] = []

    def hear(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(core, nn.LSTM):
            stretches.append((*args, output[0]))

    handle = core.register_forward_hook(hear)
    try:
        yield stretches
    finally:
        handle.remove()


@torch.no_grad()
def core_health(core: nn.LSTM, stretches: list[Stretch]) -> CoreHealth:
    """How an LSTM of one layer did. Its gates follow from inputs and outputs, for all steps at once.

    i, f, g, o = gates(x_t, h_{t-1}),  c_t = f * c_{t-1} + i * g,  h_t = o * tanh(c_t)   (Hochreiter, Schmidhuber 1997)
    """
    assert core.num_layers == 1
    assert core.proj_size == 0
    weight, recurrent = core.get_parameter("weight_ih_l0"), core.get_parameter("weight_hh_l0")
    bias = core.get_parameter("bias_ih_l0") + core.get_parameter("bias_hh_l0")
    outputs: list[Tensor] = []
    cells: list[Tensor] = []
    gates: list[Tensor] = []
    for input_tNR, (h_1NR, c_1NR), output_tNR in stretches:
        previous_tNR = torch.cat([h_1NR, output_tNR[:-1]])
        sums = nn.functional.linear(input_tNR, weight, bias) + nn.functional.linear(previous_tNR, recurrent)
        enter, forget, new, leave = sums.chunk(4, dim=-1)
        enter, forget, leave, added, c_NR = enter.sigmoid(), forget.sigmoid(), leave.sigmoid(), new.tanh(), c_1NR[0]
        for kept_NR, added_NR in zip(forget, enter * added, strict=True):
            c_NR = kept_NR * c_NR + added_NR
            cells.append(c_NR)
        outputs.append(output_tNR)
        gates += [enter, forget, leave]
    h_BR, gate = torch.cat(outputs).flatten(0, 1), torch.cat(gates)
    return CoreHealth(
        h=float(h_BR.abs().mean()),
        c=float(torch.stack(cells).abs().mean()),
        saturated=float((h_BR.abs() > SATURATED).float().mean()),
        gates_saturated=float(((gate - 0.5).abs() > SATURATED - 0.5).float().mean()),
        dead=float((h_BR.std(dim=0, correction=0) < DEAD).float().mean()),
    )


def diagnose(
    before: Look,
    after: Look,
    rollout: Rollout,
    *,
    returns_TN: Tensor,
    floor: float,
    target_kl: float,
    grad_norm: dict[str, float],
    skipped_fraction: float,
    blueprint_names: tuple[str, ...],
) -> Diagnostics:
    """Everything about one update.

    Args:
        before: the network that acted, on its rollout.
        after: the updated one, on the same rollout.
        returns_TN: what was lived from each step on [reward].
        floor: smallest variance of returns that counts [reward^2].
        target_kl: what `kl_of_target` is measured in [nats].
        grad_norm: norms of the parts, as they are to be told.
        skipped_fraction: as it is to be told.
    """
    chosen_TN, log_ratio_TN = ~rollout.forced_TN, after.joint_TN - rollout.log_prob_TN
    slope, intercept = calibration(rollout.value_TN, returns_TN)
    ratio_max, ratio_q95 = ratio_factors(log_ratio_TN, chosen_TN)
    germinations, top, top_share = top_blueprint(rollout, after.choices_BH, blueprint_names)
    return Diagnostics(
        steps=rollout.value_TN.numel(),
        explained_variance_floored=floored_explained_variance(rollout.value_TN, returns_TN, floor=floor),
        value_slope=slope,
        value_intercept=intercept,
        value_error=error_by_quarter(rollout.value_TN, returns_TN),
        heads=head_stats(before, after),
        ratio_max=ratio_max,
        ratio_q95=ratio_q95,
        kl_of_target=float(kl_estimate(log_ratio_TN, chosen_TN)) / target_kl,
        skipped_fraction=skipped_fraction,
        grad_norm=grad_norm,
        core=after.core,
        germinations=germinations,
        top_blueprint=top,
        top_blueprint_share=top_share,
    )
