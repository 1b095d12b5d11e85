"""The table of all metrics, used by writers, console and docs/metrics.md."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import SupportsFloat

from esper.text import number

Value = SupportsFloat | None
"""A number; None or NaN if it was not measured in this update."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    tag: str
    """`group/name`. A name of `*` stands for names that are only known when the run is built; `<word>` for those of `WORDS`."""
    unit: str
    """Unit; `1` for a pure number."""
    meaning: str
    """Quantity, its average, and how to read it."""
    detail: bool = False
    """If true, written only in updates with all details; see telemetry.detail_every."""


WORDS: dict[str, tuple[str, ...]] = {
    "head": ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"),
    "part": ("encoder", "core", "heads", "critic"),
    "quarter": ("lowest", "low", "high", "highest"),
}
"""Names that replace `<head>`, `<part>` and `<quarter>` in a tag."""

METRICS: tuple[Metric, ...] = (
    Metric("sandbox/optimum", "points", "Expected return of the best controller; env=sandbox."),
    Metric("sandbox/share_of_optimum", "1", "Mean return as a share of `sandbox/optimum`; env=sandbox."),
    Metric("agent/*", "1", "A metric of an external learner, under the name that the learner gives it."),
    Metric(
        "host/accuracy",
        "%",
        "Validation accuracy at the end of the episode, mean over hosts without a rollback in the last epoch.",
    ),
    Metric(
        "host/accuracy_gain",
        "pp",
        "Accuracy at the end of the episode minus that at its start, mean over hosts without a rollback in the last epoch.",
    ),
    Metric(
        "host/loss", "nat", "Validation loss at the end of the episode, mean over hosts without a rollback in the last epoch."
    ),
    Metric("host/committed_accuracy", "%", "Validation accuracy with fossilized seeds only, mean over hosts."),
    Metric("host/solo_contribution", "pp", "Contribution of an active seed without the others, last step, mean over seeds."),
    Metric("host/interaction", "pp", "Contribution of two active seeds beyond their sum, last step, mean over pairs."),
    Metric("host/shapley_error", "pp", "Standard error of a seed's Shapley value, last step, mean over active seeds."),
    Metric("host/parameters_grown", "count", "Parameters in seeds at the end of the episode, mean over hosts."),
    Metric("host/parameters_committed", "count", "Parameters of host and fossils, mean over hosts."),
    Metric("host/flops_committed", "FLOP", "FLOPs of a forward pass of one sample, as counted; mean over hosts."),
    Metric("host/latency_committed", "s", "Latency of one sample with host and fossils, if measured; mean over hosts."),
    Metric("host/training_flops", "FLOP", "FLOPs of training a host and its seeds in the episode, as counted; mean over hosts."),
    Metric(
        "host/measuring_flops",
        "FLOP",
        "FLOPs of validating a host in all epochs of the episode, counterfactuals included; mean over hosts.",
    ),
    Metric("host/gradient_norm", "1", "Norm of a host's own gradient before clipping, mean over host epochs and hosts."),
    Metric(
        "host/gradient_norm_max", "1", "Norm of a host's own gradient before clipping, mean over host epochs, maximum over hosts."
    ),
    Metric(
        "host/gradient_drift", "1", "Factor between `host/gradient_norm` and its running mean of about ten updates, at least 1."
    ),
    Metric("host/seeds_germinated", "count", "Seeds planted in the episode, mean over hosts."),
    Metric("host/seeds_fossilized", "count", "Seeds fossilized in the episode, mean over hosts."),
    Metric("host/seeds_pruned", "count", "Seeds removed in the episode, mean over hosts."),
    Metric("host/loss_scale", "1", "Lowest loss scale of a host at the end of the episode; only with precision=fp16."),
    Metric("host/stage_dormant", "count", "Empty slots at the end of the episode, mean over hosts."),
    Metric("host/stage_germinated", "count", "Slots whose seed is not active yet, at the end of the episode; mean over hosts."),
    Metric(
        "host/stage_training", "count", "Slots whose seed trains behind the host, at the end of the episode; mean over hosts."
    ),
    Metric("host/stage_blending", "count", "Slots whose alpha moves, at the end of the episode; mean over hosts."),
    Metric("host/stage_holding", "count", "Slots whose seed waits for the decision, at the end of the episode; mean over hosts."),
    Metric("host/stage_fossilized", "count", "Slots whose seed is kept permanently, at the end of the episode; mean over hosts."),
    Metric("host/stage_pruned", "count", "Slots whose seed was removed in the last step of the episode; mean over hosts."),
    Metric("host/stage_embargoed", "count", "Slots under embargo at the end of the episode, mean over hosts."),
    Metric("policy/return", "points", "Undiscounted sum of rewards of one episode, mean over hosts."),
    Metric("policy/entropy", "nat", "Entropy of the policy, mean over decisions that were not forced."),
    Metric("policy/explained_variance", "1", "1 - Var(target - value) / Var(target): 1 is a perfect critic, 0 a constant one."),
    Metric("policy/value_loss", "1", "Loss of the critic, in the scale in which the critic learns."),
    Metric(
        "policy/divergence",
        "nat",
        "KL divergence from `agent.reference`, over decisions not forced; only if that is not uniform.",
    ),
    Metric(
        "policy/imitation_loss",
        "nat",
        "Cross-entropy of the policy with the smoothed choices of its teacher; only in updates that imitate it.",
    ),
    Metric("policy/policy_loss", "1", "Clipped surrogate loss of the policy, unless it imitates; its sign says little."),
    Metric("policy/kl", "nat", "Estimated divergence of the updated policy from the one that acted."),
    Metric("policy/clip_fraction", "fraction", "Decisions whose probability ratio left the clipping interval."),
    Metric("policy/first_ratio_error", "1", "Largest |log ratio| before the first gradient step; a correct replay gives 0."),
    Metric("policy/grad_norm", "1", "Norm of the gradient before clipping, mean over minibatches."),
    Metric("policy/grad_clipped", "fraction", "Minibatches whose gradient exceeded agent.max_grad_norm."),
    Metric("policy/learning_rate", "1", "Learning rate of this update."),
    Metric("policy/entropy_coef", "1", "Weight of the entropy bonus in this update, unless it imitates."),
    Metric("policy/minibatches_skipped", "count", "Minibatches of this update left out, since the policy had moved far enough."),
    Metric("policy/skipped_fraction", "fraction", "Share of minibatches of this update left out."),
    Metric("policy/minibatches_nonfinite", "count", "Minibatches dropped, since a loss or a gradient was not finite."),
    Metric("policy/forced_fraction", "fraction", "Steps at which only one action was legal; nothing is learned there."),
    Metric("policy/anomalies", "count", "Anomalies present in this update, one per metric; `events.jsonl` says which."),
    Metric(
        "policy/explained_variance_floored", "1", "Explained variance with Var(target) at least agent.advantage_floor squared."
    ),
    Metric(
        "policy/value_slope",
        "1",
        "Slope of the regression of returns on predicted values: 1 is calibrated; below 1, predictions spread too far.",
    ),
    Metric("policy/value_intercept", "points", "Intercept of the regression of returns on predicted values: 0 is calibrated."),
    Metric(
        "policy/value_error_<quarter>",
        "points",
        "Mean of return minus predicted value, over one quarter of the decisions, ordered by prediction.",
        detail=True,
    ),
    Metric("policy/ratio_max", "1", "Largest change of an action's probability by the update, up or down, as a factor >= 1."),
    Metric(
        "policy/ratio_q95",
        "1",
        "95 % quantile of the change of an action's probability, as a factor >= 1.",
    ),
    Metric("policy/kl_of_target", "1", "Divergence after the update, in units of agent.target_kl."),
    Metric("policy/learnable_<head>", "fraction", "Steps at which this head had a choice and mattered.", detail=True),
    Metric(
        "policy/entropy_<head>",
        "nat",
        "Entropy of this head given operation and slot, where it mattered.",
        detail=True,
    ),
    Metric(
        "policy/entropy_share_<head>",
        "fraction",
        "Entropy of this head over its maximum: 1 is uniform, 0 is deterministic.",
        detail=True,
    ),
    Metric("policy/ratio_max_<head>", "1", "Largest change of this head's probability, as a factor.", detail=True),
    Metric("policy/ratio_q95_<head>", "1", "95 % quantile of the change of this head's probability, as a factor.", detail=True),
    Metric(
        "policy/kl_<head>",
        "nat",
        "Estimated divergence of this head by the update, where it mattered.",
        detail=True,
    ),
    Metric("policy/grad_norm_<part>", "1", "Norm of this part's gradient before clipping, mean over minibatches.", detail=True),
    Metric(
        "policy/grad_drift_<part>",
        "1",
        "Factor between `policy/grad_norm_<part>` and its running mean of about ten updates, at least 1.",
        detail=True,
    ),
    Metric("policy/core_h", "1", "Mean absolute output of the LSTM, over all steps and hosts.", detail=True),
    Metric("policy/core_saturated", "fraction", "Outputs of the LSTM beyond 0.99 in absolute value."),
    Metric("policy/core_gates_saturated", "fraction", "Gates of the LSTM within 0.01 of 0 or 1.", detail=True),
    Metric("policy/core_dead", "fraction", "Units of the LSTM whose output deviates by less than 0.01 over the whole rollout."),
    Metric("policy/top_blueprint_share", "fraction", "Share of the blueprint planted most often, where there were several."),
    Metric(
        "search/best_return",
        "points",
        "Mean return of the best schedule or rule so far, on the hosts of the search; its expectation for agent=schedule_bandit.",
    ),
    Metric("search/improved", "1", "1 where the schedule or rule of this update is the best so far, else 0."),
    Metric("search/seeds", "count", "Seeds that the schedule of this update germinates."),
    Metric(
        "bandit/explained",
        "1",
        "Share of the variance of returns that the bandit explains, leave-one-out; for agent.model=forest, out of bag.",
    ),
    Metric(
        "bandit/penalty",
        "1",
        "Penalty of ridge regressions with the smallest leave-one-out error; missing for forests.",
    ),
    Metric("bandit/decisions", "count", "Decisions from which the bandit predicts."),
    Metric("shapley/*", "pp", "Shapley value of a seed of the blueprint of this name in the last step, mean over these seeds."),
    Metric("seeds_planted/*", "count", "Seeds planted in the episode, mean over hosts; by blueprint, slot or kind.", detail=True),
    Metric("seeds_kept/*", "count", "Planted seeds that were fossilized, mean over hosts.", detail=True),
    Metric("seeds_removed/*", "count", "Planted seeds that were pruned, mean over hosts.", detail=True),
    Metric("seeds_rolled_back/*", "count", "Planted seeds lost when their host was rolled back, mean over hosts.", detail=True),
    Metric("seeds_churn/*", "fraction", "Share of the planted seeds that were pruned or lost.", detail=True),
    Metric("seeds_epochs/*", "epochs", "Host epochs that a seed spent in its slot, mean over seeds.", detail=True),
    Metric("seeds_contribution/*", "pp", "Last measured contribution of seeds that stayed, mean over seeds.", detail=True),
    Metric("seeds_contribution_error/*", "pp", "Standard error of `seeds_contribution/*`; twins are one sample.", detail=True),
    Metric("seeds_contribution_removed/*", "pp", "Last contribution of pruned seeds, mean over seeds.", detail=True),
    Metric("reward/*", "points", "Sum of the reward terms of this component over one episode, mean over hosts."),
    Metric("mode/*", "points", "Undiscounted sum of rewards of one episode, mean over the hosts paid by this mode."),
    Metric("audit/seed_epochs", "count", "Contributions of seeds measured in one episode: seeds times host epochs."),
    Metric(
        "audit/attribution_ratio",
        "fraction",
        "Share of contributions at least 5 times what the host gained since planting.",
    ),
    Metric("audit/ransomware", "fraction", "Share of contributions from indispensable seeds whose host is worse than before."),
    Metric("audit/shaped_ratio", "1", "Sum of |shaping| over sum of |reward|, over steps and hosts."),
    Metric("audit/goodhart", "1", "Rank correlation over hosts between return and committed accuracy, mean over modes."),
    Metric("action/wait", "fraction", "Steps at which the controller did nothing."),
    Metric("action/germinate", "fraction", "Steps at which the controller planted a seed."),
    Metric("action/set_alpha_target", "fraction", "Steps at which the controller set the target of a seed's alpha."),
    Metric("action/prune", "fraction", "Steps at which the controller removed a seed."),
    Metric("action/fossilize", "fraction", "Steps at which the controller fossilized a seed."),
    Metric("action/advance", "fraction", "Steps at which the controller moved a seed to the next stage."),
    Metric("governor/rollbacks_nonfinite", "count", "Hosts rolled back for a non-finite loss or parameter."),
    Metric("governor/rollbacks_divergence", "count", "Hosts rolled back for a diverging loss."),
    Metric("governor/rollbacks_lobotomy", "count", "Hosts rolled back because they fell to chance level and stayed there."),
    Metric("governor/rollbacks_decline", "count", "Hosts rolled back because their loss stayed above their usual range."),
    Metric("governor/suspect", "count", "Host epochs with a loss above the usual range or at chance, without rollbacks."),
    Metric("governor/vetoed", "count", "Steps of a host in which the governor vetoed an operation that was otherwise legal."),
    Metric("governor/overflows", "count", "Batches of a host with an overflow and a skipped step; only with precision=fp16."),
    Metric("governor/retired", "count", "Hosts frozen at their last snapshot after too many rollbacks without recovery."),
    Metric("time/rollout_seconds", "s", "Time spent in the rollout: hosts train and the controller acts."),
    Metric("time/act_seconds", "s", "Part of rollout_seconds in which the controller chooses actions."),
    Metric("time/train_seconds", "s", "Part of rollout_seconds in which hosts train; parallel phases share it by their work."),
    Metric("time/validate_seconds", "s", "Part of rollout_seconds in which hosts are validated, with and without their seeds."),
    Metric("time/potential_seconds", "s", "Part of rollout_seconds in which growth potential is measured."),
    Metric("time/copy_seconds", "s", "Part of rollout_seconds in which hosts are restored from snapshots."),
    Metric("time/environment_seconds", "s", "The rest of rollout_seconds: new hosts, lifecycle, rewards, observations."),
    Metric("time/update_seconds", "s", "Time spent in learning from the rollout."),
    Metric("time/save_seconds", "s", "Time spent in writing the records and the checkpoint of the previous update."),
    Metric("time/samples_per_second", "1/s", "Training samples of all hosts per second of rollout."),
    Metric("time/host_epochs_per_second", "1/s", "Host epochs of all hosts per second of rollout."),
)
"""Every metric there is. A new metric is one line here; docs/metrics.md is generated from it."""


