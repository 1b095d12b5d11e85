"""Errors and warnings on operations that are not permitted, or that may not do what the user expects."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from esper.config import did_you_mean
from esper.evaluation.exported import FORMATS
from esper.growable.slot import has_slot
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import Stage
from esper.text import counted

NEEDS = {
    "germinate": "the slot must be dormant and in use (rules), and the limit rules.max_seeds not reached",
    "advance": "the slot must hold a seed that is not a fossil",
    "fossilize": "the seed must be holding, so its alpha must be 1 (set_alpha), and its contribution measured by "
    "contributions() and at least gates.min_contribution, in the unit of its score",
    "set_alpha": "the seed must be blending or holding, with alpha at its target",
    "switch": "the slot must hold a fossil, and rules.switchable must be true",
    "prune": "the slot must hold a seed that is not a fossil and is at least rules.min_prune_age epochs old",
}
"""What each operation needs."""
ADVANCES = {
    Stage.TRAINING: "a seed leaves training after gates.min_training epochs, each of which begins with net.begin_epoch()",
    Stage.BLENDING: "a seed leaves blending at alpha 1, after gates.min_blending epochs",
    Stage.HOLDING: "a holding seed is fossilized next, once contributions() has measured at least gates.min_contribution; "
    "its last measurement counts, at whatever alpha",
}
"""What a seed needs to leave each stage; a germinated one may advance at once."""
ONE_TENSOR = "before esper.grow, wrap the network in a module that takes one tensor and returns one"


def check_slot(slot: object, names: Sequence[str]) -> None:
    """Raise ValueError if there is no slot of this name."""
    if slot in names:
        return
    if str(slot) in names:
        raise ValueError(f"slots have names, got the {type(slot).__name__} {slot}: write '{slot}'")
    meant = did_you_mean(slot, list(names)) if isinstance(slot, str) else ""
    raise ValueError(f"there is no slot {slot}: choose from {', '.join(names)}{meant}")


def check_settings(module: object, rules: object, gates: object) -> None:
    """Raise ValueError if an argument of `esper.grow` has the wrong type."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    for name, given, kind in (("rules", rules, SlotsConfig), ("gates", gates, GatesConfig)):
        if given is not None and not isinstance(given, kind):
            raise ValueError(f"{name} must be a {kind.__name__}, not {type(given).__name__}: write {name}={kind.__name__}(...)")


def message(doing: str, slot: str, stage: Stage, age: int, free: int = 0, *, gains: bool = False) -> str:
    """Return why an operation is not permitted.

    Args:
        doing: name of the operation.
        slot: name of the slot.
        stage: its stage.
        age: age of the stage [epochs].
        free: epochs until an emptied slot can be used again; 0 in other stages.
        gains: whether `gates.min_improvement` is set.
    """
    if doing == "germinate" and free:
        return f"germinate is not permitted in slot {slot} yet: it is free again after {counted(free, 'net.begin_epoch() call')}"
    need = ADVANCES.get(stage, NEEDS[doing]) if doing == "advance" else NEEDS[doing]
    if doing == "advance" and stage is Stage.TRAINING and gains:
        need += (
            ", once the score has risen by gates.min_improvement since the last contributions() call before its training began"
        )
    return f"{doing} is not permitted in slot {slot}, which is {stage} (age {age}): {need} (docs/lifecycle.md)"


def warn_of_no_epoch(stages: Mapping[str, Stage]) -> None:
    """Warn if contributions are measured while a seed is not computed yet."""
    waiting = [name for name, stage in stages.items() if stage is Stage.GERMINATED]
    if waiting:
        warnings.warn(
            f"no epoch has begun since the seed in slot {', '.join(waiting)} was planted, so it has no contribution: call "
            "net.begin_epoch() before each epoch of training",
            stacklevel=3,
        )


def check_whole(whole: bool, doing: str) -> None:
    """Raise RuntimeError if a seed is switched off by `without`: what is measured, or goes on, would not be of the network."""
    if not whole:
        raise RuntimeError(f"{doing}() was called in a `with net.without(...)` block: leave the block first")


