"""Errors and warnings on operations that are not permitted, or that may not do what the user expects."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from esper.config import did_you_mean
from esper.evaluation.exported import FORMATS
from esper.growable.slot import GrowingSlot, slots_after
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import BoolArray, Stage

ONE_TENSOR = "before esper.grow, wrap the network in a module that takes one tensor and returns one"


def check_slot(slot: object, names: Sequence[str]) -> None:
    """Raise ValueError if there is no slot of this name."""
    if slot in names:
        return
    if str(slot) in names:
        raise ValueError(f"slots have names, got the {type(slot).__name__} {slot}: write '{slot}'")
    meant = did_you_mean(slot, list(names)) if isinstance(slot, str) else ""
    raise ValueError(f"there is no slot {slot}: choose from {', '.join(names)}{meant}")


def chosen(rules: SlotsConfig, names: tuple[str, ...]) -> BoolArray:
    """Return which slots are in use `[S]`.

    Raises:
        ValueError: the rules name a slot that there is not, or find none.
    """
    if unknown := [name for name in rules.where if name not in names]:
        raise ValueError(f"rules: where={unknown} names no slot of this module: it has {', '.join(names)}")
    if not (rules.where or rules.default_slots(names)):
        kind = type(rules).__name__
        raise ValueError(f"rules: {kind} finds no slot in {', '.join(names)}: write rules={kind}(where={[names[0]]})")
    return rules.chosen(names)


def check_settings(module: object, rules: object, gates: object) -> None:
    """Raise ValueError if an argument of `esper.grow` has the wrong type."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    for name, given, kind in (("rules", rules, SlotsConfig), ("gates", gates, GatesConfig)):
        if given is not None and not isinstance(given, kind):
            raise ValueError(f"{name} must be a {kind.__name__}, not {type(given).__name__}: write {name}={kind.__name__}(...)")


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


def check_incubated(trained: bool, incubated: bool) -> None:
    """Raise RuntimeError if seeds of a closed loop learned nothing in an epoch of training."""
    if trained and not incubated:
        raise RuntimeError(
            "net.incubate(loss) was not called, so the seeds behind the module have not learned: call it after "
            "loss().backward(), or choose incubation=none"
        )


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


def check_places(module: nn.Module, places: Mapping[str, GrowingSlot]) -> None:
    """Raise ValueError if a submodule was replaced since it got its slot; `places` has the slots by the paths of submodules.

    A wrapper that holds the submodule alone, such as that of `torch.compile`, keeps the slot.
    """
    for path, slot in places.items():
        try:
            there = module.get_submodule(path)
            while slot not in slots_after(there):
                (there,) = there.children()
        except (AttributeError, ValueError):  # it was removed, or has other children
            raise ValueError(
                f"slot {slot.spec.name} no longer exists, because submodule {path} was replaced after esper.grow, or got an "
                "adapter: change submodules before that call"
            ) from None


def warn_of_processes() -> None:
    """Warn that the processes of a distributed training do not share a seed."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        warnings.warn(
            "this seed is not synchronised across processes: each draws its own weights, and DistributedDataParallel averages "
            "only the gradients of the parameters it was built with: plant with equal random seeds, and average the gradients of "
            "net.slots yourself",
            stacklevel=3,
        )


def warn_of_idle_ramp(ramp: int, incubation: str) -> None:
    """Warn of the ramp of a seed that is active at once."""
    if ramp and incubation == "none":
        text = f"ramp={ramp} has no effect with incubation=none, where a seed is active at once: leave ramp and curve out"
        warnings.warn(text, stacklevel=3)


def warn_unreached(slot: str) -> None:
    """Warn that a loss does not depend on a slot."""
    warnings.warn(f"the loss does not depend on slot {slot}: its growth potential is NaN", stacklevel=3)


def warn_of_no_gradient(slot: str, grad: Tensor) -> None:
    """Warn that no seed can lower the loss yet."""
    if not grad.any():
        warnings.warn(
            f"the gradient of the loss is 0 at slot {slot}, as in front of a head whose weights are 0 at first, and so is every "
            "growth potential: train the network before",
            stacklevel=3,
        )


def check_checkpoint(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError if a checkpoint is that of a module with other slots or paths, axes or incubation."""
    slots = dict(zip(own["slots"], own["paths"], strict=True))
    saved = dict(zip(state["slots"], state.get("paths", own["paths"]), strict=False))  # earlier versions did not save paths
    if list(saved.items()) != list(slots.items()):
        there, here = (
            ", ".join(name if name == path else f"{name}={path}" for name, path in one.items()) for one in (saved, slots)
        )
        raise ValueError(
            f"the checkpoint has the slots {there}, but this module has {here}: call esper.grow with the slots of the checkpoint"
        )
    usual = {"incubation": own["incubation"], "axes": {}}  # of earlier versions, which did not save them
    for name in usual:
        if (trained := state.get(name, usual[name])) != own[name]:
            raise ValueError(
                f"the checkpoint has {name}={trained}, but this module has {name}={own[name]}: "
                f"call esper.grow(..., {name}={trained!r})"
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
