"""Compare the arms of an experiment by outcomes that do not depend on the reward: python -m esper.compare FOLDER...

FOLDER is the folder of an experiment (sweep=ab), or a folder with runs. In the second case, runs that differ in more than their
seed are different arms, and runs with the same seed form a block. Every policy grows held-out hosts, with sampled and with its
most probable actions; its scores are stored in the folder of its run, where later comparisons read them. Prints the verdicts, and
writes report.html and its numbers (JSON, CSV, LaTeX) into the first folder.

Append overrides of esper.train, such as task=mnist5k, to evaluate all policies on another task or with other settings. The names
of the files then contain these overrides. They also contain the outcome, if it is not the planned one. --config-dir FOLDER adds
options of your own; without it, an experiment has those of its last start.
"""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from esper.cli import rehearsal

if __name__ == "__main__":
    rehearsal.rehearse(sys.argv[1:])

from rich.console import Console

from esper.cli.command import evaluating, load_recorded
from esper.cli.keyvalue import help_of, read_overrides, show_help, split_folders
from esper.cli.search_path import options_in, own_options
from esper.cli.transfer import TRANSFERABLE, is_run_override
from esper.config import ConfigError
from esper.lab.last_start import config_dir_of
from esper.lab.looks import agreed, planned, record_look
from esper.lab.outcomes import OUTCOMES, CompareConfig
from esper.plugins import split_plugins
from esper.training.run_folder import check_writable, writing_reports


def parse(arguments: list[str]) -> tuple[list[Path], CompareConfig, list[str]]:
    """Return folders, config and evaluation overrides.

    Raises:
        ConfigError: the arguments do not describe a comparison.
    """
    folders, settings = split_folders(arguments)
    overrides = [argument for argument in settings if is_run_override(argument)]
    if seed := next((argument for argument in overrides if argument.startswith("seed=")), None):
        raise ConfigError(f"{seed} would score all runs on the same hosts: remove it, since each run has its own held-out hosts")
    design = planned(folders)
    if design and split_plugins(design.common)[0]:  # of which a baseline may be
        rehearsal.end(shows=True)
        any(load_recorded(folders[0] / cell.folder) for cell in design.cells)
    keys = [argument for argument in settings if argument not in overrides]
    try:
        base = agreed(folders)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"the plan of {', '.join(map(str, folders))}: {error}; a part of your own needs its package, or plugins=[FILE]"
        ) from error
    config = read_overrides(CompareConfig, keys, also=[key for key in TRANSFERABLE if key != "seed"], base=base)
    if config.outcome != base.outcome and not any(key.startswith("margin=") for key in keys):
        config.margin = None  # the planned margin has another unit
    if not folders:
        raise ConfigError("no folder is given: name one, as in python -m esper.compare multirun/ab/...")
    return folders, config, overrides


def help_text() -> str:
    """Return the text of --help."""
    outcomes = [
        f"{one.name} [{one.unit}]: {one.description}; margin {one.margin:g} {one.difference}".removesuffix(" 1")
        for one in OUTCOMES.values()
    ]
    return "\n".join([help_of(__doc__, CompareConfig()), "", "outcomes:", *(f"  {line}" for line in outcomes)])


def main(arguments: list[str]) -> None:
    """Compare, print and write."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_help(help_text())
        return
    with evaluating(arguments) as given:
        folders, config, overrides = parse(given)
        rehearsal.end(shows=True)
        try:
            from esper.lab.comparison import compare
            from esper.lab.report import show, write  # late, to keep --help and error messages fast
        except ImportError as error:
            remedy = "install the extra compare, as in pip install -c constraints.txt -e '.[compare]'"
            raise ConfigError(f"comparisons need {error.name}, which is not installed: {remedy}") from error
        for folder in folders:
            if tuning := next(folder.rglob("tuning.json"), None):
                raise ConfigError(
                    f"{tuning.parent} holds a tuning, and its numbers are in tuning.json: compare the best values with the "
                    "baseline by the command that the tuning printed, which runs both on new random seeds"
                )
        if folders[0].is_dir():
            check_writable(folders[0])
        said: list[str] = []

        def log(lines: str) -> None:
            said.extend(lines.splitlines())
            print(lines, flush=True)

        with options_in(own_options() or config_dir_of(folders)):
            found = compare(folders, config, overrides=overrides, log=log)
        look = {"config": asdict(config), "overrides": found.overrides, "sentences": found.sentences}
        try:
            record_look(folders, found.runs, look)
        finally:  # of a folder that cannot be written to
            show(found, Console(), said)
        with writing_reports(folders[0]):
            written = write(found, folders[0], f"python -m esper.compare {shlex.join(arguments)}")
        print("written:", *written, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
