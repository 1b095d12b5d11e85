"""What hosts and seeds cost: parameters, floating-point operations, and how much of both training takes.

FLOPs are counted by the library (`torch.utils.flop_counter`) on the plain modules and one sample, so that a host or a seed from
outside the package needs no formula. It counts multiplications and additions of convolutions, matrix products and attention, each
multiply-add as two; norms, activations, pooling, masks and blending are left out, and so is what it does not know (recurrent
layers). Attention counts every pair of positions, those behind a causal mask or outside a window too.

Training counts by the usual rule: the gradient with respect to a layer's weights costs as much as its forward, and that with
respect to its input as much again.
"""

# N hosts, S slots, R = S + 1 segments, K blueprints, V counterfactual variants

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper.hosts.base import SlotSpec, slot_specs
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.lifecycle.stages import OCCUPIED, SlotState
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.errors import seed_errors
from esper.seeds.gated import Gate, gate_parameters

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a host and each seed it may hold cost, in one unit."""

    host: float
    """Of a host without seeds."""
    seed_KS: Numbers
    """What a seed of each blueprint adds in each slot; 0 where it cannot grow."""
    gate_S: Numbers
    """What its gate adds, if it is blended by one."""

    def at(self, blueprint_NS: npt.NDArray[np.int64], blend_NS: npt.NDArray[np.int64]) -> Numbers:
        """Of the seed in each slot `[N, S]`, its gate's included; 0 where the blueprint is negative."""
        slot = np.arange(self.seed_KS.shape[1])[None]
        gates = np.where(blend_NS == Blend.GATE, self.gate_S, 0)
        return np.where(blueprint_NS >= 0, self.seed_KS[blueprint_NS, slot] + gates, 0)

    def of(self, state: SlotState) -> Numbers:
        """Of the seed in each slot `[N, S]`, from its germination on."""
        return self.at(np.where(state.within(*OCCUPIED), state.blueprint, -1), state.blend)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """Floating-point operations of one sample."""

    forward: Price
    """Of one forward pass."""
    segment_R: npt.NDArray[np.int64]
    """Of each segment of the host; they add up to `forward.host`."""

    def training(self, roles: Roles, incubation: Incubation) -> npt.NDArray[np.float64]:
        """FLOPs that training takes for one sample of each host, in these roles `[N]`.

            the host                      3 forwards: outputs, gradient of the weights, gradient of the features
            a seed that learns            3
            a seed that does not          2: what comes before it needs the gradient of its features
            all after a seed in a closed loop, the host's segments and other seeds
                                          2 more, for the shadow pass
            a seed behind in a closed loop
                                          3, all of them in the shadow pass

        Each host counts what it would need alone: fused, hosts share kernels, and a few zeros are computed besides. The
        optimiser is left out, and what is measured for the controller.
        """
        seed_NS = self.forward.at(roles.blueprint, roles.blend)
        shadow_NS = roles.behind & (roles.blueprint >= 0) & (incubation is Incubation.closed_loop)
        forwards_NS = np.where(roles.learns, 3, 2)
        main_N = 3.0 * self.forward.host + np.where(shadow_NS, 0, forwards_NS * seed_NS).sum(axis=1)
        after_NS = np.cumsum(shadow_NS, axis=1) > 0  # at or after the first seed behind
        host_N = (2 * after_NS * self.segment_R[1:]).sum(axis=1)
        return main_N + host_N + (np.where(shadow_NS, 3, 2 * after_NS) * seed_NS).sum(axis=1)

    def measuring(self, roles: Roles, incubation: Incubation, alpha_VNS: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """FLOPs that one sample of each host takes under V settings of its alphas `[N]`.

        Settings that agree in all of a host's seeds up to some depth are computed once up to there, and a seed's branch once for
        each distinct input from which some setting has it on, see `variants`. A host counts what it would need alone.
        """
        inside_NS = (roles.blueprint >= 0) & ~(roles.behind & (incubation is Incubation.closed_loop))
        seed_NS = np.where(inside_NS, self.forward.at(roles.blueprint, roles.blend), 0)
        same_VVNS = (alpha_VNS[:, None] == alpha_VNS[None]) | ~inside_NS
        # Of a path up to a slot, only the first of those that are the same is computed.
        earlier_VV = np.tri(len(alpha_VNS), k=-1, dtype=np.bool_)[:, :, None, None]
        together_VVNS = np.logical_and.accumulate(same_VVNS, axis=3)
        together_VVNR = np.concatenate([np.ones_like(together_VVNS[..., :1]), together_VVNS], axis=3)
        first_VNR = ~np.any(together_VVNR & earlier_VV, axis=1)
        # A seed that is off in all settings of a path is left out, unless it trains there, or nothing forks before it or at it.
        on_VNS = (alpha_VNS != 0) | roles.behind | together_VVNR[..., 1:].all(axis=(0, 1))
        seeded_VNS = first_VNR[..., :-1] & (together_VVNR[..., :-1] & on_VNS[None]).any(axis=1)
        paths_NR, seeds_NS = first_VNR.sum(axis=0), seeded_VNS.sum(axis=0)
        return (paths_NR * self.segment_R).sum(axis=1) + (seeds_NS * seed_NS).sum(axis=1).astype(np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """All that is known of what the hosts and seeds of a run cost."""

    params: Price
    """Learnt numbers."""
    flops: Flops
    latency: Price | None = None
    """Seconds that a sample takes in inference, where it was measured; see `latency`."""

    def signals(self, before: SlotState, after: SlotState) -> dict[str, Any]:
        """The fields of `StepSignals` that tell costs, from the states before and after a step."""
        unknown_NS = np.full(before.stage.shape, np.nan, dtype=np.float32)
        told: dict[str, Any] = {
            "host_params": int(self.params.host),
            "params_before_NS": self.params.of(before),
            "params_NS": self.params.of(after),
        }
        for name, price in (("flops", self.flops.forward), ("latency", self.latency)):
            told[f"host_{name}"] = math.nan if price is None else float(price.host)
            for key, state in ((f"{name}_before_NS", before), (f"{name}_NS", after)):
                told[key] = unknown_NS if price is None else price.of(state).astype(np.float32)
        return told

    def committed(
        self, blueprint_NS: npt.NDArray[np.int64], blend_NS: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """What hosts cost with these seeds `[N]`: parameters, FLOPs of a sample, and latency [s], NaN where not measured.

        Args:
            blueprint_NS: index of the blueprint, -1 where there is no seed.
            blend_NS: its `Blend`.
        """
        prices = {"params": self.params, "flops": self.flops.forward, "latency": self.latency}
        unknown_N = np.full(len(blueprint_NS), np.nan)
        return {
            name: unknown_N if price is None else price.host + price.at(blueprint_NS, blend_NS).sum(axis=1, dtype=np.float64)
            for name, price in prices.items()
        }

    def table(self, blueprints: Sequence[str], slots: Sequence[str]) -> dict[str, Any]:
        """All of it for people, by name; None where it was not measured.

        Args:
            blueprints: their names, in the order of their indices.
            slots: their names.
        """
        prices = {"params": self.params, "flops": self.flops.forward, "latency": self.latency}

        def each(read: Callable[[Price], Any]) -> dict[str, int | float | None]:
            read_all = {name: None if price is None else np.asarray(read(price)).item() for name, price in prices.items()}
            return {name: None if value is None or math.isnan(value) else value for name, value in read_all.items()}

        return {
            "host": each(lambda price: price.host),
            "seeds": {
                blueprint: {slot: each(lambda price, k=k, s=s: price.seed_KS[k, s]) for s, slot in enumerate(slots)}
                for k, blueprint in enumerate(blueprints)
            },
            "gates": {slot: each(lambda price, s=s: price.gate_S[s]) for s, slot in enumerate(slots)},
        }


class Meter:
    """Adds up the FLOPs that training and measuring take, host by host."""

    def __init__(self, flops: Flops, incubation: Incubation) -> None:
        self.flops, self.incubation = flops, incubation
        self.training_N = self.measuring_N = np.zeros(0)

    def start(self, num_hosts: int) -> None:
        """New hosts, on which nothing was spent."""
        self.training_N, self.measuring_N = np.zeros(num_hosts), np.zeros(num_hosts)

    def train(self, roles: Roles, samples: int) -> None:
        """Each host was trained on so many samples."""
        self.training_N += samples * self.flops.training(roles, self.incubation)

    def measure(self, roles: Roles, alpha_VNS: npt.NDArray[np.float32], samples: int) -> None:
        """Each host was measured on so many samples, with these settings of its alphas."""
        self.measuring_N += samples * self.flops.measuring(roles, self.incubation, alpha_VNS)


def count_costs(host: nn.Module, blueprints: Sequence[BlueprintConfig], sample: Tensor) -> Costs:
    """Parameters and FLOPs of a host and of every seed that it may hold.

    Args:
        host: a plain host, left in evaluation mode.
        blueprints: the blueprints of a run.
        sample: the input of a host, one sample as a batch.
    """
    specs, (features, segments) = slot_specs(host), _through(host, sample)
    places = list(zip(specs, features, strict=True))
    with torch.random.fork_rng(devices=[]):  # newborn branches must not move the global stream
        seed_KS = [[_flops_of(blueprint, spec, x) for spec, x in places] for blueprint in blueprints]
        gate_S = [count_flops(Gate(spec.channels), x)[1] for spec, x in places]
    params_KS = [[0 if one.obstacle(spec) else one.num_parameters(spec) for spec in specs] for one in blueprints]
    return Costs(
        params=Price(
            host=sum(parameter.numel() for parameter in host.parameters()),
            seed_KS=np.array(params_KS, np.int64),
            gate_S=np.array([gate_parameters(spec.channels) for spec in specs], np.int64),
        ),
        flops=Flops(
            forward=Price(host=sum(segments), seed_KS=np.array(seed_KS, np.int64), gate_S=np.array(gate_S, np.int64)),
            segment_R=np.array(segments, np.int64),
        ),
    )


def count_flops(module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """The output of a module for this input, and the floating-point operations that it took."""
    # Written out as matrix products: the counter does not know the kernel that a CPU would take for attention (torch 2.13).
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        y = module(x)
    return y, counter.get_total_flops()


def _through(host: nn.Module, x: Tensor) -> tuple[list[Tensor], list[int]]:
    """The features at each slot of a host without seeds, and the FLOPs of each of its segments."""
    features, flops = list[Tensor](), list[int]()
    host.eval()
    for segment in host.get_submodule("segments").children():
        x, count = count_flops(segment, x)
        features.append(x)
        flops.append(count)
    return features[:-1], flops


def _flops_of(blueprint: BlueprintConfig, slot: SlotSpec, x: Tensor) -> int:
    """FLOPs of a seed; 0 in a slot where it cannot grow, which is then not in use."""
    if blueprint.obstacle(slot):
        return 0
    with seed_errors(blueprint, slot):
        return count_flops(blueprint.branch(slot), x)[1]
