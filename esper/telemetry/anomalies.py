"""Anomalies in learning: a table of rules on the metrics of an update, and a monitor that keeps track of anomalies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esper.ranges import check_ranges
from esper.telemetry.tags import WORDS


@dataclass(kw_only=True, slots=True)
class AnomaliesConfig:
    """Thresholds of anomalies. They affect what is reported, never what is learned."""

    hold: int = 5
    """Time after an anomaly during which every update is written with all details, at least 0 [updates]. Higher: more data."""
    patience: int = 3
    """Updates in a row before a condition is reported, at least 1. Ratios, KL, and exploding or non-finite gradients are reported
    at once. Higher: reported later."""
    min_steps: int = 32
    """Minimum number of steps with a choice to check a head, or whole actions, at least 1. Higher: fewer false reports."""
    min_germinations: int = 32
    """Minimum number of seeds planted in a rollout to check blueprints, at least 1. Higher: fewer false reports."""
    entropy_share: float = 0.02
    """Entropy of a head, as a share of the largest possible, below which it has collapsed, in [0, 1]. Lower: reported later; 0:
    never."""
    ratio: float = 20.0
    """Factor by which one update may change a probability, above 1. Higher: reported later; inf: never."""
    kl: float = 3.0
    """KL after an update, as a multiple of agent.target_kl, above which it is a spike, above 0. Higher: reported later; inf:
    never."""
    skipped: float = 0.9
    """Share of skipped minibatches above which an update hardly learned, in [0, 1]. Higher: reported later; 1: never."""
    nonfinite: float = 0.0
    """Number of minibatches that an update may drop for non-finite losses or gradients, at least 0. Higher: reported later;
    inf: never."""
    explained_variance: float = -0.1
    """Explained variance of the returns below which a critic is useless, at most 1. A constant or untrained critic explains 0.
    Lower: reported later; -inf: never."""
    gradient_above: float = 100.0
    """Gradient norm of a part above which it explodes, above 0. About 1 is usual, as advantages and returns are normalised.
    Higher: reported later; inf: never."""
    gradient_below: float = 1e-5
    """Gradient norm of a part below which it vanishes, at least 0 and below gradient_above. Lower: reported later; 0: never."""
    gradient_drift: float = 5.0
    """Factor by which a gradient norm, of a part or of hosts, may differ from its running mean, above 1. In 24 healthy runs one
    update in a hundred reached 3. Higher: reported later; inf: never."""
    dead: float = 0.5
    """Share of dead units above which the core is dead, in [0, 1]. Higher: reported later; 1: never."""
    saturated: float = 0.5
    """Share of saturated outputs or gates above which the core is saturated, in [0, 1]. Higher: reported later; 1: never."""
    monoculture: float = 0.98
    """Share of planted seeds of one blueprint above which it is a monoculture, in [0, 1]. Higher: reported later; 1: never."""
    min_seed_epochs: int = 64
    """Minimum number of contributions measured in an episode to check them, at least 1. Higher: fewer false reports."""
    attribution_ratio: float = 0.25
    """Share of seeds that contribute many times what the host gained, above which hosts merely depend on them, in [0, 1]. Higher:
    reported later; 1: never."""
    ransomware: float = 0.25
    """Share of indispensable seeds whose host is worse than before planting, above which they are ransomware, in [0, 1]. Higher:
    reported later; 1: never."""
    goodhart: float = 0.0
    """Rank correlation over hosts between return and committed accuracy below which rewards miss the goal, in [-1, 1]. Lower:
    reported later; -1: never."""

    def __post_init__(self) -> None:
        shares = ["entropy_share", "skipped", "dead", "saturated", "monoculture", "attribution_ratio", "ransomware"]
        ranges = {
            "[0, inf]": ["hold", "nonfinite", "gradient_below"],
            "[1, inf]": ["patience", "min_steps", "min_germinations", "min_seed_epochs"],
            "[0, 1]": shares,
            "(1, inf]": ["ratio", "gradient_drift"],
            "(0, inf]": ["kl", "gradient_above"],
            "[-inf, 1]": ["explained_variance"],
            "[-1, 1]": ["goodhart"],
        }
        check_ranges("telemetry.anomalies", self, ranges)
        if self.gradient_below >= self.gradient_above:
            bound = f"below gradient_above={self.gradient_above}, got {self.gradient_below}: the default is 1e-05"
            raise ValueError(f"telemetry.anomalies.gradient_below must be {bound}")

    def build(self, decisions: int) -> "AnomalyMonitor":
        """Return the watch of a run whose updates have this many decisions each: hosts times steps."""
        return AnomalyMonitor(self, decisions)


AT_ONCE = frozenset({"ratio_explosion", "kl_spike", "nonfinite", "exploding_gradient"})
"""Kinds that are reported after one update; the others must persist."""

EXPLORATION = frozenset({"entropy_collapse", "monoculture"})
"""Kinds that are not checked in updates that imitate a teacher, since no setting of the entropy bonus has an effect there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: a metric beyond its threshold, in enough samples, is an anomaly."""

    kind: str
    tag: str
    """Metric; `<head>` or `<part>` stands for each name of `WORDS`."""
    threshold: str
    """Name of its threshold in the config."""
    below: bool = False
    """If true, the anomaly is below the threshold, else above."""
    samples: str = ""
    """Metric with the number of samples, or under `policy/` with their share of all decisions. If empty, there is no minimum."""
    least: str = "min_steps"
    """Name of the config field with the minimum number of samples."""


OP, CONTRIBUTIONS = "policy/learnable_op", ("audit/seed_epochs", "min_seed_epochs")
RULES = (
    Rule("entropy_collapse", "policy/entropy_share_<head>", "entropy_share", True, "policy/learnable_<head>"),
    Rule("ratio_explosion", "policy/ratio_max_<head>", "ratio", False, "policy/learnable_<head>"),
    Rule("ratio_explosion", "policy/ratio_max", "ratio", False, OP),
    Rule("kl_spike", "policy/kl_of_target", "kl", False, OP),
    Rule("hardly_learned", "policy/skipped_fraction", "skipped", False, OP),
    Rule("nonfinite", "policy/minibatches_nonfinite", "nonfinite"),
    Rule("useless_critic", "policy/explained_variance_floored", "explained_variance", True, OP),
    Rule("exploding_gradient", "policy/grad_norm_<part>", "gradient_above"),
    Rule("vanishing_gradient", "policy/grad_norm_<part>", "gradient_below", True, OP),
    Rule("gradient_drift", "policy/grad_drift_<part>", "gradient_drift", False, OP),
    Rule("gradient_drift", "host/gradient_drift", "gradient_drift"),
    Rule("dead_core", "policy/core_dead", "dead"),
    Rule("saturated_core", "policy/core_saturated", "saturated"),
    Rule("saturated_core", "policy/core_gates_saturated", "saturated"),
    Rule("monoculture", "policy/top_blueprint_share", "monoculture", False, "policy/learnable_blueprint", "min_germinations"),
    Rule("attribution_ratio", "audit/attribution_ratio", "attribution_ratio", False, *CONTRIBUTIONS),
    Rule("ransomware", "audit/ransomware", "ransomware", False, *CONTRIBUTIONS),
    Rule("goodhart", "audit/goodhart", "goodhart", True),
)
"""All rules. Gradients vanish and critics err where nearly every step was forced, so those are checked like whole actions."""
MEANINGS = {
    "ratio_explosion": "an action probability changed by a large factor in one update",
    "kl_spike": "the policy moved much further than agent.target_kl",
    "nonfinite": "minibatches were dropped because a loss or a gradient was non-finite",
    "exploding_gradient": "the gradient of a part was very large before clipping",
    "vanishing_gradient": "the gradient of a part was close to 0",
    "entropy_collapse": "a head no longer explores",
    "hardly_learned": "nearly all minibatches were skipped",
    "useless_critic": "a constant would predict the returns better",
    "gradient_drift": "a gradient norm, of a part or of hosts, is far from its running mean of about ten updates",
    "dead_core": "the output of most LSTM units hardly varies",
    "saturated_core": "most outputs or gates of the LSTM are saturated",
    "monoculture": "nearly all planted seeds were of one blueprint",
    "attribution_ratio": "many seeds contribute many times what their hosts gained since planting",
    "ransomware": "many hosts depend on seeds that left them worse than before",
    "goodhart": "hosts with higher rewards do not end with higher accuracy",
}
"""What each kind means, as one clause."""
REMEDIES = {
    "entropy_collapse": "if that is too early, raise agent.entropy_coef and agent.entropy_final",
    "ratio_explosion": "lower agent.learning_rate, agent.epochs or agent.target_kl",
    "kl_spike": "lower agent.learning_rate, or raise agent.minibatches so that the distance is checked after smaller steps",
    "hardly_learned": "lower agent.learning_rate, or raise agent.target_kl",
    "nonfinite": "lower agent.learning_rate, and check rewards and observations for outliers",
    "useless_critic": "raise agent.value_coef or agent.epochs, and see which of the four policy/value_error_* is off",
    "exploding_gradient": "check rewards and observations for outliers, and lower agent.learning_rate",
    "vanishing_gradient": "check whether the core is saturated, or all rewards are equal",
    "gradient_drift": "look for a change in returns or governor/rollbacks; if there is none, lower agent.learning_rate, "
    "or optimiser.learning_rate for host/gradient_drift",
    "dead_core": "lower agent.learning_rate, or lower agent.hidden if the task needs no more",
    "saturated_core": "check observations for large values, and lower agent.learning_rate",
    "monoculture": "raise agent.entropy_coef, unless a fixed schedule shows that this blueprint is the best one",
    "attribution_ratio": "lower reward.attribution, or choose reward=escrow or reward=basic, which reward gains",
    "ransomware": "set reward.attribution to 0, and check slots.incubation and optimiser.seeds.learning_rate",
    "goodhart": "see which reward/ term is largest, and lower its weight",
}
"""Remedy by kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """One anomaly of one update."""

    kind: str
    tag: str
    """Metric that shows it."""
    value: float
    """Measured value."""
    threshold: float
    """Threshold that it crossed."""
    meaning: str
    """What it means, with value and threshold, as one clause."""
    remedy: str
    """Remedy, as one clause."""

    @property
    def key(self) -> str:
        """Identity over time: an anomaly continues in the next anomaly with the same key."""
        return f"{self.kind}_{self.tag.partition('/')[2]}"

    def sentence(self) -> str:
        """Return the anomaly as text."""
        return f"{self.kind.replace('_', ' ')}: {self.meaning}; {self.remedy}"


