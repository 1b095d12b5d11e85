"""Entry point of the commands: import plugins, print help, check the overrides, then start Hydra."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from hydra._internal.utils import get_args_parser  # the parser that hydra.main itself uses, so that both agree

from esper.checkpoint import Checkpoints, DiskError, FileError, load
from esper.cli.help import help_text
from esper.cli.overrides import plan_run, plan_sweep, quoted
from esper.cli.readiness import ready
from esper.config import CHECKPOINTS, SWEEPS, ConfigError
from esper.plugins import load_plugins, split_plugins
from esper.task.data import TaskError
from esper.training.resume import continued
from esper.training.run_folder import create, only_writer

FOR_PEOPLE = (ConfigError, TaskError, FileError, DiskError)
"""Errors whose message is written for the user. Any other error is a bug and keeps its traceback."""


@contextmanager
def in_one_sentence() -> Generator[None]:
    """Turn an error for the user into one line and exit code 2; HYDRA_FULL_ERROR=1 adds the traceback.

    Ctrl-C and a closed output are one line too, with exit codes 130 and 1.
    """
    try:
        yield
    except FOR_PEOPLE as error:
        if os.environ.get("HYDRA_FULL_ERROR"):
            traceback.print_exc()
        print(f"esper: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("esper: interrupted; what was saved before is intact", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports it again at exit
        print("esper: the reader of the output went away; what was saved before is intact", file=sys.stderr)
        sys.exit(1)


def _format_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Format a warning. Warnings of configs are for the user: they come from code that `dataclass` generated, with no source
    line."""
    if filename == "<string>":
        return f"esper: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def warn_plainly() -> None:
    """Install a format that shows warnings for the user as one sentence."""
    warnings.formatwarning = _format_warning


def sweep_keys(kind: type) -> list[str]:
    """Return the keys of a sweep."""
    return [field.name for field in fields(kind) if not field.name.startswith("_")]


def spelled_out(overrides: list[str]) -> list[str]:
    """Expand overrides for Hydra: in Esper's sweeps, arms=... is short for hydra.sweeper.arms=..., quoted."""
    kinds = [kind for name, kind in SWEEPS.items() for override in overrides if override.startswith(f"sweep={name}")]
    short = tuple(f"{key}=" for kind in kinds for key in sweep_keys(kind))

    def spelled(override: str) -> str:
        key, _, value = override.partition("=")
        if key in ("arms", "question", "plan"):
            return f"hydra.sweeper.{key}={quoted(value)}"
        return f"hydra.sweeper.{override}"

    return [spelled(override) if override.startswith(short) else override for override in overrides]


def _check_sweep(overrides: list[str], *, many: bool) -> None:
    """Check that a command asks for several runs if and only if it names a sweep.

    Raises:
        ConfigError: -m or the sweep is missing.
    """
    chosen = next((override.partition("=")[2] for override in overrides if override.startswith("sweep=")), None)
    if chosen is not None and not many:
        raise ConfigError(f"sweep={chosen} starts several runs: put -m in front, as in python -m esper.train -m sweep={chosen}")
    for key in (override.partition("=")[0] for override in overrides):
        owner = next((name for name, kind in SWEEPS.items() if key in sweep_keys(kind)), None)
        if owner and chosen is None:
            raise ConfigError(f"{key} belongs to a sweep: put -m sweep={owner} in front")


def load_parts(overrides: list[str]) -> list[str]:
    """Import the plugins that a command names or that the run it resumes has recorded, and return its other overrides.

    Raises:
        ConfigError: a plugin cannot be imported.
    """
    names, others = split_plugins(overrides)
    resume = next((override.partition("=")[2] for override in others if override.startswith("resume=")), None)
    newest = Checkpoints(Path(resume) / CHECKPOINTS).latest() if resume else None
    recorded = load(newest)["config"]["values"].get("plugins", ()) if newest else ()
    load_plugins(names)
    load_plugins(recorded)
    return others


def run(main: Callable[[], None]) -> None:
    """Run a `hydra.main` command with the overrides of the command line.

    A command that cannot run ends here with exit code 2 and one sentence, before Hydra has written anything.
    """
    warn_plainly()
    flags = [argument for argument in sys.argv[1:] if argument in ("-m", "--multirun")]  # Hydra wants flags first
    typed = [argument for argument in sys.argv[1:] if argument not in flags]
    with in_one_sentence():
        load_parts(typed)
        _check_sweep(typed, many=bool(flags) or "hydra.mode=MULTIRUN" in typed)
    sys.argv[1:] = [*flags[:1], *spelled_out(typed)]
    args = get_args_parser().parse_args()
    if args.help:
        print(help_text(main.__doc__ or ""))
        return
    elsewhere = args.config_path is not None or args.experimental_rerun is not None
    if not (args.hydra_help or args.shell_completion or args.info is not None or elsewhere):
        overrides = list(args.overrides)
        if args.config_dir is not None:  # a folder with options and experiments of the user
            overrides.append(f"hydra.searchpath=[file://{os.path.abspath(args.config_dir)}]")
        many = args.multirun or "hydra.mode=MULTIRUN" in overrides
        with in_one_sentence(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings are shown once, when the run reads its config
            folder = _look_ahead(overrides, args.config_name or "config", many=many, show=args.cfg is not None)
        if args.cfg is None:
            with in_one_sentence(), only_writer(folder):
                if any(override.startswith("resume=") for override in overrides):
                    sys.argv.append("hydra.output_subdir=null")  # the config of the run stays
                main()
            return
    main()


def _look_ahead(overrides: list[str], config_name: str, *, many: bool, show: bool) -> Path:
    """Compose the configs of all runs, check that this machine can run them, and return the folder, created if it is new."""
    configs, folder = (plan_sweep if many else plan_run)(overrides, config_name=config_name)
    if many and any(config.resume is not None for config in configs):
        raise ConfigError("resume continues one run: leave out -m and the values swept over")
    # A config that is only printed, or that a launcher sends to other machines, need not run on this one.
    asked: list[object] = []
    for config in () if show or any(override.startswith("hydra/launcher=") for override in overrides) else configs:
        if config.resume is not None:
            if Path(config.resume) != folder:
                raise ConfigError(f"a run is resumed in its own folder: leave out hydra.run.dir={folder}")
            config = continued(config, [override for override in overrides if not override.startswith("hydra.")])
        key = [getattr(config, name) for name in ("resume", "task", "host", "devices", "hosts", "slots", "blueprint", "agent")]
        if key not in asked:
            ready(config)
            asked.append(key)
    return folder if show else create(folder)
