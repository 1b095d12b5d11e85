"""Probes of hosts and seeds: a few samples through each part before a run starts, since parts may come from outside.

A part that draws random numbers, keeps state, mixes samples or passes no gradient would give wrong numbers without any error.
"""

# M members, P parameters of one member

import copy
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

import esper
from esper.fusion.fuse import Fleet, flatten_parameters
from esper.fusion.layout import by_member, join_members, side_by_side
from esper.fusion.stacked import FusionError
from esper.hosts.base import SlotSpec, segments_of
from esper.memory import memory_shortage
from esper.seeding import borrowed_stream
from esper.seeds.bank import newborn
from esper.seeds.blueprints.base import BlueprintConfig, is_informed
from esper.seeds.informed import feeding_map

DRAWS = "draws random numbers in its forward, so that a resumed run would differ: remove dropout and torch.rand"
BORN_BY_CHANCE = (
    "draws initial weights from a random stream other than torch's, so that a resumed run would differ: use torch.nn.init"
)
UNSTEADY = "returns a different output for the same input in a second call: remove random numbers and state between calls"
MIXES = "mixes the samples of a batch: compute each sample alone, as GroupNorm and LayerNorm do"
FUSED = (
    "mixes the hosts of a shard, as a view with a fixed number of channels does: see docs/extending/hosts.md, or set "
    "devices.<name>.members_per_shard=1"
)

READS_LATER = "reads later positions, which the host is to predict: use a causal mask, as blueprint.attention.causal=true does"
NEWBORNS = 32
"""Newborn seeds without a gradient after which a blueprint counts as one that never learns."""


class Flaw(ValueError):
    """A flaw of a part; its message is a predicate and the remedy, as in "mixes the samples of a batch: ..."."""


@contextmanager
def flaws(name: str, part: str, shape: Sequence[int] | None = None, remedy: str = "correct its code") -> Generator[None]:
    """Turn a flaw of a part, and any error in its code, into one sentence. Torch's random stream is left unchanged.

    Args:
        name: the part as an option.
        part: what it is.
        shape: shape of its input.
        remedy: what to do if its code raises an error.

    Raises:
        ValueError: the part has a flaw.
    """
    try:
        with borrowed_stream():
            yield
    except FusionError as error:
        raise ValueError(f"{name}: {error}") from error
    except Flaw as flaw:
        raise ValueError(f"{name}: {part} {flaw}") from flaw
    except Exception as error:
        if memory_shortage(error):
            raise
        raised = f" on {tuple(shape)}" if shape else ""
        raised += f" with {type(error).__name__}: {error}{_place(error)}"
        raise ValueError(f"{name}: {part} fails{raised}: {remedy}") from error


def _place(error: Exception) -> str:
    """Return file and line of an error in the user's code; empty if the traceback has no such file."""
    ours = [str(Path(module.__file__ or "").parent) for module in (torch, esper)]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith((*ours, "<"))]
    frames = [one for one in frames if one.name not in ("__enter__", "__exit__")]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def probe_seed(
    blueprint: BlueprintConfig, slot: SlotSpec, features: Tensor, fleet: Fleet | None, *, causal: bool = False
) -> None:
    """Check that a seed is the identity at birth and gets gradients, and that it computes each sample alone.

    Args:
        features: features of the slot for two samples or more; only their form and signs matter.
        fleet: two such seeds as one program; None if there is none.
        causal: whether no position may read later ones.

    Raises:
        Flaw: the seed has a flaw.
    """
    generator = torch.Generator().manual_seed(0)
    row, again = (newborn(blueprint, slot, generator) for _ in range(2))
    if not len(row):
        raise Flaw("has no parameters and cannot learn: give it some")
    if row.dtype != features.dtype:
        raise Flaw(f"has parameters of {row.dtype}: use {features.dtype}")
    if not row.isfinite().all():
        raise Flaw("has initial weights that are NaN or infinite: correct their initialisation")
    if not row.equal(again):
        raise Flaw(BORN_BY_CHANCE)
    branch = _branch(blueprint, slot, row)
    x = torch.empty_like(features).normal_(generator=generator)
    x = x.abs() if (features >= 0).all() else x  # what follows a ReLU may count on its sign
    direction = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    if not _probe_birth(branch, x, direction) and not _ever_learns(blueprint, slot, x, generator):
        raise Flaw("has only zero gradients at birth, biases aside: start only its last layer at zero, and put no ReLU after it")
    with torch.no_grad():
        for parameter in branch.parameters():  # zeros would hide what the layers before them do
            parameter += 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
        y = _probe_steady(branch, x)
        _probe_vmap(branch, x)
        if not _close(branch(_others(x))[1:], y[1:]):
            raise Flaw(MIXES)
        if causal:
            _probe_causality(branch, x, y)
    if fleet is not None:
        _probe_fleet(fleet, lambda module, x: module(x), branch, x)


