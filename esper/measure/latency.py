"""Inference latency of a bare host, and of each seed on top, measured on the local machine.

Unlike parameters and FLOPs, latencies are measurements and differ between runs. A run measures once and stores the result in its
checkpoints, so that resuming and evaluating it use the same numbers.
"""

# S slots, K blueprints, P pairs of timings

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.hosts.base import slot_specs
from esper.measure.costs import Price
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.gated import Gate

BATCH = 64
"""Batch size of the timed forwards; results are per sample. Higher: closer to throughput than to single-sample latency."""
PAIRS = 25
"""Number of paired timings with and without a seed. More: less noise, longer start."""
WARM_UP = 3
"""Number of discarded pairs before them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Inference latency per sample [s]."""

    host: float
    """Latency of a host without seeds: the median of all timings [s]."""
    seed_KS: npt.NDArray[np.float64]
    """Latency added by a seed: the median of paired differences [s]; NaN where not measured."""
    gate_S: npt.NDArray[np.float64]
    """Latency added by a gate [s]."""
    seed_error_KS: npt.NDArray[np.float64]
    """Standard error of `seed_KS`: 1.25 robust standard deviations over the root of the number of pairs [s]."""
    gate_error_S: npt.NDArray[np.float64]
    """Standard error of `gate_S`, likewise [s]."""
    device: str
    """Device of the measurement."""

    @property
    def price(self) -> Price:
        """Prices for rent. A negative difference is noise and is clipped to 0 here; the record keeps the measured value."""
        return Price(host=self.host, seed_KS=np.maximum(self.seed_KS, 0.0), gate_S=np.maximum(self.gate_S, 0.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the record as numbers, strings and lists, for checkpoints."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(self).items()}

    def table(self, blueprints: Sequence[str], slots: Sequence[str]) -> dict[str, Any]:
        """Return the measurement by name [s]; slots and blueprints that were not measured are left out."""

        def row(values_S: npt.NDArray[np.float64], errors_S: npt.NDArray[np.float64]) -> dict[str, dict[str, float]]:
            pairs = zip(slots, values_S.tolist(), errors_S.tolist(), strict=True)
            return {slot: {"median": value, "error": error} for slot, value, error in pairs if not math.isnan(value)}

        seeds = {name: row(self.seed_KS[k], self.seed_error_KS[k]) for k, name in enumerate(blueprints)}
        how = {"device": self.device, "batch": BATCH, "pairs": PAIRS, "host": self.host}
        return how | {"seeds": seeds, "gates": row(self.gate_S, self.gate_error_S)}

    @staticmethod
    def from_state(state: dict[str, Any]) -> "Latency":
        """Return the record that `state_dict` came from."""
        arrays: dict[str, Any] = {name: np.array(value) for name, value in state.items() if isinstance(value, list)}
        return Latency(**state | arrays)


def measure_latency(
    host: nn.Module, blueprints: Sequence[BlueprintConfig], used_S: npt.NDArray[np.bool_], samples: Tensor, device: torch.device
) -> Latency:
    """Time a bare host and the host with each plantable seed, on one CPU thread or on a GPU.

    A seed is timed as ADD, h + delta(h), and a gate alone, h * g(h). The extra work of MULTIPLY is not timed.

    Args:
        host: a plain host; it is left on the device, in evaluation mode.
        blueprints: the blueprints of a run.
        used_S: slots in use; the others stay NaN.
        samples: inputs of a host; the first `BATCH` are used, repeated if there are fewer.
        device: device of the measurement.
    """
    specs, x = slot_specs(host), samples[torch.arange(BATCH) % len(samples)].to(device)
    segments = list(host.to(device).eval().get_submodule("segments").children())
    shape = (len(blueprints), len(specs))
    seed_KS, seed_error_KS = np.full(shape, np.nan), np.full(shape, np.nan)
    gate_S, gate_error_S = np.full(shape[1], np.nan), np.full(shape[1], np.nan)
    bare: list[float] = []

    def through(slot: int | None = None, change: Callable[[Tensor], Tensor] | None = None) -> None:
        y = x
        for place, segment in enumerate(segments):
            y = segment(y)
            if place == slot and change is not None:
                y = change(y)

    def added(slot: int, change: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        pairs_P2 = _pairs(through, lambda: through(slot, change), device)[WARM_UP:] / BATCH
        bare.extend(pairs_P2[:, 0].tolist())
        return _median(pairs_P2[:, 1] - pairs_P2[:, 0])

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            bare.extend((_pairs(through, through, device)[WARM_UP:] / BATCH).flatten().tolist())
            for slot in np.flatnonzero(used_S).tolist():
                gate = Gate(specs[slot].channels).to(device)
                gate_S[slot], gate_error_S[slot] = added(slot, lambda h, gate=gate: _weighted(h, gate(h)))
                for kind, blueprint in enumerate(blueprints):
                    if blueprint.plantable and not blueprint.obstacle(specs[slot]):
                        branch = blueprint.branch(specs[slot]).to(device).eval()
                        seed_KS[kind, slot], seed_error_KS[kind, slot] = added(slot, lambda h, branch=branch: h + branch(h))
    finally:
        torch.set_num_threads(threads)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Latency(
        host=float(np.median(bare)),
        seed_KS=seed_KS,
        gate_S=gate_S,
        seed_error_KS=seed_error_KS,
        gate_error_S=gate_error_S,
        device=name,
    )


def _weighted(h: Tensor, gate: Tensor) -> Tensor:
    """Return features times the gate of each sample."""
    return h * gate.view(len(h), *[1] * (h.dim() - 1))


def _pairs(without: Callable[[], None], within: Callable[[], None], device: torch.device) -> npt.NDArray[np.float64]:
    """Return the seconds of both calls, made in turn, in alternating order `[P, 2]`."""
    calls, seconds_P2 = (without, within), np.zeros((WARM_UP + PAIRS, 2))
    for pair in range(len(seconds_P2)):
        for which in (0, 1) if pair % 2 else (1, 0):
            _wait(device)
            begun = time.perf_counter()
            calls[which]()
            _wait(device)
            seconds_P2[pair, which] = time.perf_counter() - begun
    return seconds_P2


def _wait(device: torch.device) -> None:
    """Wait for the work queued on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the median, and its standard error from the median absolute deviation, assuming normal noise."""
    middle = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(values - middle)))
    return middle, 1.25 * deviation / len(values) ** 0.5
