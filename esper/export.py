"""Export a network that the controller of a run grows: python -m esper.export checkpoint=FOLDER host=3 format=onnx

The controller grows held-out hosts once more, as in esper.evaluate. The network of one of them, the host with the seeds that it
kept, is written to FOLDER/export/. The files need no Esper. They are read again, and their outputs compared with the network's.

Append overrides of esper.train as for esper.evaluate, such as devices=[cpu] for a run of another machine. --config-dir FOLDER
adds options of your own.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from esper.cli import rehearsal

if __name__ == "__main__":
    rehearsal.rehearse(sys.argv[1:])

from esper.cli.command import evaluating
from esper.cli.keyvalue import help_of, read_overrides, show_help
from esper.cli.transfer import TRANSFERABLE, check_transferable, is_run_override, moved, slug
from esper.config import ConfigError, standalone_agents, unknown_controller
from esper.evaluation.bundle import export_program, write_bundle
from esper.evaluation.exported import FORMATS, check_libraries, write
from esper.evaluation.held_out import POLICIES
from esper.evaluation.regrow import regrow, unknown_host
from esper.notices import StatusLine, heard_by, notice
from esper.ranges import check_ranges
from esper.training.config_io import from_plain, to_plain, without_paths
from esper.training.resume import find_checkpoint, load_found, may_hold_checkpoint, run_of
from esper.training.run_folder import CHECKPOINTS, EXPORT, check_writable, files_of, writing_reports

POLICY = "policy"
"""Format of the controller itself."""


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """Settings of an export: the network of one host, or the policy, as files."""

    checkpoint: str = ""
    """Folder of a run, for its newest checkpoint; FOLDER/best, for the policy with the highest return in training; or a file."""
    host: int = 0
    """Number of the held-out host, at least 0, as `run.html` and the files of `esper.evaluate` count them."""
    hosts: int = 64
    """Held-out hosts that the controller grows, at least 2. To get the network of an evaluation or a page, use its number of
    hosts: 64 by default in esper.evaluate, telemetry.page_hosts in `run.html`. With another number, rounding differs, and
    training amplifies this."""
    episode: int = 0
    """Index of the set of held-out hosts, at least 0."""
    controller: str = "policy"
    """Controller that grows the host: policy, policy_greedy, or an agent that needs no training."""
    format: str = "pytorch"
    """Format of the network: pytorch (network.py and weights.pt), export (network.pt2, for torch.export.load), safetensors
    (network.py and weights.safetensors), or onnx (network.onnx). Or policy: the controller itself, with a model card, as a folder
    to pass on and as a program for torch.export.load."""

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise ValueError("checkpoint is not set: name the folder of a run, as in checkpoint=multirun/single/...")
        check_ranges("", self, {"[0, inf)": ["host", "episode"], "[2, inf)": ["hosts"]})
        if self.host >= self.hosts:
            raise ValueError(unknown_host(self.host, self.hosts))
        check_libraries(self.format)
        if self.format not in (*FORMATS, POLICY):
            raise ValueError(f"format={self.format} is not known: choose from {', '.join([*FORMATS, POLICY])}")
        if self.format == POLICY and (self.host, self.hosts, self.episode, self.controller) != (0, 64, 0, "policy"):
            raise ValueError("format=policy writes the policy itself: leave host, hosts, episode and controller out")
        if self.controller not in (known := [*POLICIES, *standalone_agents()]):
            raise ValueError(unknown_controller("controller", self.controller, known))


def main(arguments: list[str]) -> None:
    """Grow a host, and write its network."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_help(help_of(__doc__, ExportConfig(checkpoint="FOLDER")))
        return
    with evaluating(arguments) as given:
        overrides = [one for one in given if is_run_override(one) and not one.startswith("host=")]  # host is a key here
        keys = [argument for argument in given if argument not in overrides]
        asked = read_overrides(ExportConfig, keys, also=TRANSFERABLE)
        if may_hold_checkpoint(asked.checkpoint):
            rehearsal.end(shows=True)
        with heard_by(StatusLine(sys.stderr)):
            if asked.format == POLICY:
                if others := without_paths(overrides):
                    raise ConfigError(f"format=policy writes the policy as it was trained: leave {others[0]} out")
                notice("writing the policy")
                write_policy(asked.checkpoint, overrides)
                return
            check_transferable(overrides)
            check_writable(run_of(find_checkpoint(asked.checkpoint, "checkpoint")))
            notice("growing the host once more")
            grown = regrow(
                asked.checkpoint,
                host=asked.host,
                hosts=asked.hosts,
                episode=asked.episode,
                controller=asked.controller,
                overrides=overrides,
            )
            notice()
        run, about = run_of(grown.checkpoint), grown.about
        name = f"update_{about['updates']:06d}_host_{asked.host}_of_{asked.hosts}_episode_{asked.episode}_{asked.controller}"
        folder = run / EXPORT / "_".join(filter(None, [name, slug(about.get("transfer", {}).get("target", ()))]))
        with writing_reports(run):
            worst = write(grown.network, grown.samples, folder, asked.format, about)
        seeds = ", ".join(f"{seed['blueprint']} in {seed['slot']}" for seed in about["seeds"]) or "no seeds"
        score = f"test {grown.config.task.build_objective().score} {about['test_accuracy']:.1f} %"
        print(f"host {asked.host} with {seeds}: {score}, {about['parameters']} parameters")
        print(f"files: {folder}")
        error = f"have a relative error of at most {worst:.0e}" if worst else "are the same"
        print(f"reloaded, its outputs {error} on {len(grown.samples)} test samples")
        if grown.checkpoint.parent.name == CHECKPOINTS:
            grown.config.telemetry.attach(run, files_of(folder))


def write_policy(checkpoint: str, paths: Sequence[str]) -> None:
    """Write the policy of a run, and print where.

    Args:
        paths: where the data of the run is now, as overrides, if it has moved.
    """
    path, state, _ = load_found(checkpoint, "checkpoint")
    state |= {"config": to_plain(moved(from_plain(state["config"]), paths, state["hparams"].get("data")))}
    run = run_of(path)
    check_writable(run)
    with writing_reports(run):
        folder = run / EXPORT / f"policy_{state['update']:06d}"
        write_bundle(path, state, folder)
        program = export_program(folder)
    if path.parent.name == CHECKPOINTS:
        from_plain(state["config"]).telemetry.attach(run, files_of(folder))
    notice()
    print(f"policy: {folder}")
    print(f"program: {program}" if program else "no policy.pt2, since this agent has no network")


if __name__ == "__main__":
    main(sys.argv[1:])
