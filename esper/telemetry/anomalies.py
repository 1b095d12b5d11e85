"""What looks wrong with learning: pure rules from the statistics of an update to anomalies, and a watch that remembers them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from esper.agent.ppo.diagnostics import HEADS, UpdateStats
from esper.env.actions import Head
from esper.reward.audit import Audit


@dataclass(kw_only=True, slots=True)
class AnomaliesConfig:
    """When an update is called anomalous. The thresholds only say what is reported; they change nothing that is learned."""

    hold: int = 5
    """For how long every record holds all details after an anomaly, at least 0 [updates]. More: longer stretches to look at."""
    patience: int = 3
    """Updates in a row before a condition counts, at least 1; ratios, KL, and gradients that explode or are not finite count at
    once. More: later."""
    min_steps: int = 32
    """Fewest steps with a choice before a head is judged, at least 1; the same for whole actions. More: fewer false alarms."""
    min_germinations: int = 32
    """Fewest seeds planted in a rollout before blueprints are judged, at least 1. More: fewer false alarms."""
    entropy_share: float = 0.02
    """Entropy of a head below this share of the largest possible is a collapse, in [0, 1]. Lower alarms later; 0 never."""
    ratio: float = 20.0
    """A probability that changes by more than this factor in one update explodes, above 1. Higher alarms later; inf never."""
    kl: float = 3.0
    """KL after an update beyond this multiple of agent.target_kl is a spike, above 0. Higher alarms later; inf never."""
    skipped: float = 0.9
    """An update that left out more than this share of its minibatches hardly learned, in [0, 1]. Higher alarms later; 1 never."""
    nonfinite: float = 0.0
    """More than this many minibatches of an update that were dropped, since a loss or a gradient was not finite, are an anomaly,
    at least 0. Higher alarms later; inf never."""
    explained_variance: float = -0.1
    """A critic that explains less than this share of the returns' variance is useless, at most 1; a constant explains 0, and a
    newborn critic about as much. Lower alarms later; -inf never."""
    gradient_above: float = 100.0
    """A part whose gradient norm is above this explodes. Healthy parts are near 1, as advantages and returns are normalised.
    Higher alarms later; inf never."""
    gradient_below: float = 1e-5
    """A part whose gradient norm is below this vanishes, at least 0 and below gradient_above. Lower alarms later; 0 never."""
    dead: float = 0.5
    """More than this share of dead units makes a dead core, in [0, 1]. Higher alarms later; 1 never."""
    saturated: float = 0.5
    """More than this share of saturated outputs or gates makes a saturated core, in [0, 1]. Higher alarms later; 1 never."""
    monoculture: float = 0.98
    """More than this share of the seeds planted of one blueprint is a monoculture, in [0, 1]. Higher alarms later; 1 never."""
    min_seed_epochs: int = 64
    """Fewest contributions measured in an episode before they are judged, at least 1. More: fewer false alarms."""
    attribution_ratio: float = 0.25
    """More than this share of seeds that contribute many times what the host gained by them means that hosts are made to lean on
    seeds, in [0, 1]. Higher alarms later; 1 never."""
    ransomware: float = 0.25
    """More than this share of seeds that hosts cannot do without, and are worse with than before, means the same and worse, in
    [0, 1]. Higher alarms later; 1 never."""
    goodhart: float = 0.0
    """A rank correlation below this between what hosts were paid and what they came to means that pay has parted from the
    outcome, in [-1, 1]. Lower alarms later; -1 never."""

    def __post_init__(self) -> None:
        rules: dict[str, tuple[bool, str]] = {"hold": (self.hold >= 0, "at least 0")}
        counts = ("patience", "min_steps", "min_germinations", "min_seed_epochs")
        rules |= {name: (getattr(self, name) >= 1, "at least 1") for name in counts}
        shares = ("entropy_share", "skipped", "dead", "saturated", "monoculture", "attribution_ratio", "ransomware")
        rules |= {name: (0 <= getattr(self, name) <= 1, "in [0, 1]") for name in shares}
        rules |= {
            "ratio": (self.ratio > 1, "above 1"),
            "kl": (self.kl > 0, "above 0"),
            "nonfinite": (self.nonfinite >= 0, "at least 0"),
            "explained_variance": (self.explained_variance <= 1, "at most 1"),
            "goodhart": (-1 <= self.goodhart <= 1, "in [-1, 1]"),
            "gradient_above": (self.gradient_above > 0, "above 0"),
            "gradient_below": (0 <= self.gradient_below < self.gradient_above, "at least 0 and below gradient_above"),
        }
        defaults = AnomaliesConfig.__dataclass_fields__
        for name, (fine, rule) in rules.items():
            if not fine:
                usual = defaults[name].default
                raise ValueError(f"telemetry.anomalies.{name} must be {rule}, got {getattr(self, name)}: {usual} is a good start")

    def build(self) -> "Watch":
        return Watch(self)


class Kind(StrEnum):
    """What is wrong."""

    entropy_collapse = "entropy_collapse"
    ratio_explosion = "ratio_explosion"
    kl_spike = "kl_spike"
    hardly_learned = "hardly_learned"
    nonfinite = "nonfinite"
    useless_critic = "useless_critic"
    exploding_gradient = "exploding_gradient"
    vanishing_gradient = "vanishing_gradient"
    dead_core = "dead_core"
    saturated_core = "saturated_core"
    monoculture = "monoculture"
    attribution_ratio = "attribution_ratio"
    ransomware = "ransomware"
    goodhart = "goodhart"


AT_ONCE = frozenset({Kind.ratio_explosion, Kind.kl_spike, Kind.nonfinite, Kind.exploding_gradient})
"""What one update is enough for. The others count when they last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """One thing that is wrong in one update."""

    kind: Kind
    where: str
    """Head, part or blueprint; `action` for whole actions, `policy` for all of it."""
    value: float
    """What was measured."""
    threshold: float
    """What it was compared with."""
    meaning: str
    """One sentence: what it means."""
    remedy: str
    """One sentence: what to try."""

    @property
    def key(self) -> str:
        """Anomalies of one key are the same thing, still going on."""
        return f"{self.kind}_{self.where}"

    def sentence(self) -> str:
        """For people."""
        return f"{self.kind.replace('_', ' ')} ({self.where}): {self.meaning}; {self.remedy}"


