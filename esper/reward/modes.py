"""Reward modes: weighted sums of terms.

A mode is a config whose fields named in `pays` are the weights of its terms: `reward.rent=0` drops rent, `reward.rent=2` changes
its weight. All modes pay in points and use the same signals, so one run can combine any of them.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, cast

from esper.lifecycle.slots import SlotsConfig
from esper.options import Option
from esper.ranges import check_ranges
from esper.reward import table
from esper.reward.rewards import PerHost, Reward, WeightedReward
from esper.reward.table import Pays
from esper.reward.terms import RentUnit


@dataclass(kw_only=True, slots=True)
class RewardConfig(Option):
    """Config of a reward mode."""

    pays: ClassVar[Pays] = {}
    """Terms by the field of their weight, in the order of the sum."""
    ranges: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Ranges of the other fields, as for `check_ranges`."""
    per_host: Any = None  # dict[str, int] | None, untyped: Hydra refuses new keys in a typed dict
    """Number of training hosts per reward mode, as in '{shaped:16,sparse:16}': the first 16 hosts are paid by shaped, the next 16
    by sparse. The numbers must add up to hosts and include the mode of the run; the other modes use their defaults. Evaluation
    always uses the mode of the run. Null: one mode for all hosts."""

    def __post_init__(self) -> None:
        check_ranges("reward", self, {"[0, inf)": [*self.pays], **self.ranges})
        whole = isinstance(self.per_host, dict) and all(type(count) is int for count in self.counts.values())
        if self.per_host is not None and not whole:
            raise ValueError(
                f"reward.per_host must give numbers of hosts by mode, as in '{{shaped:16,sparse:16}}', got {self.per_host}"
            )
        if unknown := [name for name in self.counts if name not in MODES]:
            raise ValueError(f"reward.per_host has an unknown mode {unknown[0]}: choose from {', '.join(MODES)}")
        if few := [name for name, count in self.counts.items() if count < 1]:
            raise ValueError(f"reward.per_host must give each mode at least 1 host, got {few[0]}: leave {few[0]} out")
        own = self.mode
        if self.counts and own not in self.counts:
            raise ValueError(
                f"reward.per_host has no hosts for reward={own}, whose keys would have no effect: add {own}, or choose "
                f"reward={next(iter(self.counts))}"
            )
        self._warn_of_unread()

    def _warn_of_unread(self) -> None:
        """Warn of keys that were set, and that only terms of weight 0 read."""
        for key in (one for one in fields(self) if one.default not in (MISSING, getattr(self, one.name))):
            weights = [weight for weight, term in self.pays.items() if key.name in term.reads]
            if weights and not any(getattr(self, weight) for weight in weights):
                typed = f"reward.{key.name}={getattr(self, key.name)}"
                dropped = " and ".join(f"reward.{weight}=0" for weight in weights)
                warnings.warn(f"{typed} has no effect with {dropped}: leave it out", stacklevel=3)

    @property
    def counts(self) -> dict[str, int]:
        """Number of hosts per mode, empty for a single mode."""
        return cast(dict[str, int], self.per_host or {})

    @property
    def mode(self) -> str:
        """Option name of this mode."""
        return next((name for name, kind in MODES.items() if kind is type(self)), type(self).__name__)

    def check_run(self, *, hosts: int, twins: int) -> None:
        """Raise ValueError if `per_host` does not fit the number of hosts and twins of a run."""
        total, asked = sum(self.counts.values()), " + ".join(f"{name}:{count}" for name, count in self.counts.items())
        if self.counts and total != hosts:
            raise ValueError(f"reward.per_host pays {asked} = {total} hosts, and hosts={hosts}: make them equal")
        if split := [name for name, count in self.counts.items() if count % twins]:
            raise ValueError(
                f"reward.per_host must give {split[0]} a multiple of agent.twins={twins} hosts, got {self.counts[split[0]]}: "
                "twins are compared with each other and need the same reward"
            )

    def check_slots(self, slots: SlotsConfig, steps: int) -> None:
        """Raise ValueError if a key has no effect under the rules of the slots, or in episodes of `steps` host epochs."""

    def build(self, *, gamma: float) -> Reward:
        """Return the reward function of this mode, for any number of hosts.

        Args:
            gamma: the agent's discount per step, for potential-based shaping.
        """
        if not self.pays:
            raise TypeError(f"{type(self).__name__} defines neither pays nor build(gamma)")
        return WeightedReward(self, gamma)

    def build_training(self, *, gamma: float) -> Reward:
        """Return the reward function of a training run: this mode, or the modes of `per_host`."""
        if not self.counts:
            return self.build(gamma=gamma)
        parts = {name: (self if name == self.mode else MODES[name]()).build(gamma=gamma) for name in self.counts}
        return PerHost(parts, self.counts)


