"""The table of metrics, the only place that names them: it feeds the writers, the console and docs/metrics.md."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import SupportsFloat

Value = SupportsFloat | None
"""A number, or None (or NaN) for what was not measured in this update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One row of the table."""

    tag: str
    """`group/name`. A name of `*` stands for names that are only known when the run is built."""
    unit: str
    """What one unit is; `1` for a pure number."""
    meaning: str
    """What is measured, over what, and how to read it."""
    label: str = ""
    """Short name in the console; empty where the console does not show it."""


def _row(tag: str, unit: str, meaning: str, label: str = "") -> Metric:
    return Metric(tag=tag, unit=unit, meaning=meaning, label=label)


METRICS: tuple[Metric, ...] = (
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
        "host/parameters_grown",
        "count",
        "Parameters in seeds at the end of the episode, mean over hosts.",
        "parameters grown",
    ),
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
    _row("policy/learning_rate", "1", "Learning rate of this update."),
    _row("policy/entropy_coef", "1", "Weight of the entropy bonus in this update."),
    _row("policy/minibatches_skipped", "count", "Minibatches of this update that were not learned from."),
    _row("policy/forced_fraction", "fraction", "Steps at which only one action was legal; nothing is learned there."),
    _row("reward/*", "reward", "What the term of this name paid in one episode, with its weight; mean over hosts."),
    _row("action/wait", "fraction", "Steps at which the controller did nothing."),
    _row("action/germinate", "fraction", "Steps at which it planted a seed."),
    _row("action/set_alpha_target", "fraction", "Steps at which it set where a seed's alpha goes."),
    _row("action/prune", "fraction", "Steps at which it removed a seed."),
    _row("action/fossilize", "fraction", "Steps at which it kept a seed for good."),
    _row("action/advance", "fraction", "Steps at which it moved a seed to the next stage."),
    _row("governor/rollbacks_nonfinite", "count", "Hosts set back because a loss or parameter was not finite."),
    _row("governor/rollbacks_divergence", "count", "Hosts set back because their loss ran away."),
    _row("time/rollout_seconds", "s", "Time spent in the rollout: hosts train and the controller acts."),
    _row("time/update_seconds", "s", "Time spent in learning from the rollout."),
    _row("time/samples_per_second", "1/s", "Training samples of all hosts per second of rollout."),
    _row("time/host_epochs_per_second", "1/s", "Host epochs of all hosts per second of rollout.", "host epochs/s"),
)
"""Every metric there is. A new metric is one line here; docs/metrics.md is generated from it."""

_EXACT = {metric.tag: metric for metric in METRICS if not metric.tag.endswith("*")}
_GROUPS = {metric.tag[:-1]: metric for metric in METRICS if metric.tag.endswith("*")}
_NAME = re.compile(r"[a-z0-9_]+")

STAGES = {tag.removeprefix("host/stage_"): tag for tag in _EXACT if tag.startswith("host/stage_")}
"""Stage -> tag, in the order of a seed's life."""
ROLLBACKS = tuple(tag for tag in _EXACT if tag.startswith("governor/rollbacks_"))
"""One tag for each cause of a rollback."""


class UnknownTagError(ValueError):
    """A metric that the table does not hold. The message names the tag and the closest known one."""


def metric(tag: str) -> Metric:
    """The row of a tag.

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


def groups() -> list[str]:
    """First parts of all tags, in the order of the table."""
    return list(dict.fromkeys(row.tag.partition("/")[0] for row in METRICS))


def under(group: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Values by tag from values by name: under("host", {"loss": 0.7}) is {"host/loss": 0.7}.

    Raises:
        UnknownTagError: the table has no such row.
    """
    tagged = {f"{group}/{name}": value for name, value in values.items()}
    for tag in tagged:
        metric(tag)
    return tagged


def measured(metrics: Mapping[str, Value]) -> dict[str, float]:
    """What was measured, as floats. None and NaN mean "not measured" and are left out: they must never read as 0.

    Raises:
        UnknownTagError: the table has no such row, whether it was measured or not.
    """
    values: dict[str, float] = {}
    for tag, value in metrics.items():
        metric(tag)
        if value is not None and not math.isnan(number := float(value)):
            values[tag] = number
    return values


def markdown() -> str:
    """The page docs/metrics.md, which a test holds equal to this."""
    lines = [
        "# Metrics",
        "",
        "Generated from the table in `esper/telemetry/tags.py`, which is where a metric is added or changed:",
        "",
        "```",
        'python -c "from esper.telemetry.tags import markdown; print(markdown(), end=str())" > docs/metrics.md',
        "```",
        "",
        "Each metric is one value per controller update. What was not measured in an update is missing there, not 0.",
        "`pp` are percentage points; `1` is a pure number; `*` stands for names that the run itself brings along.",
    ]
    for group in groups():
        lines += ["", f"## {group}", "", "| tag | unit | meaning |", "|---|---|---|"]
        lines += [
            f"| `{row.tag}` | {row.unit} | {row.meaning.replace('|', chr(92) + '|')} |"
            for row in METRICS
            if row.tag.startswith(f"{group}/")
        ]
    return "\n".join(lines) + "\n"
