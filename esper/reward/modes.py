"""Reward modes: which terms are paid, and with which weight.

A mode is a config: the fields that `pays` names hold the weights of its terms, so that `reward.rent=0` drops rent, and
`reward.rent=2` weighs it anew. All modes pay in points and see the same signals, so that any of them go together in one run.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from esper.reward import table
from esper.reward.rewards import PerHost, Reward, WeightedReward
from esper.reward.table import Pays
from esper.reward.terms import RentUnit


@dataclass(kw_only=True, slots=True)
class RewardConfig:
    """A reward mode."""

    pays: ClassVar[Pays] = {}
    """The terms that are paid, by the field that holds their weight, in the order in which they are summed."""
    per_host: Any = None  # dict[str, int] | None: Hydra lets the command line add keys to no dict that says what it holds
    """Hosts of a training run by the mode that pays them, as in '{shaped:16,sparse:16}': the first 16 hosts by one, the next 16
    by the other. Together all hosts; the mode of the run, whose other keys hold for its hosts, must be among them, and the others
    pay by their defaults. Evaluation pays every host by the mode of the run. Null: all by the mode of the run."""

    def __post_init__(self) -> None:
        for key in self.pays:
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"reward.{key} must be a finite number of at least 0, got {value}: 0 drops the term")
        whole = isinstance(self.per_host, dict) and all(type(count) is int for count in self.counts.values())
        if self.per_host is not None and not whole:
            raise ValueError(
                f"reward.per_host must give numbers of hosts by mode, as in '{{shaped:16,sparse:16}}', got {self.per_host}"
            )
        if unknown := [name for name in self.counts if name not in MODES]:
            raise ValueError(f"reward.per_host knows no mode {unknown[0]}: choose out of {', '.join(MODES)}")
        if few := [name for name, count in self.counts.items() if count < 1]:
            raise ValueError(f"reward.per_host must give each mode at least 1 host, got {few[0]}: leave {few[0]} out")
        own = self.mode
        if self.counts and own not in self.counts:
            raise ValueError(
                f"reward.per_host has no hosts for reward={own}, whose keys would have no effect: add {own}, or choose "
                f"reward={next(iter(self.counts))}"
            )

    @property
    def counts(self) -> dict[str, int]:
        """`per_host`, empty where all hosts are paid alike."""
        return cast(dict[str, int], self.per_host or {})

    @property
    def mode(self) -> str:
        """The name that it is chosen by."""
        return next((name for name, kind in MODES.items() if kind is type(self)), type(self).__name__)

    def check_run(self, *, hosts: int, twins: int) -> None:
        """Raises ValueError where `per_host` does not go with a run of so many hosts, of which so many at a time are twins."""
        total, asked = sum(self.counts.values()), " + ".join(f"{name}:{count}" for name, count in self.counts.items())
        if self.counts and total != hosts:
            raise ValueError(f"reward.per_host pays {asked} = {total} hosts, and hosts={hosts}: make them equal")
        if split := [name for name, count in self.counts.items() if count % twins]:
            raise ValueError(
                f"reward.per_host must give {split[0]} a multiple of agent.twins={twins} hosts, got {self.counts[split[0]]}: "
                "twins are compared with each other, and so are paid alike"
            )

    def build(self, *, gamma: float) -> Reward:
        """The reward function of this mode, for any number of hosts.

        Args:
            gamma: the agent's discount per step, which potential-based shaping needs.
        """
        if not self.pays:
            raise TypeError(f"{type(self).__name__} does not say what it pays: define pays, or build(gamma)")
        return WeightedReward(self, gamma)

    def build_training(self, *, gamma: float) -> Reward:
        """The reward function of a training run: of this mode, or of several, host by host, as `per_host` says."""
        if not self.counts:
            return self.build(gamma=gamma)
        parts = {name: (self if name == self.mode else MODES[name]()).build(gamma=gamma) for name in self.counts}
        return PerHost(parts, self.counts)


@dataclass(kw_only=True, slots=True)
class ShapedConfig(RewardConfig):
    """Dense pay: accuracy and contribution as they come, rent as it is due. A weight of 0 drops a term.

    Left out on purpose: discounts for early germination (it is the early ones that help most), fines for a seed that waits (it
    costs rent, and is not paid at the end), pay for pairs that need each other (see `hindsight`), fines by the contribution of
    all seeds together (the alarms look seed by seed instead), and fines for what the masks forbid.
    """

    pays: ClassVar[Pays] = {
        "attribution": table.ATTRIBUTION,
        "accuracy_potential": table.ACCURACY_POTENTIAL,
        "stage_potential": table.STAGE_POTENTIAL,
        "rent": table.RENT,
        "germinate_cost": table.GERMINATE,
        "prune_cost": table.PRUNE,
        "auto_prune_cost": table.AUTO_PRUNE,
        "terminal": table.TERMINAL,
        "shock": table.SHOCK,
        "hindsight": table.HINDSIGHT,
    }
    attribution: float = 0.002
    """Points a host epoch for each percentage point a seed contributes, at least 0. Higher favours growing early."""
    rent: float = 0.5
    """Points a host epoch for one host-size of seed parameters, at least 0. Higher favours small seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """What rent is charged for."""
    accuracy_potential: float = 1.0
    """Weight of validation accuracy in the shaping potential, at least 0: pays the final accuracy as it grows."""
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0: pays a life brought forward, and takes it back."""
    germinate_cost: float = 0.2
    """Points for germinating a seed, at least 0. Higher makes a controller start fewer."""
    prune_cost: float = 0.1
    """Points for removing a seed, at least 0."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""
    auto_prune_cost: float = 0.0
    """Points for each seed that a rule of `slots` removes (`prune_after`, `prune_below`), at least 0. Higher makes a controller
    prune before the rule does."""
    shock: float = 0.0
    """Points for taking alpha from 0 to 1 in one step for a seed as large as the host, at least 0. Higher favours long ramps."""
    hindsight: float = 0.0
    """Points for each percentage point by which a seed that is kept was helped by seeds that are not, at least 0. Higher favours
    scaffolds; above 0, pairs of seeds are measured after every step."""


