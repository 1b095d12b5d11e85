"""How a command starts: help, checks, and only then Hydra."""

import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields

from hydra._internal.utils import get_args_parser  # the parser that hydra.main itself uses, so that both agree

from esper.checkpoint import CheckpointError, DiskError
from esper.config import SWEEPS, ConfigError, ready, register
from esper.design import quoted
from esper.knobs import help_text
from esper.overrides import check, check_sweep
from esper.task.base import TaskError

FOR_PEOPLE = (ConfigError, TaskError, CheckpointError, DiskError)
"""Errors whose message is all that the person at the keyboard needs. Any other is a fault of ours and keeps its traceback."""


@contextmanager
def in_one_sentence() -> Generator[None]:
    """Turns an error for people into one line and the exit code of a command that cannot be done."""
    try:
        yield
    except FOR_PEOPLE as error:
        print(f"esper: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _say(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning; one of a config, which comes out of code that `dataclass` wrote, is for people and has no line to show."""
    if filename == "<string>":
        return f"esper: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def warn_plainly() -> None:
    """Warnings for people are shown in one sentence from now on."""
    warnings.formatwarning = _say


def spelled_out(words: list[str]) -> list[str]:
    """The words of an experiment or a tuning as Hydra knows them: arms=... is short for hydra.sweeper.arms=..., quoted."""
    kinds = [kind for name, kind in SWEEPS.items() for word in words if word.startswith(f"sweep={name}")]
    short = tuple(f"{field.name}=" for kind in kinds for field in fields(kind) if not field.name.startswith("_"))

    def spelled(word: str) -> str:
        key, _, value = word.partition("=")
        return f"hydra.sweeper.{key}={quoted(value)}" if key in ("arms", "plan", "tune") else f"hydra.sweeper.{word}"

    return [spelled(word) if word.startswith(short) else word for word in words]


def run(main: Callable[[], None]) -> None:
    """Runs a `hydra.main` command with the words of the command line.

    A command that cannot be run ends here with exit code 2 and one sentence, before Hydra has written anything.
    """
    register()
    warn_plainly()
    sys.argv[1:] = spelled_out(sys.argv[1:])
    args = get_args_parser().parse_args()
    if args.help:
        print(help_text(main.__doc__ or "", check([])))
        return
    elsewhere = args.config_path is not None or args.experimental_rerun is not None
    if not (args.hydra_help or args.shell_completion or args.info is not None or elsewhere):
        words = list(args.overrides)
        if args.config_dir is not None:  # a folder of one's own experiments, searched besides ours
            words.append(f"hydra.searchpath=[file://{os.path.abspath(args.config_dir)}]")
        many = args.multirun or "hydra.mode=MULTIRUN" in words
        with in_one_sentence(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful value warns once, when the run itself reads its config
            _look_ahead(words, args.config_name or "config", many=many, show=args.cfg is not None)
    main()


def _look_ahead(words: list[str], config_name: str, *, many: bool, show: bool) -> None:
    """Composes what is about to run, and asks this machine whether it can run it."""
    configs = check_sweep(words, config_name=config_name) if many else [check(words, config_name=config_name)]
    if many and any(config.resume is not None for config in configs):
        raise ConfigError("resume goes on with one run: leave -m and the values swept over out")
    # A config that is only shown, or that a launcher takes to other machines, need not fit this one.
    if show or any(word.startswith("hydra/launcher=") for word in words):
        return
    asked: list[object] = []
    for config in configs:
        key = [config.resume, config.task, config.devices, config.hosts, config.slots, config.blueprint, config.agent]
        if key not in asked:
            ready(config)
            asked.append(key)
