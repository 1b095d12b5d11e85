"""Export a network that the controller of a run grows: python -m esper.export checkpoint=FOLDER host=3 format=onnx

The controller grows held-out hosts once more, as in esper.evaluate. The network of one of them, the host with the seeds that it
kept, is written to FOLDER/export/. The files need no Esper. They are read again, and their outputs compared with the network's.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.cli import rehearsal

if __name__ == "__main__":
    rehearsal.rehearse(sys.argv[1:])

import torch

from esper.checkpoint import load_run
from esper.cli.command import in_one_sentence, load_parts, warn_plainly
from esper.cli.keyvalue import page, read_overrides, show_help
from esper.config import CHECKPOINTS, ConfigError, standalone_agents
from esper.env.growth_env import GrowthEnv
from esper.growth.grown import GrownNetwork
from esper.lab.evaluation import POLICIES, Evaluation
from esper.lab.exported import FORMATS, write
from esper.notices import StatusLine, heard_by, notice
from esper.ranges import check_ranges
from esper.training.config_io import from_plain
from esper.training.resume import find_checkpoint
from esper.training.run_folder import EXPORT, files_of, writing_reports

SAMPLES = 64
"""Test samples on which the outputs of the files are compared with those of the network."""


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """One export."""

    checkpoint: str = ""
    """Folder of a run, for its newest checkpoint; FOLDER/best, for the policy with the highest return in training; or a file."""
    host: int = 0
    """Number of the held-out host, at least 0, as `run.html` and the files of `esper.evaluate` count them."""
    episode: int = 0
    """Index of the set of held-out hosts, at least 0."""
    controller: str = "policy"
    """Controller that grows the host: policy, policy_greedy, or an agent that needs no training."""
    format: str = "pytorch"
    """Format: pytorch (network.py and weights.pt), export (network.pt2, for torch.export.load), safetensors (network.py and
    weights.safetensors), or onnx (network.onnx)."""

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ValueError("checkpoint is not set: name the folder of a run, as in checkpoint=multirun/single/...")
        check_ranges("", self, {"[0, inf)": ["host", "episode"]})
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format} is not known: choose from {', '.join(FORMATS)}")
        if self.controller not in (known := [*POLICIES, *standalone_agents()]):
            raise ValueError(f"controller={self.controller} is not known: choose from {', '.join(known)}")


def main(arguments: list[str]) -> None:
    """Grow a host, and write its network."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_help(page(__doc__, ExportConfig(checkpoint="FOLDER")))
        return
    warn_plainly()
    with in_one_sentence():
        asked = read_overrides(ExportConfig, load_parts(arguments))
        if Path(asked.checkpoint).exists():
            rehearsal.end(shows=True)
        path = find_checkpoint(asked.checkpoint, "checkpoint")
        with heard_by(StatusLine(sys.stderr)):
            notice("growing the host once more")
            network, about, samples = grow(path, asked)
            notice()
        run = path.parent.parent if path.parent.name == CHECKPOINTS else path.parent
        folder = run / EXPORT / f"update_{about['updates']:06d}_host_{asked.host}_episode_{asked.episode}_{asked.controller}"
        with writing_reports(run):
            folder.mkdir(parents=True, exist_ok=True)
            worst = write(network, samples, folder, asked.format, about)
        seeds = ", ".join(f"{seed['blueprint']} in {seed['slot']}" for seed in about["seeds"]) or "no seeds"
        print(f"host {asked.host} with {seeds}: test accuracy {about['test_accuracy']:.1f} %, {about['parameters']} parameters")
        print(f"files: {folder}")
        print(f"read again, outputs differ by at most {worst:.0e} of their size, on {len(samples)} test samples")
        if path.parent.name == CHECKPOINTS:
            from_plain(load_run(path)["config"]).telemetry.attach(run, files_of(folder))


def grow(path: Path, asked: ExportConfig) -> tuple[GrownNetwork, dict[str, Any], torch.Tensor]:
    """Return the network of a held-out host, what `topology.json` says of it, and samples to compare outputs on.

    Raises:
        ConfigError: the run grows no hosts.
    """
    evaluation = Evaluation.load(str(path), hosts=max(2, asked.host + 1), episode=asked.episode)
    env, config = evaluation.env, evaluation.config
    if not isinstance(env, GrowthEnv):
        raise ConfigError(f"env={config.choice('env')} trains no hosts, so there is no network to export")
    env.take_networks = (asked.host,)
    outcomes = evaluation.grow(evaluation.controller(asked.controller), greedy=asked.controller == "policy_greedy")
    network = env.networks[asked.host]
    data, layout = env.task.data, env.layout
    samples = data.inputs(data.test_x[:SAMPLES])
    about = {
        "run": config.title(),
        "updates": evaluation.updates,
        "host": asked.host,
        "episode": asked.episode,
        "controller": asked.controller,
        "kind": outcomes.instance[asked.host],
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
        "test_accuracy": float(outcomes.values["accuracy"][asked.host]),
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


if __name__ == "__main__":
    main(sys.argv[1:])