def find(metrics: Mapping[str, float], config: AnomaliesConfig, decisions: int) -> list[Anomaly]:
    """Return the anomalies of one update.

    Args:
        metrics: measured metrics by tag; a rule whose metric is missing is not checked.
        config: thresholds.
        decisions: number of decisions in the update, forced ones included.
    """
    found: list[Anomaly] = []
    imitates = "policy/imitation_loss" in metrics
    for rule in (rule for rule in RULES if not (imitates and rule.kind in EXPLORATION)):
        threshold, least = getattr(config, rule.threshold), getattr(config, rule.least)
        word = rule.tag.partition("<")[2].rstrip(">")
        for name in WORDS.get(word, ("",)):
            tag, samples = (text.replace(f"<{word}>", name) for text in (rule.tag, rule.samples))
            value, count = metrics.get(tag, threshold), metrics.get(samples, math.inf)
            if samples.startswith("policy/"):
                count *= decisions
            # Shares are rounded: tolerate half a sample.
            if (value < threshold if rule.below else value > threshold) and count > least - 0.5:
                side = "below" if rule.below else "above"
                shown = f"{value:.3g}" if f"{value:.3g}" != f"{threshold:.3g}" else f"{value:.7g}"
                bound = f"{tag} is {shown}, {side} telemetry.anomalies.{rule.threshold}={threshold:g}"
                meaning = f"{MEANINGS[rule.kind]} ({bound})"
                remedy = REMEDIES[rule.kind]
                found.append(Anomaly(kind=rule.kind, tag=tag, value=value, threshold=threshold, meaning=meaning, remedy=remedy))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Anomalies after an update."""

    present: tuple[Anomaly, ...] = ()
    """All anomalies in this update."""
    new: tuple[Anomaly, ...] = ()
    """Anomalies that start: those that occur for the first time, or again after more than `hold` updates without."""
    first: tuple[Anomaly, ...] = ()
    """Anomalies that occur for the first time in the run."""
    detailed: bool = False
    """True if an anomaly is recent enough to write all details."""


class AnomalyMonitor:
    """A monitor that separates lasting anomalies from passing ones and reports each once."""

    def __init__(self, config: AnomaliesConfig, decisions: int) -> None:
        self.config, self.decisions = config, decisions
        self._streaks: dict[str, int] = {}
        """Length of the current streak of each key [updates]."""
        self._seen: dict[str, int] = {}
        """Last update in which an anomaly of a key was present."""

    def look(self, update: int, metrics: Mapping[str, float]) -> Findings:
        """Return the findings of an update with these measured metrics."""
        found, hold = find(metrics, self.config, self.decisions), self.config.hold
        self._streaks = {anomaly.key: self._streaks.get(anomaly.key, 0) + 1 for anomaly in found}
        present = [a for a in found if a.kind in AT_ONCE or self._streaks[a.key] >= self.config.patience]
        new = [a for a in present if update - self._seen.get(a.key, -math.inf) > hold + 1]
        first = [a for a in new if a.key not in self._seen]
        self._seen |= {anomaly.key: update for anomaly in present}
        detailed = any(update - last <= hold for last in self._seen.values())
        return Findings(present=tuple(present), new=tuple(new), first=tuple(first), detailed=detailed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"streaks": dict(self._streaks), "seen": dict(self._seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._streaks, self._seen = dict(state["streaks"]), dict(state["seen"])