def informing(loss: Callable[[], Tensor] | None) -> Callable[[], Tensor]:
    """Return the loss of a batch for a seed with `init=informed`; raise ValueError if there is none."""
    if loss is None:
        raise ValueError("init=informed needs the gradient at the slot: give germinate(..., loss=function) too")
    return loss


def check_export(format: str, samples: Tensor) -> None:
    """Raise ValueError if a network cannot be exported in a format, or not be compared on these samples."""
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is not known: choose from {', '.join(FORMATS)}")
    if not isinstance(samples, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        remedy = ONE_TENSOR if isinstance(samples, tuple | dict) else "convert it"
        raise ValueError(f"samples must be one tensor, got a {type(samples).__name__}: {remedy}")
    if len(samples) < 3:
        raise ValueError(f"samples must be at least three, got {len(samples)}")


def check_exported(outputs: object) -> None:
    """Raise ValueError if a network returns anything but a tensor, which no format of a grown network can hold."""
    if not isinstance(outputs, Tensor):
        raise ValueError(f"the network returns a {type(outputs).__name__}, but export needs one tensor: {ONE_TENSOR}")


def warn_untrained(slot: str) -> None:
    """Warn that a seed has not learned in an epoch."""
    warnings.warn(
        f"no optimizer has changed the seed in slot {slot} in an epoch: call net.attach(optimizer), and check that the loss "
        "depends on this slot",
        stacklevel=3,
    )


def before_planting(module: nn.Module, slot: str, path: str) -> None:
    """Raise ValueError if a submodule was replaced since it got its slot, and warn that the processes of a distributed training
    do not share a seed."""
    if not has_slot(module.get_submodule(path)):
        raise ValueError(
            f"slot {slot} no longer exists, because submodule {path} was replaced after esper.grow: "
            "convert the module before that call"
        )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        warnings.warn(
            "this seed is not synchronised across processes: each draws its own weights, and DistributedDataParallel averages "
            "only the gradients of the parameters it was built with: plant with equal random seeds, and average the gradients of "
            "net.slots yourself",
            stacklevel=3,
        )


def check_checkpoint(state: Mapping[str, Any], slots: Mapping[str, str], incubation: str) -> None:
    """Raise ValueError if a checkpoint is that of a module with other slots (by name, with their paths) or another incubation."""
    saved = dict(zip(state["slots"], state.get("paths", slots.values()), strict=False))  # earlier versions did not save paths
    if list(saved.items()) != list(slots.items()):
        there, here = (
            ", ".join(name if name == path else f"{name}={path}" for name, path in one.items()) for one in (saved, slots)
        )
        raise ValueError(
            f"the checkpoint has the slots {there}, but this module has {here}: call esper.grow with the slots of the checkpoint"
        )
    if (trained := state.get("incubation", incubation)) != incubation:  # which earlier versions did not save, either
        raise ValueError(
            f"the checkpoint has incubation={trained}, but this module has incubation={incubation}: "
            f"call esper.grow(..., incubation={trained!r})"
        )


def check_weight(alpha: float, *, above: float | None = None) -> None:
    """Check a blend weight.

    Args:
        alpha: the weight, in [0, 1].
        above: a value that it must exceed.

    Raises:
        ValueError: it is no such number.
    """
    number = isinstance(alpha, Real)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not number or not 0 <= alpha <= 1 or (above is not None and alpha <= above):
        raise ValueError(f"alpha must be in {'[' if above is None else '('}0, 1], got {alpha!r}")


def check_ramp(ramp: int, slot: str, stage: Stage) -> None:
    """Raise ValueError if a seed of this stage cannot be removed by a ramp."""
    if ramp and stage not in (Stage.BLENDING, Stage.HOLDING):
        raise ValueError(
            f"ramp={ramp} has no effect in slot {slot}, which is {stage}: advance the seed first, or leave ramp out to prune it "
            "at once"
        )
