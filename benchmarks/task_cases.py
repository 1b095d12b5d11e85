"""The command line of scripts that train hosts of several tasks, and the cases that it names."""

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from gpu import images


class Case(NamedTuple):
    """What to measure."""

    task: str
    hosts: int
    rounds: int
    overrides: list[str]


def parser(description: str | None, tasks: Collection[str], rounds: int) -> argparse.ArgumentParser:
    """Return the command line, with all tasks and this number of rounds by default."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tasks", nargs="+", choices=tasks, default=list(tasks))
    made.add_argument("--hosts", nargs="+", type=int, default=[4, 32])
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--quick", action="store_true", help="few hosts and samples: checks the script, measures nothing")
    return made


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases of a command. Images of random pixels stand for CIFAR-10 until the last case has been measured."""
    few = ["task.epoch_samples=32", "task.valid_samples=16", "task.batch_size=16"] if given.quick else []
    with TemporaryDirectory() as folder:
        for task in given.tasks:
            if given.quick and task == "mnist5k":  # its data take seconds to load
                continue
            data = [f"task.root={images(Path(folder))}"] if task.startswith("cifar10") else []
            for hosts in [2] if given.quick else given.hosts:
                yield Case(task, hosts, 1 if given.quick else given.rounds, [*data, *few])