@dataclass(kw_only=True, slots=True)
class DenseConfig(RewardConfig):
    """The terms that `shaped` and `escrow` share: both potentials, rent, costs of actions, and the final accuracy."""

    pays: ClassVar[Pays] = {
        "accuracy_potential": table.ACCURACY_POTENTIAL,
        "stage_potential": table.STAGE_POTENTIAL,
        "rent": table.RENT,
        "germinate_cost": table.GERMINATE,
        "prune_cost": table.PRUNE,
        "terminal": table.TERMINAL,
    }
    rent: float = 0.5
    """Points per host epoch for seeds as large as the host, at least 0. Higher: smaller seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """Unit of rent: params, flops or latency."""
    accuracy_potential: float = 1.0
    """Weight of validation accuracy in the shaping potential, at least 0. Higher: earlier reward for the final accuracy."""
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0. Higher: earlier reward for later stages."""
    germinate_cost: float = 0.2
    """Points deducted per germination, at least 0. Higher: fewer seeds."""
    prune_cost: float = 0.1
    """Points deducted per pruning, at least 0. Higher: fewer prunings."""
    terminal: float = 1.0
    """Points at the end per percentage point of committed accuracy, at least 0. Higher: the outcome outweighs other terms."""


@dataclass(kw_only=True, slots=True)
class ShapedConfig(DenseConfig):
    """Dense reward: accuracy, contributions and rent at every step. A weight of 0 drops a term.

    Omitted on purpose: discounts for early germination (early seeds help most), penalties for idle seeds (they cost rent and earn
    nothing at the end), pay for interacting pairs (see `hindsight`), penalties on the joint contribution (anomaly checks work per
    seed), and penalties for actions that the masks forbid.
    """

    pays: ClassVar[Pays] = {
        "attribution": table.ATTRIBUTION,
        **DenseConfig.pays,
        "auto_prune_cost": table.AUTO_PRUNE,
        "shock": table.SHOCK,
        "hindsight": table.HINDSIGHT,
    }
    attribution: float = 0.002
    """Points per host epoch and percentage point of contribution, at least 0. Higher: earlier growth."""
    auto_prune_cost: float = 0.0
    """Points deducted per seed removed by a rule of `slots` (`prune_after`, `prune_below`), at least 0. Higher: the controller
    prunes before the rule does."""
    shock: float = 0.0
    """Points deducted for moving alpha from 0 to 1 in one step, for a seed of host size, at least 0. Higher: longer ramps."""
    hindsight: float = 0.0
    """Points per percentage point by which other seeds helped a new fossil, at least 0. Higher: more scaffolds. Above 0, pairs of
    seeds are measured after every step."""

    def check_slots(self, slots: SlotsConfig, steps: int) -> None:
        if self.hindsight and slots.max_seeds == 1:
            raise ValueError(
                "reward.hindsight pays for seeds beside each other, and slots.max_seeds=1 allows one: raise it, as in slots=all, "
                "or leave reward.hindsight out"
            )
        if self.auto_prune_cost and not slots.prune_after and slots.prune_below is None:
            raise ValueError(
                "reward.auto_prune_cost has no effect, since no rule of slots removes seeds: set slots.prune_after or "
                "slots.prune_below, or leave it out"
            )