def _branch(blueprint: BlueprintConfig, slot: SlotSpec, row: Tensor) -> nn.Module:
    """Return a branch with these parameters `[P]`, whose feeding map is checked if it is informed."""
    branch = blueprint.branch(slot)
    nn.utils.vector_to_parameters(row, branch.parameters())
    if is_informed(blueprint):
        feeding_map(branch)
    return branch


def _ever_learns(blueprint: BlueprintConfig, slot: SlotSpec, x: Tensor, generator: torch.Generator) -> bool:
    """Return whether one of several newborn seeds gets a gradient: a ReLU of few units may be 0 everywhere in some."""
    for _ in range(NEWBORNS):
        direction = torch.randn(x.shape, dtype=x.dtype, generator=generator)  # moves the generator on, to other weights
        branch = _branch(blueprint, slot, newborn(blueprint, slot, generator))
        grads = torch.autograd.grad((branch(x) * direction).sum(), list(branch.parameters()))
        if _learns(branch, grads):
            return True
    return False


def _learns(branch: nn.Module, grads: Sequence[Tensor]) -> bool:
    """Return whether one of the parameters, biases aside unless there are no others, has a gradient other than zero."""
    biases = [name.rpartition(".")[2] == "bias" for name, _ in branch.named_parameters()]
    return any(bool(grad.any()) for grad, bias in zip(grads, biases, strict=True) if not bias or all(biases))


def _probe_birth(branch: nn.Module, x: Tensor, direction: Tensor) -> bool:
    """Check the output of a newborn branch, and that gradients reach its parts, and return whether it learns in one direction of
    its output."""
    h = x.clone().requires_grad_()
    given = h * 1.0
    delta = branch(given)
    check_features(delta, x.shape, x.dtype)
    if not given.equal(h):
        raise Flaw("changes its input in place: use inplace=False")
    if delta.any():
        raise Flaw("is not the identity at birth: end it in a layer initialised to zero (born_as_zero)")
    weights = {f"its parameter {name}": weight for name, weight in branch.named_parameters()}
    _, *grads = check_gradients((delta * direction).sum(), {"its input": h} | weights)
    return _learns(branch, grads)


