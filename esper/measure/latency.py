"""Inference latency of a bare host, and of each seed on top, measured on the local machine.

Unlike parameters and FLOPs, latencies are measurements and differ between runs. A run measures once and stores the result in its
checkpoints, so that resuming and evaluating it use the same numbers.
"""

# S slots, K blueprints, P pairs of timings

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from esper.hosts.base import segments_of, slot_specs
from esper.measure.costs import Price
from esper.seeding import borrowed_stream
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.gated import Gate

BATCH = 64
"""Batch size of the timed forwards; results are per sample. Higher: closer to throughput than to single-sample latency."""
PAIRS = 25
"""Number of paired timings with and without a seed. More: less noise, longer start."""
WARM_UP = 3
"""Number of warm-up pairs, which are discarded."""


def measure_latency(
    host: nn.Module, blueprints: Sequence[BlueprintConfig], used_S: npt.NDArray[np.bool_], samples: Tensor, device: torch.device
) -> Price:
    """Time a bare host and the host with each seed, on one CPU thread or on a GPU, and return seconds per sample.

    The latency of the host is the median of all its timings. The latency of a seed is the median of paired differences; a
    negative one is noise and becomes 0. A seed is timed as ADD, h + delta(h), and a gate alone, h * g(h). The extra work of
    MULTIPLY is not timed.

    Args:
        host: a plain host; it is left on the device, in evaluation mode.
        blueprints: the blueprints of a run.
        used_S: slots in use; NaN for seeds in the others, and for seeds that cannot grow.
        samples: inputs of a host; the first `BATCH` are used, repeated if there are fewer.
        device: device of the measurement.
    """
    specs, x = slot_specs(host), samples[torch.arange(BATCH) % len(samples)].to(device)
    segments = segments_of(host.to(device).eval())
    found, bare = Price.unknown(len(blueprints), len(specs)), list[float]()

    def seconds(slot: int | None = None, change: Callable[[Tensor], Tensor] | None = None) -> float:
        _wait(device)
        begun, y = time.perf_counter(), x
        for place, segment in enumerate(segments):
            y = segment(y)
            if place == slot and change is not None:
                y = change(y)
        _wait(device)
        return time.perf_counter() - begun

    def added(slot: int | None = None, change: Callable[[Tensor], Tensor] | None = None) -> float:
        pairs_P2 = np.zeros((WARM_UP + PAIRS, 2))
        for pair in range(len(pairs_P2)):
            for which in (0, 1) if pair % 2 else (1, 0):
                pairs_P2[pair, which] = seconds(slot, change) if which else seconds()
        without_P, within_P = pairs_P2[WARM_UP:].T / BATCH
        bare.extend(without_P.tolist())
        return max(0.0, float(np.median(within_P - without_P)))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), borrowed_stream():
            added()
            for slot in np.flatnonzero(used_S).tolist():
                gate = Gate(specs[slot].channels).to(device)
                found.gate_S[slot] = added(slot, lambda h, gate=gate: h * gate(h).view(len(h), *[1] * (h.dim() - 1)))
                for kind, blueprint in enumerate(blueprints):
                    if not blueprint.obstacle(specs[slot]):
                        branch = blueprint.branch(specs[slot]).to(device).eval()
                        found.seed_KS[kind, slot] = added(slot, lambda h, branch=branch: h + branch(h))
    finally:
        torch.set_num_threads(threads)
    return replace(found, host=float(np.median(bare)))


def _wait(device: torch.device) -> None:
    """Wait for the work queued on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
