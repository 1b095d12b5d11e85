"""Anomalies in learning: pure rules on the statistics of an update, and a watch that remembers them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from esper.agent.ppo.diagnostics import HEADS, UpdateStats
from esper.env.actions import Head
from esper.ranges import check_ranges
from esper.reward.audit import Audit


@dataclass(kw_only=True, slots=True)
class AnomaliesConfig:
    """Thresholds of anomalies. They affect what is reported, never what is learned."""

    hold: int = 5
    """Time after an anomaly during which every update is written with all details, at least 0 [updates]. Higher: more data."""
    patience: int = 3
    """Updates in a row before a condition is reported, at least 1. Ratios, KL, and exploding or non-finite gradients are reported
    at once. Higher: later alarms."""
    min_steps: int = 32
    """Minimum number of steps with a choice to check a head, or whole actions, at least 1. Higher: fewer false alarms."""
    min_germinations: int = 32
    """Minimum number of seeds planted in a rollout to check blueprints, at least 1. Higher: fewer false alarms."""
    entropy_share: float = 0.02
    """Entropy of a head, as a share of the largest possible, below which it has collapsed, in [0, 1]. Lower: later; 0: never."""
    ratio: float = 20.0
    """Factor by which one update may change a probability, above 1. Higher: later; inf: never."""
    kl: float = 3.0
    """KL after an update, as a multiple of agent.target_kl, above which it is a spike, above 0. Higher: later; inf: never."""
    skipped: float = 0.9
    """Share of skipped minibatches above which an update hardly learned, in [0, 1]. Higher: later; 1: never."""
    nonfinite: float = 0.0
    """Number of minibatches that an update may drop for non-finite losses or gradients, at least 0. Higher: later; inf: never."""
    explained_variance: float = -0.1
    """Share of the returns' variance below which a critic is useless, at most 1. A constant explains 0, as does an untrained
    critic. Lower: later; -inf: never."""
    gradient_above: float = 100.0
    """Gradient norm of a part above which it explodes, above 0. About 1 is usual, as advantages and returns are normalised.
    Higher: later; inf: never."""
    gradient_below: float = 1e-5
    """Gradient norm of a part below which it vanishes, at least 0 and below gradient_above. Lower: later; 0: never."""
    dead: float = 0.5
    """Share of dead units above which the core is dead, in [0, 1]. Higher: later; 1: never."""
    saturated: float = 0.5
    """Share of saturated outputs or gates above which the core is saturated, in [0, 1]. Higher: later; 1: never."""
    monoculture: float = 0.98
    """Share of planted seeds of one blueprint above which it is a monoculture, in [0, 1]. Higher: later; 1: never."""
    min_seed_epochs: int = 64
    """Minimum number of contributions measured in an episode to check them, at least 1. Higher: fewer false alarms."""
    attribution_ratio: float = 0.25
    """Share of seeds that contribute many times what the host gained, above which hosts merely depend on them, in [0, 1]. Higher:
    later; 1: never."""
    ransomware: float = 0.25
    """Share of indispensable seeds whose host is worse than before they came, above which it is ransomware, in [0, 1]. Higher:
    later; 1: never."""
    goodhart: float = 0.0
    """Rank correlation over hosts between return and committed accuracy below which rewards miss the goal, in [-1, 1]. Lower:
    later; -1: never."""

    def __post_init__(self) -> None:
        shares = ["entropy_share", "skipped", "dead", "saturated", "monoculture", "attribution_ratio", "ransomware"]
        ranges = {
            "[0, inf]": ["hold", "nonfinite", "gradient_below"],
            "[1, inf]": ["patience", "min_steps", "min_germinations", "min_seed_epochs"],
            "[0, 1]": shares,
            "(1, inf]": ["ratio"],
            "(0, inf]": ["kl", "gradient_above"],
            "[-inf, 1]": ["explained_variance"],
            "[-1, 1]": ["goodhart"],
        }
        check_ranges("telemetry.anomalies", self, ranges)
        if self.gradient_below >= self.gradient_above:
            bound = f"below gradient_above={self.gradient_above}, got {self.gradient_below}: the default is 1e-05"
            raise ValueError(f"telemetry.anomalies.gradient_below must be {bound}")

    def build(self) -> "Watch":
        return Watch(self)


AT_ONCE = frozenset({"ratio_explosion", "kl_spike", "nonfinite", "exploding_gradient"})
"""Kinds that one update suffices to report; the others must last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """One anomaly of one update."""

    kind: str
    where: str
    """Head, part or blueprint; `action` for whole actions, `policy` for all of it."""
    value: float
    """Measured value."""
    threshold: float
    """Threshold that it crossed."""
    meaning: str
    """What it means, as one clause."""
    remedy: str
    """What to try, as one clause."""

    @property
    def key(self) -> str:
        """Identity over time: anomalies with the same key are one that continues."""
        return f"{self.kind}_{self.where}"

    def sentence(self) -> str:
        """Return the anomaly as text."""
        return f"{self.kind.replace('_', ' ')} ({self.where}): {self.meaning}; {self.remedy}"