Found = Iterator[Anomaly]


def of_heads(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Heads that have decided for good, or jumped."""
    for head, seen in stats.diagnostics.heads.items():
        name = HEADS[head]
        if seen.steps < config.min_steps:
            continue
        if seen.entropy_share < config.entropy_share:
            yield Anomaly(
                kind=Kind.entropy_collapse,
                where=name,
                value=seen.entropy_share,
                threshold=config.entropy_share,
                meaning=f"the head {name} has {seen.entropy_share:.2%} of the entropy it could have, so it no longer explores",
                remedy="if that is too early, raise agent.entropy_coef and agent.entropy_final",
            )
        yield from _ratio(name, seen.ratio_max, config)


def _ratio(where: str, factor: float, config: AnomaliesConfig) -> Found:
    if factor > config.ratio:
        yield Anomaly(
            kind=Kind.ratio_explosion,
            where=where,
            value=factor,
            threshold=config.ratio,
            meaning=f"one update changed the probability of a choice ({where}) by a factor of {factor:.3g}",
            remedy="lower agent.learning_rate, agent.epochs or agent.target_kl",
        )


def of_actions(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Whole actions: how far the policy went, and whether it went anywhere."""
    seen = stats.diagnostics
    if seen.heads[Head.OP].steps < config.min_steps:
        return
    yield from _ratio("action", seen.ratio_max, config)
    if seen.kl_of_target > config.kl:
        yield Anomaly(
            kind=Kind.kl_spike,
            where="policy",
            value=seen.kl_of_target,
            threshold=config.kl,
            meaning=f"the updated policy is {seen.kl_of_target:.3g} times agent.target_kl away from the one that acted",
            remedy="lower agent.learning_rate, or raise agent.minibatches so that the distance is checked after smaller steps",
        )
    if seen.skipped_fraction > config.skipped:
        yield Anomaly(
            kind=Kind.hardly_learned,
            where="policy",
            value=seen.skipped_fraction,
            threshold=config.skipped,
            meaning=f"{seen.skipped_fraction:.0%} of the minibatches were left out: the policy had gone far enough too soon",
            remedy="lower agent.learning_rate, or raise agent.target_kl",
        )


def of_numbers(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Minibatches that could not be learned from. Three in a row end the run; this is for those before."""
    if stats.minibatches_nonfinite > config.nonfinite:
        yield Anomaly(
            kind=Kind.nonfinite,
            where="policy",
            value=stats.minibatches_nonfinite,
            threshold=config.nonfinite,
            meaning=f"{stats.minibatches_nonfinite:.0f} minibatches were dropped: a loss or a gradient was not finite",
            remedy="lower agent.learning_rate, and look at rewards and observations for outliers",
        )


def of_critic(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """A critic that a constant would beat."""
    seen = stats.diagnostics
    if seen.steps >= config.min_steps and seen.explained_variance_floored < config.explained_variance:
        yield Anomaly(
            kind=Kind.useless_critic,
            where="critic",
            value=seen.explained_variance_floored,
            threshold=config.explained_variance,
            meaning=f"the critic explains {seen.explained_variance_floored:.3g} of the returns' variance, and a constant 0",
            remedy="raise agent.value_coef or agent.epochs, and see which quarter of policy/value_error is off",
        )


def of_gradients(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """Parts that are torn, or do not learn. Where nearly every step was forced, the policy has nothing to learn from."""
    few = stats.diagnostics.heads[Head.OP].steps < config.min_steps
    for part, norm in stats.diagnostics.grad_norm.items():
        if norm > config.gradient_above:
            yield Anomaly(
                kind=Kind.exploding_gradient,
                where=part,
                value=norm,
                threshold=config.gradient_above,
                meaning=f"the gradient of the {part} had norm {norm:.3g} before clipping, where about 1 is usual",
                remedy="look at rewards and observations for outliers, and lower agent.learning_rate",
            )
        if norm < config.gradient_below and not few:
            yield Anomaly(
                kind=Kind.vanishing_gradient,
                where=part,
                value=norm,
                threshold=config.gradient_below,
                meaning=f"the gradient of the {part} had norm {norm:.3g}: it has stopped learning",
                remedy="see whether the core is saturated, or the rewards are all alike",
            )


def of_core(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """A memory that says nothing, or cannot change."""
    seen = stats.diagnostics.core
    if seen is None:
        return
    if seen.dead > config.dead:
        yield Anomaly(
            kind=Kind.dead_core,
            where="core",
            value=seen.dead,
            threshold=config.dead,
            meaning=f"{seen.dead:.0%} of the core's units hardly change their output over a whole rollout",
            remedy="lower agent.learning_rate, or lower agent.hidden if the task needs no more",
        )
    stuck = max(seen.saturated, seen.gates_saturated)
    if stuck > config.saturated:
        what = "outputs" if seen.saturated >= seen.gates_saturated else "gates"
        yield Anomaly(
            kind=Kind.saturated_core,
            where="core",
            value=stuck,
            threshold=config.saturated,
            meaning=f"{stuck:.0%} of the core's {what} are at the end of their range, where hardly a gradient passes",
            remedy="look at observations for large values, and lower agent.learning_rate",
        )


def of_blueprints(stats: UpdateStats, config: AnomaliesConfig) -> Found:
    """One blueprint everywhere."""
    seen = stats.diagnostics
    if seen.germinations >= config.min_germinations and seen.top_blueprint_share > config.monoculture:
        yield Anomaly(
            kind=Kind.monoculture,
            where=seen.top_blueprint,
            value=seen.top_blueprint_share,
            threshold=config.monoculture,
            meaning=f"{seen.top_blueprint_share:.0%} of {seen.germinations} seeds planted were {seen.top_blueprint}",
            remedy="if no fixed schedule says that it is the best one, raise agent.entropy_coef",
        )


def of_pay(audit: Audit, config: AnomaliesConfig) -> Found:
    """Pay that is not for what is meant: hosts that lean on seeds, are held to ransom by them, or are paid for something else."""
    if audit.seed_epochs >= config.min_seed_epochs:
        if audit.attribution_ratio > config.attribution_ratio:
            yield Anomaly(
                kind=Kind.attribution_ratio,
                where="seeds",
                value=audit.attribution_ratio,
                threshold=config.attribution_ratio,
                meaning=f"{audit.attribution_ratio:.0%} of the seeds contribute many times what their hosts gained",
                remedy="pay less for contributions (reward.attribution), or by reward=escrow or reward=basic, which see gains",
            )
        if audit.ransomware > config.ransomware:
            yield Anomaly(
                kind=Kind.ransomware,
                where="seeds",
                value=audit.ransomware,
                threshold=config.ransomware,
                meaning=f"{audit.ransomware:.0%} of the seeds cannot be done without, and left hosts worse than before",
                remedy="drop reward.attribution, look at slots.incubation and at the seeds' learning rate",
            )
    if audit.goodhart < config.goodhart:
        yield Anomaly(
            kind=Kind.goodhart,
            where="reward",
            value=audit.goodhart,
            threshold=config.goodhart,
            meaning=f"returns and committed accuracies have rank correlation {audit.goodhart:.2f}: pay is for other things",
            remedy="see which reward/ term is largest, and lower its weight",
        )


RULES: tuple[Callable[[UpdateStats, AnomaliesConfig], Found], ...] = (
    of_heads,
    of_actions,
    of_numbers,
    of_critic,
    of_gradients,
    of_core,
    of_blueprints,
)


def find(stats: UpdateStats, config: AnomaliesConfig, audit: Audit | None = None) -> list[Anomaly]:
    """Everything that looks wrong in one update, and in the pay of its episode if that was audited, of whatever age."""
    paid = of_pay(audit, config) if audit else ()
    return [*(anomaly for rule in RULES for anomaly in rule(stats, config)), *paid]


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What the watch says after an update."""

    present: tuple[Anomaly, ...] = ()
    """What is wrong now."""
    new: tuple[Anomaly, ...] = ()
    """Of these, what has begun: it was not there for as long as the details of the last time were kept."""
    first: tuple[Anomaly, ...] = ()
    """Of these, what this run had never seen before."""
    detailed: bool = False
    """Is an anomaly recent enough that everything should be written?"""


class Watch:
    """Remembers what was wrong, so that lasting things are told from passing ones, and nothing is said twice."""

    def __init__(self, config: AnomaliesConfig) -> None:
        self.config = config
        self._streaks: dict[str, int] = {}
        """Updates in a row, up to now, in which the rule of a key was broken."""
        self._seen: dict[str, int] = {}
        """Last update in which an anomaly of a key was present."""

    def look(self, update: int, stats: UpdateStats, audit: Audit | None = None) -> Findings:
        """Judges the update of this number, and the pay of its episode if that was audited."""
        found, hold = find(stats, self.config, audit), self.config.hold
        self._streaks = {anomaly.key: self._streaks.get(anomaly.key, 0) + 1 for anomaly in found}
        present = [a for a in found if a.kind in AT_ONCE or self._streaks[a.key] >= self.config.patience]
        new = [a for a in present if update - self._seen.get(a.key, -math.inf) > hold + 1]
        first = [a for a in new if a.key not in self._seen]
        self._seen |= {anomaly.key: update for anomaly in present}
        detailed = any(update - last <= hold for last in self._seen.values())
        return Findings(present=tuple(present), new=tuple(new), first=tuple(first), detailed=detailed)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from."""
        return {"streaks": dict(self._streaks), "seen": dict(self._seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        self._streaks, self._seen = dict(state["streaks"]), dict(state["seen"])
