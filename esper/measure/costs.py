"""Costs of hosts and seeds: parameters, and FLOPs of inference, training and measuring.

Parameters and FLOPs are counted on the plain modules and one sample (`FlopCounter`), so that a host or a seed from
outside the package needs no formula. Convolutions, matrix products and attention are counted, each multiply-add as two
operations. Norms, activations, pooling, masks, blending, and layers that the counter does not know (recurrent ones) are not
counted. Attention counts every pair of positions, masked ones included.

Training is counted by the usual rule: the gradients with respect to a layer's weights and to its input each cost as much as its
forward pass.
"""

# N hosts, S slots, R = S + 1 segments, K blueprints, V counterfactual variants

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from esper.hosts.base import SlotSpec, segments_of, slot_specs
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.lifecycle.stages import OCCUPIED, BoolArray, SlotState
from esper.measure.flop_counter import FlopCounter
from esper.seeding import borrowed_stream
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.gated import Gate

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """The cost of a host and of each possible seed, in one unit."""

    host: float
    """A host without seeds."""
    seed_KS: Numbers
    """A seed of each blueprint in each slot; 0 where it cannot grow, but NaN in a price of latency."""
    gate_S: Numbers
    """The gate of a seed in each slot."""

    def at(self, blueprint_NS: npt.NDArray[np.int64], blend_NS: npt.NDArray[np.int64]) -> Numbers:
        """Return the cost of the seed in each slot `[N, S]`, gate included; 0 where the blueprint is negative."""
        slot = np.arange(self.seed_KS.shape[1])[None]
        gates = np.where(blend_NS == Blend.GATE, self.gate_S, 0)
        return np.where(blueprint_NS >= 0, self.seed_KS[blueprint_NS, slot] + gates, 0)

    def of(self, state: SlotState) -> Numbers:
        """Return the cost of the seed in each slot `[N, S]`, from its germination on."""
        return self.at(np.where(state.within(*OCCUPIED), state.blueprint, -1), state.blend)

    @classmethod
    def unknown(cls, blueprints: int, slots: int) -> "Price":
        """Return a price that is not measured yet: NaN everywhere."""
        return cls(host=math.nan, seed_KS=np.full((blueprints, slots), math.nan), gate_S=np.full(slots, math.nan))

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers as lists, for checkpoints."""
        return {"host": self.host, "seed_KS": self.seed_KS.tolist(), "gate_S": self.gate_S.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Price":
        """Return the price that `state_dict` was called on."""
        return cls(host=state["host"], seed_KS=np.array(state["seed_KS"]), gate_S=np.array(state["gate_S"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """Floating-point operations of one sample."""

    forward: Price
    """One forward pass."""
    segment_R: npt.NDArray[np.int64]
    """Forward pass of each segment of the host; the sum is `forward.host`."""

    def training(self, roles: Roles, incubation: Incubation, *, frozen: bool = False) -> npt.NDArray[np.float64]:
        """Return the FLOPs of training on one sample for each host `[N]`.

            the host                      3 forwards: outputs, gradient of the weights, gradient of the features
            a seed that learns            3
            a seed that does not          2: the layers before it need the gradient of its features
            all after a seed that learns in a closed loop, the host's segments and other seeds
                                          2 more, for the closed-loop pass
            a seed behind the host in a closed loop
                                          3, all in the closed-loop pass; if it no longer learns, 2 in the pass of an earlier seed

        In a frozen host no gradient of its weights is computed, and gradients of features only after the first seed that learns:

            the host                      1 forward, and 1 more for the segments after that seed
            a seed that learns            3
            a seed that does not          1, and 1 more after that seed

        Each host counts what it would need alone, although fused hosts share kernels and compute a few additional zeros. The
        optimiser and validation are left out.
        """
        seed_NS = self.forward.at(roles.blueprint, roles.blend)
        closed_NS = roles.behind & (roles.blueprint >= 0) & (incubation is Incubation.closed_loop)
        learns_NS = roles.learns & (roles.blueprint >= 0)
        forwards_NS, host_NR = 2 + learns_NS, np.full((len(seed_NS), len(self.segment_R)), 3.0)
        if frozen:
            reached_NS = np.cumsum(learns_NS & ~closed_NS, axis=1) > 0
            forwards_NS = np.where(learns_NS, 3, 1 + reached_NS)
            host_NR[:, 0], host_NR[:, 1:] = 1, 1 + reached_NS
        main_N = (host_NR * self.segment_R).sum(axis=1) + np.where(closed_NS, 0, forwards_NS * seed_NS).sum(axis=1)
        learning_NS = closed_NS & learns_NS
        after_NS = np.cumsum(learning_NS, axis=1) > 0  # where the closed-loop pass runs
        host_N = (2 * after_NS * self.segment_R[1:]).sum(axis=1)
        return main_N + host_N + (np.where(learning_NS, 3, 2 * after_NS) * seed_NS).sum(axis=1)

    def measuring(self, roles: Roles, incubation: Incubation, alpha_VNS: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the FLOPs of measuring one sample for each host under V settings of its alphas `[N]`.

        Settings with equal alphas up to some depth of a host share the computation up to there. The branch of a seed is computed
        once for each distinct input with which some setting has the seed on; see `growth.variants`. Hosts count as if alone.
        """
        inside_NS = (roles.blueprint >= 0) & ~(roles.behind & (incubation is Incubation.closed_loop))
        seed_NS = np.where(inside_NS, self.forward.at(roles.blueprint, roles.blend), 0)
        same_VVNS = (alpha_VNS[:, None] == alpha_VNS[None]) | ~inside_NS
        # Equal paths up to a slot are computed once.
        earlier_VV = np.tri(len(alpha_VNS), k=-1, dtype=np.bool_)[:, :, None, None]
        together_VVNS = np.logical_and.accumulate(same_VVNS, axis=3)
        together_VVNR = np.concatenate([np.ones_like(together_VVNS[..., :1]), together_VVNS], axis=3)
        first_VNR = ~np.any(together_VVNR & earlier_VV, axis=1)
        # A seed that is off in all settings of a path is skipped, unless it trains there, or no path forks up to it.
        on_VNS = (alpha_VNS != 0) | roles.behind | together_VVNR[..., 1:].all(axis=(0, 1))
        seeded_VNS = first_VNR[..., :-1] & (together_VVNR[..., :-1] & on_VNS[None]).any(axis=1)
        paths_NR, seeds_NS = first_VNR.sum(axis=0), seeded_VNS.sum(axis=0)
        return (paths_NR * self.segment_R).sum(axis=1) + (seeds_NS * seed_NS).sum(axis=1).astype(np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """All costs of the hosts and seeds of a run."""

    params: Price
    """Parameters."""
    flops: Flops
    latency: Price
    """Inference latency of one sample [s]; NaN if not measured."""

    @property
    def prices(self) -> dict[str, Price]:
        """Cost of one host or seed by unit: parameters, FLOPs of one sample, latency of one sample [s]."""
        return {"params": self.params, "flops": self.flops.forward, "latency": self.latency}

    def signals(self, before: SlotState, after: SlotState) -> dict[str, Any]:
        """Return the cost fields of `StepSignals`, from the states before and after a step."""
        found: dict[str, Any] = {}
        for name, price in self.prices.items():
            dtype = np.int64 if price is self.params else np.float32
            found |= {f"host_{name}": price.host, f"{name}_NS": price.of(after).astype(dtype)}
            found[f"{name}_before_NS"] = price.of(before).astype(dtype)
        return found

    def committed(
        self, blueprint_NS: npt.NDArray[np.int64], blend_NS: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the cost of hosts with these seeds `[N]`: parameters, FLOPs per sample, and latency [s], NaN if not measured.

        Args:
            blueprint_NS: index of the blueprint, -1 where there is no seed.
            blend_NS: its `Blend`.
        """
        return {
            name: price.host + price.at(blueprint_NS, blend_NS).sum(axis=1, dtype=np.float64)
            for name, price in self.prices.items()
        }

    def table(self, blueprints: Sequence[str], slots: Sequence[str]) -> dict[str, Any]:
        """Return all costs by name; None where not measured.

        Args:
            blueprints: their names, in the order of their indices.
            slots: their names.
        """

        def each(read: Callable[[Price], Any]) -> dict[str, int | float | None]:
            values = {name: np.asarray(read(price)).item() for name, price in self.prices.items()}
            return {name: None if math.isnan(value) else value for name, value in values.items()}

        return {
            "host": each(lambda price: price.host),
            "seeds": {
                blueprint: {slot: each(lambda price, k=k, s=s: price.seed_KS[k, s]) for s, slot in enumerate(slots)}
                for k, blueprint in enumerate(blueprints)
            },
            "gates": {slot: each(lambda price, s=s: price.gate_S[s]) for s, slot in enumerate(slots)},
        }


class Meter:
    """A counter of the FLOPs of training and measuring, host by host."""

    def __init__(self, flops: Flops, incubation: Incubation, *, frozen: bool = False) -> None:
        self.flops, self.incubation, self.frozen = flops, incubation, frozen
        self.training_N = self.measuring_N = np.zeros(0)

    def start(self, num_hosts: int) -> None:
        """Start new hosts at 0."""
        self.training_N, self.measuring_N = np.zeros(num_hosts), np.zeros(num_hosts)

    def train(self, roles: Roles, samples: int, batch: int, trained_N: BoolArray | None = None) -> None:
        """Count training of the marked hosts, by default all, on this many samples; on one batch if it is frozen and no seed
        learns."""
        idle_N = ~(roles.learns & (roles.blueprint >= 0)).any(axis=1)
        skips = self.frozen and self.incubation is not Incubation.closed_loop
        samples_N = np.where(idle_N & skips, min(batch, samples), samples)
        flops_N = samples_N * self.flops.training(roles, self.incubation, frozen=self.frozen)
        self.training_N += flops_N if trained_N is None else np.where(trained_N, flops_N, 0)

    def measure(self, roles: Roles, alpha_VNS: npt.NDArray[np.float32], samples: int, wanted_N: BoolArray | None = None) -> None:
        """Count measuring of the marked hosts, by default all, on this many samples, under these settings of their alphas, also
        where results are known; see `Shard.validate`."""
        flops_N = samples * self.flops.measuring(roles, self.incubation, alpha_VNS)
        self.measuring_N += flops_N if wanted_N is None else np.where(wanted_N, flops_N, 0)


def count_costs(host: nn.Module, blueprints: Sequence[BlueprintConfig], sample: Tensor) -> Costs:
    """Count the parameters and FLOPs of a host and of every possible seed.

    Args:
        host: a plain host, left in evaluation mode.
        blueprints: the blueprints of a run.
        sample: the input of a host, one sample as a batch.
    """
    specs, (features, segments) = slot_specs(host), _through(host, sample)
    with borrowed_stream():  # newborn branches must not move the global stream
        seed_KS2 = np.array([[_of_seed(one, spec, x) for spec, x in zip(specs, features, strict=True)] for one in blueprints])
        gate_S2 = np.array([_of_module(Gate(spec.channels), x) for spec, x in zip(specs, features, strict=True)])
    seed_KS2, gate_S2 = seed_KS2.reshape(len(blueprints), len(specs), 2), gate_S2.reshape(len(specs), 2)
    return Costs(
        params=Price(host=count_parameters(host), seed_KS=seed_KS2[..., 0], gate_S=gate_S2[..., 0]),
        flops=Flops(
            forward=Price(host=sum(segments), seed_KS=seed_KS2[..., 1], gate_S=gate_S2[..., 1]),
            segment_R=np.array(segments, np.int64),
        ),
        latency=Price.unknown(len(blueprints), len(specs)),
    )


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def count_flops(module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """Return the output of a module for this input, and its FLOPs."""
    # Written out as matrix products: the counter does not know the kernels that PyTorch would take for attention, nor those for a
    # whole layer of nn.TransformerEncoder in evaluation mode (torch 2.13).
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:
            y = module(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return y, counter.flops


def _through(host: nn.Module, x: Tensor) -> tuple[list[Tensor], list[int]]:
    """Return the features at each slot of a host without seeds, and the FLOPs of each segment."""
    features, flops = list[Tensor](), list[int]()
    host.eval()
    for segment in segments_of(host):
        x, count = count_flops(segment, x)
        features.append(x)
        flops.append(count)
    return features[:-1], flops


def _of_module(module: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the parameters of a module, and its FLOPs for this input."""
    return count_parameters(module), count_flops(module, x)[1]


def _of_seed(blueprint: BlueprintConfig, slot: SlotSpec, x: Tensor) -> tuple[int, int]:
    """Return the parameters and FLOPs of a seed; 0 in a slot where it cannot grow."""
    if blueprint.obstacle(slot):
        return 0, 0
    with seed_errors(blueprint, slot):
        return _of_module(blueprint.branch(slot), x)