@dataclass(kw_only=True, slots=True)
class SimplifiedConfig(RewardConfig):
    """The end and the way there, without rent: what growth could do were it free. Says nothing on whether growth pays.

    The bonus for fossils counts seeds and can be farmed by keeping many that help a little: keep it small, or drop it.
    """

    pays: ClassVar[Pays] = {
        "stage_potential": table.STAGE_POTENTIAL,
        "action_cost": table.ACTIONS,
        "contributing": table.CONTRIBUTING,
        "terminal": table.TERMINAL,
    }
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0: pays a life brought forward, and takes it back."""
    action_cost: float = 0.1
    """Points for doing anything but to wait, at least 0."""
    contributing: float = 0.5
    """Points at the end for each fossil that contributes at least 1 pp, at least 0. Higher favours many seeds."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""


@dataclass(kw_only=True, slots=True)
class BasicConfig(RewardConfig):
    """What the host gained over the episode, minus rent, and pay for keeping seeds that help.

    A seed is paid for when it has become a fossil, by the smaller one of what it contributes and what the host gained since it
    came. There is no fixed sum for a fossil, which could be farmed, nor one for a seed that waited long: the gates say when one
    may be kept.
    """

    pays: ClassVar[Pays] = {
        "stage_potential": table.STAGE_POTENTIAL,
        "rent": table.RENT,
        "fossilized": table.FOSSILIZED,
        "gain": table.GAIN,
    }
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0: pays a life brought forward, and takes it back."""
    rent: float = 0.5
    """Points a host epoch for one host-size of seed parameters, at least 0. Higher favours small seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """What rent is charged for."""
    fossilized: float = 0.1
    """Points for each percentage point that a seed is worth when it is kept, at least 0."""
    gain: float = 1.0
    """Points at the end for each percentage point by which the committed network is better than the newborn host, at least 0."""


@dataclass(kw_only=True, slots=True)
class BasicPlusConfig(BasicConfig):
    """As basic, but most of the pay for keeping a seed comes step by step, for as long as the seed holds what it promised."""

    pays: ClassVar[Pays] = {**BasicConfig.pays, "drip": table.DRIP}
    fossilized: float = 0.03
    """Points at once for each percentage point that a seed is worth when it is kept, at least 0."""
    drip: float = 0.07
    """Points over the rest of the episode for each percentage point that a seed was worth when it was kept, at least 0."""
    min_steps: int = 5
    """The drip is spread over at least as many steps, at least 1. Higher makes keeping a seed at the last moment worth less."""

    def __post_init__(self) -> None:
        RewardConfig.__post_init__(self)
        if self.min_steps < 1:
            raise ValueError(f"reward.min_steps must be at least 1, got {self.min_steps}: 5 is a good start")