@dataclass(kw_only=True, slots=True)
class SimplifiedConfig(RewardConfig):
    """Final accuracy and progress without rent: what growth can reach if parameters cost nothing.

    The bonus for fossils counts seeds and can be farmed with many small contributions: keep it small, or drop it.
    """

    pays: ClassVar[Pays] = {
        "stage_potential": table.STAGE_POTENTIAL,
        "action_cost": table.ACTIONS,
        "contributing": table.CONTRIBUTING,
        "terminal": table.TERMINAL,
    }
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0. Higher: earlier reward for later stages."""
    action_cost: float = 0.1
    """Points deducted per operation other than WAIT, at least 0. Higher: fewer actions."""
    contributing: float = 0.5
    """Points at the end per fossil that contributes at least 1 pp, at least 0. Higher: more seeds."""
    terminal: float = 1.0
    """Points at the end per percentage point of committed accuracy, at least 0. Higher: the outcome outweighs other terms."""


@dataclass(kw_only=True, slots=True)
class BasicConfig(RewardConfig):
    """Gain over the newborn host minus rent, plus pay for fossilizing useful seeds.

    A new fossil pays the minimum of its contribution and the host's gain since its germination. There is no fixed bonus per
    fossil, which could be farmed, and no bonus for waiting: the gates decide when a seed may fossilize.
    """

    pays: ClassVar[Pays] = {
        "stage_potential": table.STAGE_POTENTIAL,
        "rent": table.RENT,
        "fossilized": table.FOSSILIZED,
        "gain": table.GAIN,
    }
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0. Higher: earlier reward for later stages."""
    rent: float = 0.5
    """Points per host epoch for seeds as large as the host, at least 0. Higher: smaller seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """Unit of rent: params, flops or latency."""
    fossilized: float = 0.1
    """Points per percentage point of a new fossil's contribution or its host's gain, whichever is smaller, at least 0. Higher:
    more fossils."""
    gain: float = 1.0
    """Points at the end per percentage point of committed accuracy above the newborn host, at least 0. Higher: the outcome
    outweighs other terms."""


@dataclass(kw_only=True, slots=True)
class BasicPlusConfig(BasicConfig):
    """Basic with most of the pay for a fossil spread over later steps, while the fossil keeps its contribution."""

    pays: ClassVar[Pays] = {**BasicConfig.pays, "drip": table.DRIP}
    ranges: ClassVar[Mapping[str, Sequence[str]]] = {"[1, inf]": ["min_steps"]}
    fossilized: float = 0.03
    """Points at once per percentage point of a new fossil's contribution or its host's gain, whichever is smaller, at least 0.
    Higher: more fossils."""
    drip: float = 0.07
    """Points over the rest of the episode per percentage point of a new fossil's contribution or its host's gain, whichever is
    smaller, at least 0. Higher: lasting fossils."""
    min_steps: int = 5
    """Minimum number of steps over which the drip is spread, at least 1. Higher: less pay for late fossils."""


@dataclass(kw_only=True, slots=True)
class SparseConfig(RewardConfig):
    """Reward at the end only: committed accuracy minus rent for every seed, fossil or live."""

    pays: ClassVar[Pays] = {"rent": table.FINAL_RENT, "terminal": table.TERMINAL}
    rent: float = 10.0
    """Points deducted at the end for seeds as large as the host, at least 0. Higher: smaller seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """Unit of rent: params, flops or latency."""
    terminal: float = 1.0
    """Points at the end per percentage point of committed accuracy, at least 0. Higher: the outcome outweighs other terms."""


@dataclass(kw_only=True, slots=True)
class MinimalConfig(SparseConfig):
    """Sparse with a small cost per pruning, which discourages alternate planting and pruning.

    A cost restricted to prunings before `slots.min_prune_age` would never apply, since the masks forbid them.
    """

    pays: ClassVar[Pays] = {**SparseConfig.pays, "prune_cost": table.PRUNE}
    prune_cost: float = 0.1
    """Points deducted per pruning, at least 0. Higher: fewer prunings."""


