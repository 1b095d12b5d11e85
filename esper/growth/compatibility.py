"""Compatibility of task, host and blueprints, checked before a run starts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from esper.fusion.fuse import Fleet
from esper.fusion.layout import PERMUTE, Layout, channels_last
from esper.growth.probe import Flaw, check_features, flaws, probe_host, probe_seed
from esper.hosts.base import SlotSpec, segments_of, slot_specs
from esper.hosts.cnn import CNNHost
from esper.optimisers.sgd import SGDConfig
from esper.seeds.bank import SeedBank
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.registry import check_blueprints

AXES = {Layout.IMAGES: (4, 1), Layout.VECTORS: (2, 1), Layout.SEQUENCES: (3, 2)}
"""Number of axes of the features in a slot, and the axis of the channels."""

TOO_SMALL = "choose a smaller host for these samples; for rows of numbers, host=mlp 'blueprint=[norm,mlp_small,mlp]'"
"""Remedy where a convolutional host cannot read the samples."""


def check_host(
    host: nn.Module, same: nn.Module, x: Tensor, wanted: tuple[int, ...], members: int, name: str, *, causal: bool = False
) -> list[Tensor]:
    """Run a host on samples, compare its features and logits with its slots and the task, and return the features of its slots.

    Args:
        host: one of the hosts; it is left in evaluation mode.
        same: the same host, built again.
        x: two samples or more.
        wanted: shape of their logits.
        members: largest number of hosts per shard.
        name: task and host as options, for messages.
        causal: whether no position may read later ones, which it predicts.

    Raises:
        ValueError: the host cannot read the samples, a slot or the logits have another form, `members` hosts cannot be fused into
            one program, or the host has a flaw (see `probe_host`).
    """
    segments, slots = segments_of(host.eval()), slot_specs(host)
    features, samples = list[Tensor](), x
    too_small = PERMUTE if channels_last(x.shape) else TOO_SMALL
    remedy = too_small if isinstance(host, CNNHost) else "correct its code"
    for index, segment in enumerate(segments):
        with flaws(name, f"segment {index} of the host", x.shape, remedy), torch.no_grad():
            before, y = x.clone(), segment(x)
            if not x.equal(before):
                raise Flaw("changes its input in place: use inplace=False")
            check_features(y, None, torch.get_default_dtype())
        x = y
        if index == len(slots):
            break
        slot = slots[index]
        axes, axis = AXES[slot.layout]
        if x.dim() != axes or x.shape[axis] != slot.channels:
            raise ValueError(
                f"{name}: slot {slot.name} declares {slot.layout} with {slot.channels} channels, but its features have the "
                f"shape {tuple(x.shape)}: correct its SlotSpec"
            )
        features.append(x)
    if tuple(x.shape) != wanted:
        raise ValueError(
            f"{name}: the host's output has the shape {tuple(x.shape)}, and the task needs {wanted}, one "
            f"{'logit per class' if wanted[-1] > 1 else 'number per sample'}: correct the last segment"
        )
    with flaws(name, "the host"):
        if wanted[-1] > 1 and (x >= 0).all() and torch.allclose(x.sum(-1), torch.ones(()), atol=1e-4) and (x != x[0]).any():
            raise Flaw("returns probabilities, and the loss takes logits: leave the softmax out")
        fleet = Fleet([host] * min(2, members))
        probe_host(host, same, samples, fleet if fleet.members > 1 else None, causal=causal)
    return features


def check_alike(hosts: Sequence[nn.Module], members: int, name: str) -> None:
    """Check that hosts of several kinds can be fused.

    Raises:
        ValueError: they differ in more than parameters and buffers.
    """
    if members > 1:
        with flaws(name, "the host"):
            Fleet(hosts)


def check_seeds(
    blueprints: Mapping[str, BlueprintConfig],
    slots: Mapping[SlotSpec, Tensor],
    members: int,
    name: str,
    *,
    causal: bool = False,
) -> None:
    """Build and probe every seed once, as a shard does. Torch's random stream is left unchanged.

    Args:
        blueprints: the blueprints of the run, by name.
        slots: the slots in use, each with features of two samples or more.
        members: largest number of hosts per shard.
        name: task and host as options, for messages.
        causal: whether no position may read later ones, which the host predicts.

    Raises:
        ValueError: a blueprint cannot grow in a slot, `members` seeds cannot be fused into one program, or a seed has a flaw (see
            `probe_seed`); the message names the option and the remedy.
    """
    check_blueprints(blueprints, tuple(slots), name)
    few = min(2, members)
    for blueprint_name, blueprint in blueprints.items():
        for slot, features in slots.items():
            with flaws(f"blueprint={blueprint_name}", f"the seed in slot {slot.name}", features.shape):
                bank = SeedBank(blueprint, slot, few, SGDConfig(), "cpu")
                probe_seed(blueprint, slot, features, bank.fleet if few > 1 else None, causal=causal)