def tags_of(row: Metric) -> list[str]:
    """Return the tags of a row: one for each name of its `<word>`."""
    before, bracket, rest = row.tag.partition("<")
    word, _, after = rest.partition(">")
    return [f"{before}{name}{after}" for name in WORDS[word]] if bracket else [row.tag]


_EXACT = {tag: row for row in METRICS if not row.tag.endswith("*") for tag in tags_of(row)}
_GROUPS = {metric.tag[:-1]: metric for metric in METRICS if metric.tag.endswith("*")}
_NAME = re.compile(r"[a-z0-9_]+")

STAGES = {tag.removeprefix("host/stage_"): tag for tag in _EXACT if tag.startswith("host/stage_")}
"""Stage -> tag, in the order of a seed's life."""
ROLLBACKS = tuple(tag for tag in _EXACT if tag.startswith("governor/rollbacks_"))
"""One tag for each cause of a rollback."""
PHASES = {
    "time/train_seconds": "training",
    "time/validate_seconds": "validation",
    "time/potential_seconds": "growth potential",
    "time/copy_seconds": "snapshots",
    "time/environment_seconds": "lifecycle and rewards",
    "time/act_seconds": "acting",
    "time/update_seconds": "learning",
    "time/save_seconds": "saving",
}
"""Tag of the time of each phase of an update -> its name; they add up to the time of the update."""