@dataclass(kw_only=True, slots=True)
class EscrowConfig(DenseConfig):
    """Shaped with contributions paid in advance into an escrow that only fossils keep."""

    pays: ClassVar[Pays] = {"escrow": table.ESCROW, **DenseConfig.pays}
    ranges: ClassVar[Mapping[str, Sequence[str]]] = {"[1, inf]": ["window"], "(0, inf]": ["most"]}
    escrow: float = 0.1
    """Points per percentage point of a seed's balance, at least 0. Higher: reliably useful seeds."""
    window: int = 3
    """Number of host epochs over whose minimum the balance follows a seed, at least 1. Higher: later pay, less noise."""
    most: float = 2.0
    """Maximum change of a balance per host epoch [pp], above 0; forfeits are immediate. Higher: earlier pay."""

    def check_slots(self, slots: SlotsConfig, steps: int) -> None:
        if self.window > steps:
            raise ValueError(
                f"reward.window={self.window} exceeds steps={steps}, so that the escrow would never pay: lower reward.window, or "
                "raise steps"
            )


@dataclass(kw_only=True, slots=True)
class LossConfig(RewardConfig):
    """Decrease of the validation loss minus rent, for tasks whose accuracy is uninformative.

    Decreases telescope to the decrease over the episode, so there is no term at the end. Increases weigh the same and are not
    clipped, or oscillation would pay. The loss includes live seeds, even at the end.
    """

    pays: ClassVar[Pays] = {"loss_fall": table.LOSS_FALL, "stage_potential": table.STAGE_POTENTIAL, "rent": table.RENT}
    loss_fall: float = 40.0
    """Points per nat of decrease of the validation loss, at least 0. The chance loss of 10 classes is 2.3 nats."""
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0. Higher: earlier reward for later stages."""
    rent: float = 0.5
    """Points per host epoch for seeds as large as the host, at least 0. Higher: smaller seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """Unit of rent: params, flops or latency."""


@dataclass(kw_only=True, slots=True)
class AccuracyMinusRentConfig(RewardConfig):
    """The plain objective at the end only: committed accuracy minus rent for fossils.

    Unlike `sparse` it charges no rent for live seeds, which are not part of the committed network.
    """

    pays: ClassVar[Pays] = {"rent": table.FOSSIL_RENT, "terminal": table.TERMINAL}
    rent: float = 10.0
    """Points deducted at the end for fossils as large as the host, at least 0. Higher: smaller seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """Unit of rent: params, flops or latency."""
    terminal: float = 1.0
    """Points at the end per percentage point of committed accuracy, at least 0. Higher: the outcome outweighs other terms."""


@dataclass(kw_only=True, slots=True)
class OnlineConfig(RewardConfig):
    """Mean validation accuracy over the host epochs minus the mean rent: what counts is the whole episode, not its end.

    For deployed hosts. The accuracy is that of the network with all seeds at their current alpha;
    an epoch that is rolled back pays nothing. Rent is charged for every epoch in which a seed is held, from its germination on,
    so late and removed seeds cost less. For the objective at the end only, see `accuracy_minus_rent`.
    """

    pays: ClassVar[Pays] = {"rent": table.MEAN_RENT, "online": table.ONLINE}
    rent: float = 10.0
    """Points deducted for seeds as large as the host that are held throughout the episode, at least 0; in proportion for fewer
    epochs. Higher: smaller seeds, held for a shorter time, or none."""
    rent_unit: RentUnit = RentUnit.params
    """Unit of rent: params, flops or latency."""
    online: float = 1.0
    """Points per percentage point of mean accuracy, at least 0. Higher: accuracy outweighs rent."""


MODES: dict[str, type[RewardConfig]] = {
    "shaped": ShapedConfig,
    "simplified": SimplifiedConfig,
    "basic": BasicConfig,
    "basic_plus": BasicPlusConfig,
    "sparse": SparseConfig,
    "minimal": MinimalConfig,
    "escrow": EscrowConfig,
    "loss": LossConfig,
    "accuracy_minus_rent": AccuracyMinusRentConfig,
    "online": OnlineConfig,
}
"""Modes by option name; a new mode takes one class and one line here."""
