"""Why the lifecycle does not permit an operation on a slot, as a predicate of the slot."""

# S slots

from collections.abc import Callable

from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.operations import epochs_until_free
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import OCCUPIED, BoolArray, SlotState, Stage
from esper.text import counted

LEAVING = "holds a seed that is being removed, over the epochs that prune(ramp=...) gave it"
"""Why nothing is permitted in the slot of a seed that ramps down."""


def reason(doing: str, state: SlotState, index: int, rules: SlotsConfig, gates: GatesConfig, chosen_S: BoolArray) -> str:
    """Return why an operation is not permitted in a slot.

    Args:
        doing: name of the operation.
        state: state of the slots.
        index: the slot.
        rules: rules of the lifecycle.
        gates: conditions of the lifecycle.
        chosen_S: which slots are in use.
    """
    stage = Stage(int(state.stage[0, index]))
    if doing == "germinate":
        return _not_free(state, index, rules, chosen_S)
    if stage not in OCCUPIED:
        return f"holds no seed: it is {stage}"
    if state.dying[0, index]:
        return LEAVING
    if doing == "switch":
        kept = stage is Stage.FOSSILIZED
        return "may not be switched: set rules.switchable=True" if kept else f"holds no fossil: its seed is {stage}"
    if stage is Stage.FOSSILIZED:
        return "holds a fossil, which stays as it is"
    waits: dict[str, Callable[[], str]] = {
        "set_alpha": lambda: _no_alpha(state, index, stage),
        "prune": lambda: f"holds a seed of {_age(state.seed_age[0, index])}, and rules.min_prune_age is {rules.min_prune_age}",
        "fossilize": lambda: _not_worth(state, index, gates) if stage is Stage.HOLDING else _not_holding(stage),
        "advance": lambda: _not_worth(state, index, gates) if stage is Stage.HOLDING else _closed(state, index, stage, gates),
    }
    return waits[doing]()


def _not_free(state: SlotState, index: int, rules: SlotsConfig, chosen_S: BoolArray) -> str:
    """Return why no seed may germinate."""
    stage = Stage(int(state.stage[0, index]))
    if stage is Stage.FOSSILIZED:
        return "holds a fossil already"
    if state.dying[0, index]:
        return LEAVING
    if stage in OCCUPIED:
        least = rules.min_prune_age
        young = f"prune it at an age of {_age(least)} (rules.min_prune_age)"
        remedy = "prune it first" if state.seed_age[0, index] >= least else young
        return f"holds a seed already, which is {stage}: {remedy}"
    if free := int(epochs_until_free(state, rules)[0, index]):
        return f"is free again after {counted(free, 'net.begin_epoch() call')}"
    if not chosen_S[index]:
        return "is not in use: add it to rules.where"
    if 0 < rules.max_seeds <= state.within(*OCCUPIED).sum():
        return f"must stay empty, since rules.max_seeds={rules.max_seeds} are planted"
    return "must stay empty while another seed is germinated or in training (rules.one_at_a_time)"


def _no_alpha(state: SlotState, index: int, stage: Stage) -> str:
    """Return why alpha cannot get a new target."""
    if stage is Stage.BLENDING:
        left = counted(int(state.ramp_total[0, index] - state.ramp_done[0, index]), "net.begin_epoch() call")
        return f"holds a seed whose alpha still moves to its target, for {left}"
    return f"holds a seed in the stage {stage}: only one that is blending or holding has an alpha to move"


def _not_holding(stage: Stage) -> str:
    """Return why a seed before holding cannot be kept."""
    how = "once its alpha is 1 (set_alpha moves it)" if stage is Stage.BLENDING else "until it is"
    return f"holds a seed in the stage {stage}, and only a holding seed can be kept: call advance(slot) {how}"


def _not_worth(state: SlotState, index: int, gates: GatesConfig) -> str:
    """Return why a holding seed cannot be kept."""
    if not state.measured[0, index]:
        return "holds a seed whose contribution was never measured: call net.contributions(score)"
    value, error = float(state.contribution[0, index]), float(state.contribution_error[0, index])
    less = f" less {gates.contribution_z:g} standard errors of {error:.3g}" if gates.contribution_z else ""
    bound = f"gates.min_contribution={gates.min_contribution:g}, in the unit of the score"
    return f"holds a seed whose last measured contribution of {value:.3g}{less} is below {bound}"


def _closed(state: SlotState, index: int, stage: Stage, gates: GatesConfig) -> str:
    """Return why a seed may not leave training or blending."""
    age, least = int(state.stage_age[0, index]), gates.min_training if stage is Stage.TRAINING else gates.min_blending
    if age < least:
        return f"holds a seed in {stage} for {_age(age)}, and gates.min_{stage} is {least}: net.begin_epoch() begins an epoch"
    if stage is Stage.TRAINING:
        return (
            f"holds a seed in training, and the score has not risen by gates.min_improvement={gates.min_improvement} since "
            "the last net.contributions(score) before this stage: train on, and call it again"
        )
    target, alpha = float(state.ramp_target[0, index]), float(state.alpha[0, index])
    remedy = "net.begin_epoch() moves it" if target == 1 else "set_alpha(slot, 1.0) moves it"
    return f"holds a seed at alpha {alpha:.3g} with target {target:.3g}, and it leaves blending at 1: {remedy}"


def _age(epochs: int) -> str:
    return counted(int(epochs), "epoch")
