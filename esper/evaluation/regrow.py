"""Grows the network of a held-out host once more: the same host, among the same number of hosts, gives the same network."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from esper.config import Config, ConfigError
from esper.env.growth_env import GrowthEnv
from esper.evaluation.held_out import Evaluation
from esper.growth.grown import GrownNetwork
from esper.task.data import Data

SAMPLES = 64
"""Test samples that come with a network."""


@contextmanager
def own_threads() -> Generator[None]:
    """Restore the number of torch's intra-op threads, which an `Evaluation` sets to 1, for a caller with work of its own."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class Regrown:
    """The network of a held-out host."""

    network: GrownNetwork
    about: dict[str, Any]
    """Description of the host and its seeds; of a transfer, also what differs from the training."""
    samples: torch.Tensor
    """Some test samples."""
    checkpoint: Path
    """File that was read; a training that goes on may have removed it since."""
    config: Config
    """Config of the evaluation."""


def unknown_host(host: int, hosts: int) -> str:
    """Return the error message for a host with this number."""
    return f"host={host} is not among hosts={hosts}, which are counted from 0: choose 0 to {hosts - 1}, or raise hosts"


def regrow(
    checkpoint: Path | str, *, host: int, hosts: int, episode: int, controller: str, overrides: Sequence[str] = ()
) -> Regrown:
    """Return the network of a held-out host, with a description of it and some test samples.

    Args:
        checkpoint: folder of a run, FOLDER/best, or a file. It is read once.
        host: number of the held-out host, below `hosts`.
        hosts: number of held-out hosts, at least 2. With another number, shards may have other sizes and round otherwise, which
            training amplifies: the network is then another one.
        episode: index of the set of held-out hosts.
        controller: policy, policy_greedy, or an agent that needs no training.
        overrides: evaluation overrides, such as devices=[cpu].

    Raises:
        ConfigError: there is no such checkpoint or controller, the run grows no such host, or an override does not fit.
    """
    if not 0 <= host < hosts:
        raise ConfigError(unknown_host(host, hosts))
    evaluation = Evaluation.load(str(checkpoint), hosts=hosts, episode=episode, overrides=overrides)
    env, config = evaluation.env, evaluation.config
    if not isinstance(env, GrowthEnv):
        raise ConfigError(f"env={config.choice('env')} trains no hosts, so there is no network to export")
    env.take_networks = (host,)
    outcomes = evaluation.grow(evaluation.controller(controller), greedy=controller == "policy_greedy")
    network = env.networks[host]
    data, layout = env.task.data, env.layout
    samples = data.inputs(data.test_x[:SAMPLES])
    about = {
        "run": config.title(),
        "updates": evaluation.updates,
        "host": host,
        "hosts": hosts,
        "episode": episode,
        "controller": controller,
        "kind": outcomes.instance[host],
        "seeds": [
            {
                "slot": layout.slot_names[seed.slot],
                "blueprint": layout.blueprint_names[seed.blueprint],
                "blend": seed.blend.name.lower(),
                "alpha": seed.alpha,
            }
            for seed in network.seeds
        ],
        "slots": list(layout.slot_names),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "test_accuracy": float(outcomes.values["accuracy"][host]),
        **in_and_out(data, samples),
        **({"transfer": asdict(evaluation.transfer)} if evaluation.transfer.target else {}),
    }
    env.close()
    return Regrown(network=network, about=about, samples=samples, checkpoint=evaluation.checkpoint, config=config)


def in_and_out(data: Data, samples: torch.Tensor) -> dict[str, Any]:
    """Return a description of a network's inputs and outputs; for a regression, also the name of the target, and the mean and
    standard deviation that turn an output into a prediction.

    Args:
        data: data of the network's host.
        samples: some inputs.
    """
    units = data.units
    target = {"name": data.target, "mean": units.target_mean, "std": units.target_std}
    return {
        "input": {
            "shape": ["batch", *samples.shape[1:]],
            "dtype": str(samples.dtype).removeprefix("torch."),
            "mean": units.mean if data.mean is None else data.mean.flatten().tolist(),
            "std": units.std if data.std is None else data.std.flatten().tolist(),
        },
        "outputs": data.num_classes,
        "classes": units.classes,
        **({"target": target} if data.train_y.is_floating_point() else {}),
    }


def grown_network(
    checkpoint: Path | str,
    *,
    host: int = 0,
    hosts: int = 64,
    episode: int = 0,
    controller: str = "policy",
    overrides: Sequence[str] = (),
) -> GrownNetwork:
    """Return the network of a held-out host, as the controller of a run grows it: a module with `segments` and `slots`.

    `esper.grow(network, slots=["slots.0"], ...)` grows on from there.

    Args:
        checkpoint: folder of a run, FOLDER/best, or a file.
        host: number of the held-out host, as `run.html` and `esper.evaluate` count them, below `hosts`.
        hosts: number of held-out hosts, at least 2. Another number may give another network: use that of the evaluation or
            page, by default 64 in `esper.evaluate` and telemetry.page_hosts in `run.html`.
        episode: index of the set of held-out hosts.
        controller: policy, policy_greedy, or an agent that needs no training.
        overrides: evaluation overrides, such as devices=[cpu].

    Raises:
        ConfigError: there is no such checkpoint or controller, the run grows no such host, or an override does not fit.
    """
    with own_threads():
        return regrow(checkpoint, host=host, hosts=hosts, episode=episode, controller=controller, overrides=overrides).network
