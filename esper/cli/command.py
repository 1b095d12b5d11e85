"""How a command starts: help, checks, and only then Hydra."""

import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields

from hydra._internal.utils import get_args_parser  # the parser that hydra.main itself uses, so that both agree

from esper.checkpoint import CheckpointError, DiskError
from esper.cli.help import help_text
from esper.cli.overrides import check, check_folder, check_sweep, quoted
from esper.config import ALIASES, GROUPS, RENAMED, SWEEPS, Config, ConfigError, did_you_mean, ready, register
from esper.task.data import TaskError

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
        return f"hydra.sweeper.{key}={quoted(value)}" if key in ("arms", "preregistration", "tune") else f"hydra.sweeper.{word}"

    return [spelled(word) if word.startswith(short) else word for word in words]


def _check_sweep_words(words: list[str], *, many: bool) -> None:
    """Looks at what only a sweep knows, as it was typed.

    Raises:
        ConfigError: there is no sweep where there has to be one, or a key of it is misspelt.
    """
    kinds = {name: [field.name for field in fields(kind) if not field.name.startswith("_")] for name, kind in SWEEPS.items()}
    keys = [word.partition("=")[0] for word in words]
    chosen = next((word.partition("=")[2] for word in words if word.startswith("sweep=")), None)
    if chosen is not None and not many:
        raise ConfigError(f"sweep={chosen} is several runs: put -m in front, as in python -m esper.train -m sweep={chosen}")
    if chosen is None:
        for key in keys:
            if owner := next((name for name, known in kinds.items() if key in known), None):
                raise ConfigError(f"{key} belongs to a sweep: put -m sweep={owner} in front")
    known = next((known for name, known in kinds.items() if chosen is not None and chosen.startswith(name)), [])
    own = [field.name for field in fields(Config)]
    for key in keys:
        if RENAMED.get(key) in known:
            raise ConfigError(f"{key} is now called {RENAMED[key]}")
        hint = did_you_mean(key, [*known, *own])
        if key.isidentifier() and key not in (*known, *own, *GROUPS, *ALIASES) and any(f" {name}?" in hint for name in known):
            raise ConfigError(f"there is no key {key}: sweep={chosen} has {', '.join(known)}{hint}")


def run(main: Callable[[], None]) -> None:
    """Runs a `hydra.main` command with the words of the command line.

    A command that cannot be run ends here with exit code 2 and one sentence, before Hydra has written anything.
    """
    register()
    warn_plainly()
    many = [word for word in sys.argv[1:] if word in ("-m", "--multirun")]  # Hydra wants words together, and flags before them
    typed = [word for word in sys.argv[1:] if word not in many]
    with in_one_sentence():
        _check_sweep_words(typed, many=bool(many) or "hydra.mode=MULTIRUN" in typed)
    sys.argv[1:] = [*many[:1], *spelled_out(typed)]
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
    check_folder(words, config_name=config_name, many=many)
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