def phase_shares(seconds: Mapping[str, float]) -> str:
    """Return the shares of the phases in a time, as in "training 60 %, saving 2 %", without the smallest; empty for no time."""
    total = sum(seconds.get(tag, 0.0) for tag in PHASES)
    shares = ((name, seconds.get(tag, 0.0)) for tag, name in PHASES.items())
    return ", ".join(f"{name} {100 * one / total:.0f} %" for name, one in shares if one > total / 200)


class UnknownTagError(ValueError):
    """A metric that the table does not contain. The message names the tag and the closest known one."""


def metric(tag: str) -> Metric:
    """Return the row of a tag.

    Raises:
        UnknownTagError: the table has no such row.
    """
    if tag in _EXACT:
        return _EXACT[tag]
    group, slash, name = tag.partition("/")
    if group + slash in _GROUPS and _NAME.fullmatch(name):
        return _GROUPS[group + slash]
    close = get_close_matches(tag, _EXACT, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"known groups: {', '.join(groups())}."
    if group + slash in _GROUPS:
        hint = f"names after {group}/ have lower-case letters, digits and _."
    raise UnknownTagError(f"there is no metric {tag} in the table of esper/telemetry/tags.py; {hint}")


def groups() -> list[str]:
    """Return the first parts of all tags, in the order of the table."""
    return list(dict.fromkeys(row.tag.partition("/")[0] for row in METRICS))


def measured(metrics: Mapping[str, Value]) -> dict[str, float]:
    """Return measured values as floats, without None and NaN: unmeasured values must not read as 0.

    Raises:
        UnknownTagError: the table has no such row, whether it was measured or not.
    """
    values: dict[str, float] = {}
    for tag, value in metrics.items():
        metric(tag)
        if value is not None and not math.isnan(number := float(value)):
            values[tag] = number
    return values


def in_terms_of(score: str, text: str) -> str:
    """Return a text about accuracy in terms of another score; keys such as reward=accuracy_minus_rent stay."""
    return text if score == "accuracy" else re.sub(r"\b[Aa]ccurac(?:y|ies)(?=\b|_greedy\b)", score, text)


def quantity(tag: str, value: float) -> str:
    """Return a metric's value, with its unit if a reader needs it."""
    return number(value) + unit_of(tag)


def unit_of(tag: str) -> str:
    """Return the unit of a metric after a space, empty if a reader does not need it."""
    unit = metric(tag).unit
    return "" if unit in ("1", "count", "1/s", "points") else f" {unit}"