def _probe_vmap(forward: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check that no `if` or `.item()` decides for all hosts of a shard, or of a measurement of growth potential, at once."""
    try:
        with warnings.catch_warnings(action="ignore"):  # slow operations, such as attention
            plain = x.clone(memory_format=torch.contiguous_format)  # group norm cannot be mapped over channels-last features
            torch.func.vmap(forward)(plain.expand(2, *x.shape))
    except RuntimeError as error:
        why = " ".join(str(error).split(". ")[0].split())
        raise Flaw(f"cannot run under torch.func.vmap ({why}): use torch.where instead of if and .item()") from error


def probe_host(host: nn.Module, same: nn.Module, x: Tensor, fleet: Fleet | None, *, causal: bool = False) -> None:
    """Check that a host computes each sample alone in evaluation mode, and that gradients reach every slot and parameter.

    Args:
        host: a host whose features and output have the right shapes; left in evaluation mode.
        same: the same host, built again.
        x: two samples or more.
        fleet: the host twice as one program; None if there is none.
        causal: whether no position may read later ones.

    Raises:
        Flaw: the host has a flaw.
    """
    if not all(one.equal(other) for one, other in zip(host.parameters(), same.parameters(), strict=True)):
        raise Flaw(BORN_BY_CHANCE)
    host.eval()
    with torch.no_grad():
        y = _probe_steady(lambda x: _through(host, x)[-1], x)
        if not all(one.equal(other) for one, other in zip(host.buffers(), same.buffers(), strict=True)):
            raise Flaw(
                "changes its buffers in evaluation mode, so that measuring would change it: change them in training mode only"
            )
        if fleet is not None:
            _probe_vmap(lambda x: _through(host, x)[-1], x)
        if not _close(_through(host, _others(x))[-1][1:], y[1:]):
            raise Flaw(MIXES.replace("batch", "batch in evaluation mode"))
        if causal:
            _probe_causality(lambda x: _through(host, x)[-1], x, y)
        if fleet is not None:
            both = _through(fleet.bind().eval(), side_by_side(torch.stack([x, x.flip(0)])))[-1]
            if not _close(by_member(both, 2), torch.cat([by_member(y, 1), by_member(y.flip(0), 1)])):
                raise Flaw(FUSED)
    state, twins = torch.random.get_rng_state(), [copy.deepcopy(host).train() for _ in range(2)]
    features, others = (_through(twin, x) for twin in twins)
    if not torch.random.get_rng_state().equal(state):
        raise Flaw(DRAWS)
    if not _close(features[-1], others[-1]):
        raise Flaw(UNSTEADY)
    slots = {f"slot {slot.name}": h for slot, h in zip(getattr(host, "slots"), features[:-1], strict=True)}  # noqa: B009
    check_gradients(features[-1].sum(), slots | {f"its parameter {name}": weight for name, weight in twins[0].named_parameters()})
    if fleet is not None:
        _probe_fleet(fleet, lambda module, x: _through(module, x)[-1], host, x)


def _probe_fleet(fleet: Fleet, forward: Callable[[nn.Module, Tensor], Tensor], part: nn.Module, x: Tensor) -> None:
    """Check that two copies of a part as one program compute and learn in training what each does alone.

    Raises:
        Flaw: it does not.
    """
    alone = [copy.deepcopy(part).train() for _ in range(2)]
    samples = [one.requires_grad_(one.is_floating_point()) for one in (x.clone(), x.flip(0))]
    outputs = [forward(*one) for one in zip(alone, samples, strict=True)]
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in outputs]
    # With respect to the samples, too: torch 2.13 crashes in the backward of a group norm whose input needs no gradient.
    wanted = [
        _gradients((y * direction).sum(), [*one.parameters()], here)
        for y, direction, one, here in zip(outputs, directions, alone, samples, strict=True)
    ]
    rows = torch.stack([flatten_parameters(one) for one in alone]).requires_grad_()
    here = join_members(samples).detach().requires_grad_(x.is_floating_point())
    y = forward(fleet.bind(rows).train(), here)
    found = _gradients((y * join_members(directions)).sum(), [rows], here)
    if not (_close(y, join_members(outputs)) and _close(found, torch.cat(wanted))):
        raise Flaw(FUSED)


def _gradients(total: Tensor, sources: Sequence[Tensor], samples: Tensor) -> Tensor:
    """Return the gradients with respect to some tensors in one row, from a backward pass as far as the samples."""
    every = [*sources, samples] if samples.requires_grad else sources
    found = torch.autograd.grad(total, every, allow_unused=True, materialize_grads=True)
    return torch.cat([one.flatten() for one in found[: len(sources)]])


def check_features(y: object, shape: Sequence[int] | None, dtype: torch.dtype) -> None:
    """Check the output of a newborn part.

    Args:
        shape: its shape; None for any.

    Raises:
        Flaw: it is no tensor, of another shape or dtype, or not finite.
    """
    if not isinstance(y, Tensor):
        raise Flaw(f"returns a {type(y).__name__}: return a tensor")
    if shape is not None and y.shape != torch.Size(shape):
        raise Flaw(f"returns the shape {tuple(y.shape)} for features of the shape {tuple(shape)}: return the same shape")
    if y.dtype != dtype:
        raise Flaw(f"returns {y.dtype}: return {dtype}")
    if not y.isfinite().all():
        raise Flaw("has an output that is NaN or infinite at birth: correct its forward or its initial weights")


def check_gradients(total: Tensor, sources: dict[str, Tensor]) -> list[Tensor]:
    """Check that a gradient reaches every source from a weighted sum of a part's output, and return the gradients.

    Raises:
        Flaw: it does not reach one of them.
    """
    fixed = [name for name, source in sources.items() if not source.requires_grad]
    learns = total.requires_grad and not fixed
    grads = torch.autograd.grad(total, list(sources.values()), allow_unused=True) if learns else [None] * len(sources)
    missing = fixed or [name for name, grad in zip(sources, grads, strict=True) if grad is None]
    if missing:
        raise Flaw(f"passes no gradient to {missing[0]}: use it, and remove detach, no_grad and requires_grad=False")
    return [grad for grad in grads if grad is not None]


def _probe_steady(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Check that a forward without random numbers gives the same output twice, and return it."""
    state = torch.random.get_rng_state()
    y, again = forward(x.clone()), forward(x.clone())
    if not torch.random.get_rng_state().equal(state):
        raise Flaw(DRAWS)
    if not _close(y, again):
        raise Flaw(UNSTEADY)
    return y


def _probe_causality(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> None:
    """Check that outputs `y` do not depend on later positions: all but the last one stay if that one changes."""
    last = x[:, -1:]
    other = 1 - 30 * last if x.is_floating_point() else (last + 1) % (x.max() + 1)
    if not _close(forward(torch.cat([x[:, :-1], other], 1))[:, :-1], y[:, :-1]):
        raise Flaw(READS_LATER)


def _through(host: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the features at each slot of a host, and its output."""
    found = list[Tensor]()
    for segment in segments_of(host):
        x = segment(x)
        if torch.is_grad_enabled() and not x.requires_grad:  # nothing that learns lies before this slot
            x.requires_grad_()
        found.append(x)
    return found


def _others(x: Tensor) -> Tensor:
    """Return the samples with another first one; large and mostly negative, unless they are tokens."""
    return torch.cat([1 - 30 * x[1:2] if x.is_floating_point() else x[1:2], x[1:]])


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs are equal up to rounding."""
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.detach().abs().amax()), equal_nan=True)