Found = Iterator[Anomaly]


def _rule(kind: str, where: str, value: float, threshold: float, meaning: str, remedy: str, *, below: bool = False) -> Found:
    """Yield an anomaly if a value is above its threshold, or below it; a NaN never is."""
    if value < threshold if below else value > threshold:
        yield Anomaly(kind=kind, where=where, value=value, threshold=threshold, meaning=meaning, remedy=remedy)


def _ratio(where: str, factor: float, config: AnomaliesConfig) -> Found:
    meaning = f"one update changed the probability of a choice ({where}) by a factor of {factor:.3g}"
    remedy = "lower agent.learning_rate, agent.epochs or agent.target_kl"
    return _rule("ratio_explosion", where, factor, config.ratio, meaning, remedy)


def of_heads(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield heads whose entropy has collapsed or whose probabilities jumped."""
    for head, seen in stats.diagnostics.heads.items():
        if seen.steps < config.min_steps:
            continue
        name, share = HEADS[head], seen.entropy_share
        meaning = f"the head {name} has {share:.2%} of the largest possible entropy, so it no longer explores"
        remedy = "if that is too early, raise agent.entropy_coef and agent.entropy_final"
        yield from _rule("entropy_collapse", name, share, config.entropy_share, meaning, remedy, below=True)
        yield from _ratio(name, seen.ratio_max, config)


def of_actions(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield policy steps that were too large, or hardly taken."""
    seen = stats.diagnostics
    if seen.heads[Head.OP].steps < config.min_steps:
        return
    yield from _ratio("action", seen.ratio_max, config)
    meaning = f"the updated policy is {seen.kl_of_target:.3g} times agent.target_kl away from the one that acted"
    remedy = "lower agent.learning_rate, or raise agent.minibatches so that the distance is checked after smaller steps"
    yield from _rule("kl_spike", "policy", seen.kl_of_target, config.kl, meaning, remedy)
    meaning = f"{seen.skipped_fraction:.0%} of the minibatches were skipped, as the policy had moved far enough too soon"
    remedy = "lower agent.learning_rate, or raise agent.target_kl"
    yield from _rule("hardly_learned", "policy", seen.skipped_fraction, config.skipped, meaning, remedy)


def of_minibatches(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield non-finite minibatches. Three in a row end the run; this reports earlier ones."""
    dropped = stats.minibatches_nonfinite
    meaning = f"{dropped:.0f} minibatches were dropped, since a loss or a gradient was not finite"
    remedy = "lower agent.learning_rate, and check rewards and observations for outliers"
    yield from _rule("nonfinite", "policy", dropped, config.nonfinite, meaning, remedy)


def of_critic(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield a critic that is worse than a constant."""
    seen, explained = stats.diagnostics, stats.diagnostics.explained_variance_floored
    if seen.steps >= config.min_steps:
        meaning = f"the critic explains {explained:.3g} of the returns' variance, where a constant explains 0"
        remedy = "raise agent.value_coef or agent.epochs, and see which quarter of policy/value_error is off"
        yield from _rule("useless_critic", "critic", explained, config.explained_variance, meaning, remedy, below=True)


def of_gradients(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield parts with exploding or vanishing gradients. If nearly every step was forced, there is nothing to learn from."""
    few = stats.diagnostics.heads[Head.OP].steps < config.min_steps
    for part, norm in stats.diagnostics.grad_norm.items():
        meaning = f"the gradient of the {part} had norm {norm:.3g} before clipping, where about 1 is usual"
        remedy = "check rewards and observations for outliers, and lower agent.learning_rate"
        yield from _rule("exploding_gradient", part, norm, config.gradient_above, meaning, remedy)
        if not few:
            meaning = f"the gradient of the {part} had norm {norm:.3g}, so it has stopped learning"
            remedy = "check whether the core is saturated, or all rewards are equal"
            yield from _rule("vanishing_gradient", part, norm, config.gradient_below, meaning, remedy, below=True)


def of_core(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield a recurrent core that is dead or saturated."""
    if (seen := stats.diagnostics.core) is None:
        return
    meaning = f"{seen.dead:.0%} of the core's units hardly change their output over a whole rollout"
    remedy = "lower agent.learning_rate, or lower agent.hidden if the task needs no more"
    yield from _rule("dead_core", "core", seen.dead, config.dead, meaning, remedy)
    stuck, what = max((seen.saturated, "outputs"), (seen.gates_saturated, "gates"), key=lambda pair: pair[0])
    meaning = f"{stuck:.0%} of the core's {what} are at the end of their range, where hardly any gradient passes"
    remedy = "check observations for large values, and lower agent.learning_rate"
    yield from _rule("saturated_core", "core", stuck, config.saturated, meaning, remedy)


def of_blueprints(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Yield one blueprint that crowds out all others."""
    seen, share = stats.diagnostics, stats.diagnostics.top_blueprint_share
    if seen.germinations >= config.min_germinations:
        meaning = f"{share:.0%} of {seen.germinations} planted seeds were {seen.top_blueprint}"
        remedy = "if no fixed schedule shows that it is the best one, raise agent.entropy_coef"
        yield from _rule("monoculture", seen.top_blueprint, share, config.monoculture, meaning, remedy)


def of_rewards(audit: Audit, config: AnomaliesConfig) -> Found:
    """Yield signs of reward hacking."""
    if audit.seed_epochs >= config.min_seed_epochs:
        meaning = f"{audit.attribution_ratio:.0%} of the seeds contribute many times what their hosts gained"
        remedy = "lower reward.attribution, or choose reward=escrow or reward=basic, which reward gains"
        yield from _rule("attribution_ratio", "seeds", audit.attribution_ratio, config.attribution_ratio, meaning, remedy)
        meaning = f"{audit.ransomware:.0%} of the seeds are indispensable to hosts that they left worse than before"
        remedy = "set reward.attribution to 0, and check slots.incubation and the seeds' learning rate"
        yield from _rule("ransomware", "seeds", audit.ransomware, config.ransomware, meaning, remedy)
    meaning = f"returns and committed accuracies have rank correlation {audit.goodhart:.2f}, so rewards miss the goal"
    remedy = "see which reward/ term is largest, and lower its weight"
    yield from _rule("goodhart", "reward", audit.goodhart, config.goodhart, meaning, remedy, below=True)


def find(stats: UpdateStats, config: AnomaliesConfig, audit: Audit | None = None) -> list[Anomaly]:
    """Return the anomalies of one update, and those of its episode's rewards if they were audited."""
    hacked = of_rewards(audit, config) if audit else ()
    rules = (of_heads, of_actions, of_minibatches, of_critic, of_gradients, of_core, of_blueprints)
    return [*(anomaly for rule in rules for anomaly in rule(stats, config)), *hacked]


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Anomalies after an update."""

    present: tuple[Anomaly, ...] = ()
    """All that are present."""
    new: tuple[Anomaly, ...] = ()
    """Those that begin: absent for longer than details of their last occurrence were kept."""
    first: tuple[Anomaly, ...] = ()
    """Those that the run never had before."""
    detailed: bool = False
    """True if an anomaly is recent enough to write all details."""


class Watch:
    """Remembers anomalies, to separate lasting from passing ones and to report each once."""

    def __init__(self, config: AnomaliesConfig) -> None:
        self.config = config
        self._streaks: dict[str, int] = {}
        """Length of the present streak of each key [updates]."""
        self._seen: dict[str, int] = {}
        """Last update in which an anomaly of a key was present."""

    def look(self, update: int, stats: UpdateStats, audit: Audit | None = None) -> Findings:
        """Return the findings of an update, and of its episode's rewards if they were audited."""
        found, hold = find(stats, self.config, audit), self.config.hold
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