@dataclass(kw_only=True, slots=True)
class SparseConfig(RewardConfig):
    """Pay at the end only: accuracy of what was committed, minus rent for every seed still held, kept or not."""

    pays: ClassVar[Pays] = {"rent": table.FINAL_RENT, "terminal": table.TERMINAL}
    rent: float = 10.0
    """Points at the end for one host-size of seed parameters still held, at least 0."""
    rent_unit: RentUnit = RentUnit.params
    """What rent is charged for."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""


@dataclass(kw_only=True, slots=True)
class MinimalConfig(SparseConfig):
    """As sparse, and every removal costs a little: a controller that plants and prunes in turn is not left without a signal.

    A fine for removals before `slots.min_prune_age` alone would never be due, since the masks forbid them.
    """

    pays: ClassVar[Pays] = {**SparseConfig.pays, "prune_cost": table.PRUNE}
    prune_cost: float = 0.1
    """Points for removing a seed, at least 0."""


@dataclass(kw_only=True, slots=True)
class EscrowConfig(RewardConfig):
    """As shaped, but contributions are paid in advance into an escrow, which only seeds that are kept may keep."""

    pays: ClassVar[Pays] = {
        "escrow": table.ESCROW,
        "accuracy_potential": table.ACCURACY_POTENTIAL,
        "stage_potential": table.STAGE_POTENTIAL,
        "rent": table.RENT,
        "germinate_cost": table.GERMINATE,
        "prune_cost": table.PRUNE,
        "terminal": table.TERMINAL,
    }
    escrow: float = 0.1
    """Points for each percentage point in a seed's balance, at least 0. Higher favours seeds that help reliably."""
    window: int = 3
    """The balance follows the least worth of so many host epochs, at least 1. Higher pays later, and trusts luck less."""
    most: float = 2.0
    """A balance changes by at most so much in a host epoch [pp], above 0; what is taken back goes at once. Higher pays sooner."""
    rent: float = 0.5
    """Points a host epoch for one host-size of seed parameters, at least 0. Higher favours small seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """What rent is charged for."""
    accuracy_potential: float = 1.0
    """Weight of validation accuracy in the shaping potential, at least 0: pays the final accuracy as it grows."""
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0: pays a life brought forward, and takes it back."""
    germinate_cost: float = 0.2
    """Points for germinating a seed, at least 0. Higher makes a controller start fewer."""
    prune_cost: float = 0.1
    """Points for removing a seed, at least 0."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""

    def __post_init__(self) -> None:
        RewardConfig.__post_init__(self)
        if self.window < 1:
            raise ValueError(f"reward.window must be at least 1, got {self.window}: 3 is a good start")
        if not self.most > 0:
            raise ValueError(f"reward.most must be above 0, got {self.most}: 2 is a good start, and inf sets no limit")


@dataclass(kw_only=True, slots=True)
class LossConfig(RewardConfig):
    """The fall of the validation loss, minus rent: for tasks whose accuracy says little.

    Falls add up to that of the whole episode, so there is nothing to pay at the end; falls and rises weigh alike and are not
    clipped, or going up and down would pay. The loss is that of the whole network: seeds still on trial at the end count.
    """

    pays: ClassVar[Pays] = {
        "loss_fall": table.LOSS_FALL,
        "stage_potential": table.STAGE_POTENTIAL,
        "rent": table.RENT,
    }
    loss_fall: float = 40.0
    """Points for each nat by which the validation loss falls, at least 0. With 10 classes a guess stands at 2.3 nats."""
    stage_potential: float = 0.2
    """Weight of the seeds' stages in the shaping potential, at least 0: pays a life brought forward, and takes it back."""
    rent: float = 0.5
    """Points a host epoch for one host-size of seed parameters, at least 0. Higher favours small seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """What rent is charged for."""


@dataclass(kw_only=True, slots=True)
class AccuracyMinusRentConfig(RewardConfig):
    """The plain objective, and nothing on the way there: accuracy of the committed network minus rent for what it keeps.

    Where `sparse` charges for every seed still held, this charges for fossils alone: the others are not in the network it pays
    for.
    """

    pays: ClassVar[Pays] = {"rent": table.FOSSIL_RENT, "terminal": table.TERMINAL}
    rent: float = 10.0
    """Points at the end for fossils that cost as much as the host, at least 0. Higher favours small seeds, or none."""
    rent_unit: RentUnit = RentUnit.params
    """What rent is charged for."""
    terminal: float = 1.0
    """Points at the end for each percentage point of accuracy of the committed network, at least 0."""


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
}
"""Name -> mode. A new mode is a class and a line here."""
