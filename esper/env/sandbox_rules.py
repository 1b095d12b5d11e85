"""The rules of the sandbox, as pure functions of the configuration of a host's slots."""

# K blueprints, Q kinds, S slots, O operations, C configurations of a host's slots

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from esper.env.actions import execute, legal_slots
from esper.env.spec import EnvSpec
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import OneSeedConfig, SlotsConfig
from esper.lifecycle.stages import OCCUPIED, TAKES_PART, SlotState, Stage

Float64Array = npt.NDArray[np.float64]
CONTRIBUTION_UNIT = 2.0
"""Worth that the observation shows as a contribution of 1."""
LIGHT_ACCURACY, KEEP_BONUS = 0.7, 4.0
"""Defaults of `SandboxRules` and of the keys of env=sandbox."""
SLOT_FEATURES = ("light", *(stage.name.lower() for stage in Stage), "alpha", "stage_age", "contribution", "measured")


def default_worth() -> Float64Array:
    """Return `[Q, S, K]`: three kinds that pay in one slot each, for one blueprint, and one that never pays."""
    worth_QSK = np.zeros((4, 3, 2))
    for kind, blueprint in enumerate((0, 1, 0)):
        worth_QSK[kind, kind] = 0.3
        worth_QSK[kind, kind, blueprint] = 1.0
    return worth_QSK


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxRules:
    """The rules of the sandbox."""

    num_steps: int = 10
    """T, host epochs of an episode."""
    worth_QSK: Float64Array = field(default_factory=default_worth)
    """Reward of a seed per step at alpha 1, by the host's kind. All kinds are equally frequent."""
    keep_bonus: float = KEEP_BONUS
    """Multiple of its worth that a fossilized seed pays at the end."""
    rent_K: tuple[float, ...] = (0.05, 0.1)
    """Cost of a seed per step."""
    light_accuracy: float = LIGHT_ACCURACY
    """Probability that the light is at the slot that pays best; uniform on a host that never pays."""
    slots: SlotsConfig = field(default_factory=lambda: OneSeedConfig(min_prune_age=1, embargo=1))

    @property
    def light_QS(self) -> Float64Array:
        """Return `[Q, S]`: probability that a slot lights up, by kind."""
        kinds, slots, _ = self.worth_QSK.shape
        best_QS = self.worth_QSK.max(axis=2)
        light_QS = np.full((kinds, slots), (1 - self.light_accuracy) / (slots - 1))
        light_QS[np.arange(kinds), best_QS.argmax(axis=1)] = self.light_accuracy
        return np.where(best_QS.any(axis=1, keepdims=True), light_QS, 1 / slots)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the slots, all in row 0."""
        return tuple(f"r0c{slot}" for slot in range(self.worth_QSK.shape[1]))

    @property
    def chosen_S(self) -> npt.NDArray[np.bool_]:
        """Slots in use."""
        return self.slots.chosen(self.slot_names)

    def layout(self, num_hosts: int) -> EnvSpec:
        """Return sizes and names of observations and actions."""
        _, slots, blueprints = self.worth_QSK.shape
        worth = float(np.abs(self.worth_QSK).max()) / CONTRIBUTION_UNIT
        return EnvSpec(
            num_hosts=num_hosts,
            num_steps=self.num_steps,
            slot_names=self.slot_names,
            blueprint_names=tuple(f"kind{blueprint}" for blueprint in range(blueprints)),
            seed_params=tuple((int(100 * rent),) * slots for rent in self.rent_K),
            feature_names=("time_left",),
            slot_feature_names=SLOT_FEATURES,
            max_seeds=self.slots.max_seeds,
            feature_ranges=((0.0, 1.0),),
            slot_feature_ranges=tuple((-worth, worth) if name == "contribution" else (0.0, 1.0) for name in SLOT_FEATURES),
        )

    def legal(self, state: SlotState) -> npt.NDArray[np.bool_]:
        """Return `[C, O, S]`: the operations that are legal on each slot."""
        return legal_slots(state, self.slots, self.chosen_S)

    def grow(self, state: SlotState, action_CH: npt.NDArray[np.int64]) -> SlotState:
        """Return configurations after one step of legal actions, in which every seed at an alpha above 0 is measured."""
        state = lifecycle.tick(execute(state, action_CH, self.slots), self.slots, GatesConfig())
        return replace(state, measured=state.measured | (state.within(*TAKES_PART) & (state.alpha > 0)))

    def worth_of(self, state: SlotState) -> Float64Array:
        """Return `[C, S, Q]`: worth of the seed in each slot on a host of each kind; 0 where there is no seed."""
        slot_S = np.arange(state.stage.shape[1])
        worth_CSQ = np.moveaxis(self.worth_QSK, 0, 2)[slot_S, state.blueprint]
        return np.where(state.within(*OCCUPIED)[:, :, None], worth_CSQ, 0.0)

    def reward(self, state: SlotState, *, last: bool) -> Float64Array:
        """Return `[C, Q]`: reward of a step that leads to these configurations, on a host of each kind."""
        rent_CS = np.where(state.within(*OCCUPIED), np.array(self.rent_K)[state.blueprint], 0.0)
        in_CS = np.where(state.within(*TAKES_PART), state.alpha, 0.0)
        times_CS = in_CS + self.keep_bonus * last * state.within(Stage.FOSSILIZED)
        return (times_CS[:, :, None] * self.worth_of(state)).sum(axis=1) - rent_CS.sum(axis=1)[:, None]
