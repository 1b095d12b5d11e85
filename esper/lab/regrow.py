"""A network that the controller of a run grows, grown once more: the same host, data and seeds give the same network."""

from pathlib import Path
from typing import Any

import torch

from esper.config import ConfigError
from esper.env.growth_env import GrowthEnv
from esper.growth.grown import GrownNetwork
from esper.lab.evaluation import Evaluation
from esper.training.resume import find_checkpoint

SAMPLES = 64
"""Test samples that come with a network."""


def regrow(path: Path, host: int, episode: int, controller: str) -> tuple[GrownNetwork, dict[str, Any], torch.Tensor]:
    """Return the network of a held-out host, a description of it, and some test samples.

    Args:
        path: file of a checkpoint.
        host: number of the held-out host.
        episode: index of the set of held-out hosts.
        controller: policy, policy_greedy, or an agent that needs no training.

    Raises:
        ConfigError: the run grows no hosts.
    """
    evaluation = Evaluation.load(str(path), hosts=max(2, host + 1), episode=episode)
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
        "input": {
            "shape": ["batch", *samples.shape[1:]],
            "dtype": str(samples.dtype).removeprefix("torch."),
            "mean": None if data.mean is None else data.mean.flatten().tolist(),
            "std": None if data.std is None else data.std.flatten().tolist(),
        },
        "outputs": data.num_classes,
    }
    env.close()
    return network, about, samples


def grown_network(checkpoint: Path | str, *, host: int = 0, episode: int = 0, controller: str = "policy") -> GrownNetwork:
    """Return the network of a held-out host, as the controller of a run grows it: a module with `segments` and `slots`.

    `esper.grow(network, slots=["slots.0"], ...)` grows on from there.

    Args:
        checkpoint: folder of a run, FOLDER/best, or a file.
        host: number of the held-out host, as `run.html` and `esper.evaluate` count them.
        episode: index of the set of held-out hosts.
        controller: policy, policy_greedy, or an agent that needs no training.

    Raises:
        ConfigError: there is no such checkpoint, or the run grows no hosts.
    """
    return regrow(find_checkpoint(str(checkpoint), "checkpoint"), host, episode, controller)[0]
