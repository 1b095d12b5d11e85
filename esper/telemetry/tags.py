"""The table of metrics, the only place that names them: the source of writers, console and docs/metrics.md."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import SupportsFloat

Value = SupportsFloat | None
"""A number; None or NaN if it was not measured in this update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One row of the table."""

    tag: str
    """`group/name`. A name of `*` stands for names that are only known when the run is built; `<word>` for those of `WORDS`."""
    unit: str
    """Unit; `1` for a pure number."""
    meaning: str
    """Quantity, its average, and how to read it."""
    label: str = ""
    """Short name in the console; empty where the console does not show it."""
    detail: bool = False
    """If true, written only every telemetry.detail_every updates."""


def _row(tag: str, unit: str, meaning: str, label: str = "", *, detail: bool = False) -> Metric:
    return Metric(tag=tag, unit=unit, meaning=meaning, label=label, detail=detail)


WORDS: dict[str, tuple[str, ...]] = {
    "head": ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"),
    "part": ("encoder", "core", "heads", "critic"),
    "quarter": ("lowest", "low", "high", "highest"),
}
"""Names that replace `<head>`, `<part>` and `<quarter>` in a tag."""

METRICS: tuple[Metric, ...] = (
    _row("sandbox/optimum", "points", "Expected return of the best controller; env=sandbox."),
    _row("sandbox/share_of_optimum", "1", "Mean return as a share of it; env=sandbox.", "share of optimum"),
    _row("agent/*", "1", "A metric of a learner from outside, under the name that the learner gives it."),
    _row("host/accuracy", "pp", "Validation accuracy at the end of the episode, mean over hosts.", "accuracy"),
    _row("host/accuracy_gain", "pp", "Accuracy at the end of the episode less that at its start, mean over hosts."),
    _row("host/loss", "nat", "Validation loss at the end of the episode, mean over hosts."),
    _row(
        "host/committed_accuracy",
        "pp",
        "Validation accuracy with fossilized seeds only, every other seed off; mean over hosts.",
        "committed accuracy",
    ),
    _row(
        "host/all_off_accuracy",
        "pp",
        "Validation accuracy with every live seed off, in the last step, mean over hosts; counterfactuals.",
    ),
    _row(
        "host/solo_contribution",
        "pp",
        "Contribution of a live seed alone beside the fossils, in the last step, mean over seeds; counterfactuals.",
    ),
    _row(
        "host/interaction",
        "pp",
        "Joint contribution of two live seeds beyond the sum of both, in the last step, mean over pairs; counterfactuals.",
    ),
    _row(
        "host/shapley_error",
        "pp",
        "Standard error of a seed's Shapley value in the last step, mean over all seeds that are in.",
    ),
    _row(
        "host/parameters_grown",
        "count",
        "Parameters in seeds at the end of the episode, mean over hosts.",
        "parameters grown",
    ),
    _row("host/parameters_committed", "count", "Parameters of host and fossils, mean over hosts."),
    _row("host/flops_committed", "FLOP", "FLOPs of a forward pass of one sample, as counted; mean over hosts."),
    _row("host/latency_committed", "s", "Latency of one sample with host and fossils, if measured; mean over hosts."),
    _row("host/training_flops", "FLOP", "FLOPs of training a host and its seeds in the episode, as counted; mean over hosts."),
    _row("host/measuring_flops", "FLOP", "FLOPs of validation in the episode, counterfactuals included; mean over hosts."),
    _row("host/seeds_germinated", "count", "Seeds planted in the episode, mean over hosts."),
    _row("host/seeds_fossilized", "count", "Seeds kept for good in the episode, mean over hosts."),
    _row("host/seeds_pruned", "count", "Seeds removed in the episode, mean over hosts."),
    _row("host/stage_dormant", "count", "Empty slots at the end of the episode, mean over hosts."),
    _row("host/stage_germinated", "count", "Slots whose seed takes no part yet, at the end of the episode; mean."),
    _row("host/stage_training", "count", "Slots whose seed learns behind the host, at the end of the episode; mean."),
    _row("host/stage_blending", "count", "Slots whose alpha moves, at the end of the episode; mean over hosts."),
    _row("host/stage_holding", "count", "Slots whose seed waits for the decision, at the end of the episode; mean."),
    _row("host/stage_fossilized", "count", "Slots whose seed is kept for good, at the end of the episode; mean."),
    _row("host/stage_pruned", "count", "Slots whose seed was removed in the last step of the episode; mean."),
    _row("host/stage_embargoed", "count", "Empty slots closed for a while, at the end of the episode; mean."),
    _row("policy/return", "reward", "Undiscounted sum of rewards of one episode, mean over hosts.", "return"),
    _row("policy/entropy", "nat", "Entropy of the policy, mean over decisions that were not forced."),
    _row(
        "policy/explained_variance",
        "1",
        "1 - Var(target - value) / Var(target): 1 for a perfect critic, 0 for one that predicts the mean.",
        "explained variance",
    ),
    _row("policy/value_loss", "1", "Loss of the critic, in the scale in which the critic learns."),
    _row("policy/policy_loss", "1", "Clipped surrogate loss of the policy; its sign says little."),
    _row("policy/kl", "nat", "Estimated divergence of the updated policy from the one that acted."),
    _row("policy/clip_fraction", "fraction", "Decisions whose probability ratio left the clipping interval."),
    _row(
        "policy/first_ratio_error",
        "1",
        "Largest |log ratio| before the first gradient step: above rounding, the replay differs from the rollout.",
    ),
    _row("policy/grad_norm", "1", "Norm of the gradient before clipping, mean over minibatches."),
    _row("policy/grad_clipped", "fraction", "Minibatches whose gradient was longer than agent.max_grad_norm; 1 is saturation."),
    _row("policy/learning_rate", "1", "Learning rate of this update."),
    _row("policy/entropy_coef", "1", "Weight of the entropy bonus in this update."),
    _row("policy/minibatches_skipped", "count", "Minibatches of this update left out, since the policy had gone far enough."),
    _row("policy/minibatches_nonfinite", "count", "Minibatches dropped, since a loss or a gradient was not finite."),
    _row("policy/forced_fraction", "fraction", "Steps at which only one action was legal; nothing is learned there."),
    _row("policy/anomalies", "count", "Kinds of anomalies present in this update; `events.jsonl` says which."),
    _row(
        "policy/explained_variance_floored",
        "1",
        "As explained_variance, but of a variance of at least agent.advantage_floor squared: below it, returns count as equal.",
    ),
    _row("policy/value_slope", "1", "Slope of returns on predicted values: 1 is calibrated, below 1 predictions spread too far."),
    _row("policy/value_intercept", "reward", "Return where the prediction is 0, by the same line; 0 is calibrated."),
    _row(
        "policy/value_error_<quarter>",
        "reward",
        "Return less prediction, mean over the quarter of the decisions in which predictions were lowest, low, high, highest.",
        detail=True,
    ),
    _row("policy/ratio_max", "1", "Largest change of an action's probability by the update, up or down, as a factor >= 1."),
    _row("policy/ratio_q95", "1", "95 % quantile of this factor, over decisions that were not forced."),
    _row("policy/kl_of_target", "1", "Divergence after the update, in units of agent.target_kl."),
    _row(
        "policy/learnable_<head>",
        "fraction",
        "Steps at which this head mattered for what was done, and had a choice.",
        detail=True,
    ),
    _row("policy/entropy_<head>", "nat", "Entropy of this head, mean over these steps; given operation and slot.", detail=True),
    _row(
        "policy/entropy_share_<head>",
        "fraction",
        "The same as a share of the largest entropy that the legal values allowed: 1 is chance, 0 has decided.",
        detail=True,
    ),
    _row(
        "policy/ratio_max_<head>", "1", "Largest change of this head's chosen probability, up or down, as a factor.", detail=True
    ),
    _row("policy/ratio_q95_<head>", "1", "95 % quantile of this factor, over the same steps.", detail=True),
    _row(
        "policy/kl_<head>",
        "nat",
        "Divergence of this head, mean over the same steps; weighted by learnable_<head> they add up to learnable_op x kl.",
        detail=True,
    ),
    _row(
        "policy/grad_norm_<part>", "1", "Norm of the gradient of this part before clipping, mean over minibatches.", detail=True
    ),
    _row("policy/core_h", "1", "Mean absolute output of the LSTM, over all steps and hosts.", detail=True),
    _row("policy/core_saturated", "fraction", "Outputs of the LSTM beyond 0.99 in absolute value."),
    _row("policy/core_gates_saturated", "fraction", "Gates of the LSTM within 0.01 of 0 or 1.", detail=True),
    _row("policy/core_dead", "fraction", "Units of the LSTM whose output deviates by less than 0.01 over the whole rollout."),
    _row("policy/top_blueprint_share", "fraction", "Share of the blueprint planted most often, where there were several."),
    _row(
        "search/best_return",
        "reward",
        "Mean return of the best schedule so far, on the hosts that the search uses.",
        "best return",
    ),
    _row("search/improved", "1", "1 where the schedule of this update is the best so far, else 0."),
    _row("search/seeds", "count", "Seeds that the schedule of this update germinates."),
    _row("shapley/*", "pp", "Shapley value of a seed of the blueprint of this name in the last step, mean over these seeds."),
    _row("reward/*", "reward", "Weighted sum of the reward term of this name over one episode, mean over hosts."),
    _row("mode/*", "reward", "Undiscounted sum of rewards of one episode, mean over the hosts that the mode of this name pays."),
    _row("audit/seed_epochs", "count", "Contributions of seeds measured in one episode: seeds times host epochs."),
    _row(
        "audit/attribution_ratio",
        "fraction",
        "Share of these at least 5 times what the host gained since the seed came: the host depends on it.",
    ),
    _row(
        "audit/ransomware",
        "fraction",
        "Share of these from indispensable seeds whose host is worse than before they came.",
    ),
    _row("audit/shaped_ratio", "1", "Sum of |shaping| over sum of |reward|, over steps and hosts."),
    _row(
        "audit/goodhart",
        "1",
        "Rank correlation over hosts between return and committed accuracy, mean over modes: 1 where pay ranks hosts rightly.",
    ),
    _row("action/wait", "fraction", "Steps at which the controller did nothing."),
    _row("action/germinate", "fraction", "Steps at which it planted a seed."),
    _row("action/set_alpha_target", "fraction", "Steps at which it set where a seed's alpha goes."),
    _row("action/prune", "fraction", "Steps at which it removed a seed."),
    _row("action/fossilize", "fraction", "Steps at which it kept a seed for good."),
    _row("action/advance", "fraction", "Steps at which it moved a seed to the next stage."),
    _row("governor/rollbacks_nonfinite", "count", "Hosts rolled back for a non-finite loss or parameter."),
    _row("governor/rollbacks_divergence", "count", "Hosts rolled back for a diverging loss."),
    _row("governor/rollbacks_lobotomy", "count", "Hosts rolled back because a good host fell to chance level."),
    _row("governor/rollbacks_decline", "count", "Hosts rolled back because their loss stayed above their usual range."),
    _row("governor/suspect", "count", "Host epochs after which the loss was above the host's usual range, without rollbacks."),
    _row("governor/vetoed", "count", "Steps of a host in which the governor withheld an operation that would have been legal."),
    _row("governor/retired", "count", "Hosts that were frozen at their last snapshot after too many rollbacks without recovery."),
    _row("time/rollout_seconds", "s", "Time spent in the rollout: hosts train and the controller acts."),
    _row("time/act_seconds", "s", "Part of it in which the controller decides what to do."),
    _row("time/update_seconds", "s", "Time spent in learning from the rollout."),
    _row("time/samples_per_second", "1/s", "Training samples of all hosts per second of rollout."),
    _row("time/host_epochs_per_second", "1/s", "Host epochs of all hosts per second of rollout.", "host epochs/s"),
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


class UnknownTagError(ValueError):
    """A metric that the table does not hold. The message names the tag and the closest known one."""


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
    raise UnknownTagError(f"there is no metric {tag} in the table of esper/telemetry/tags.py; {hint}")


def is_detail(tag: str) -> bool:
    """Return whether a metric is a detail.

    Raises:
        UnknownTagError: the table has no such row.
    """
    return metric(tag).detail


def groups() -> list[str]:
    """Return the first parts of all tags, in the order of the table."""
    return list(dict.fromkeys(row.tag.partition("/")[0] for row in METRICS))


def under(group: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values by tag from values by name: under("host", {"loss": 0.7}) is {"host/loss": 0.7}.

    Raises:
        UnknownTagError: the table has no such row.
    """
    tagged = {f"{group}/{name}": value for name, value in values.items()}
    for tag in tagged:
        metric(tag)
    return tagged


def measured(metrics: Mapping[str, Value]) -> dict[str, float]:
    """Return measured values as floats, without None and NaN: what was not measured must never read as 0.

    Raises:
        UnknownTagError: the table has no such row, whether it was measured or not.
    """
    values: dict[str, float] = {}
    for tag, value in metrics.items():
        metric(tag)
        if value is not None and not math.isnan(number := float(value)):
            values[tag] = number
    return values
