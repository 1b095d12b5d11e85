"""Entry point of the commands: import plugins, print help, check the overrides, then start Hydra."""

import json
import os
import shlex
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import hydra._internal.utils as hydra_internals

from esper.checkpoint import Checkpoints
from esper.cli import failures, flags, rehearsal
from esper.cli.failures import end, end_if_failed, go_on
from esper.cli.help import help_text
from esper.cli.keyvalue import show_help
from esper.cli.overrides import plan_run, plan_sweep
from esper.cli.quoting import quoted, unquoted
from esper.cli.readiness import ready
from esper.cli.refusals import (
    check_sweep,
    refuse_another_kind,
    refuse_another_length,
    refuse_another_sweep,
    refuse_other_data,
    sweep_keys,
)
from esper.cli.search_path import hydra_at_conf, options_in
from esper.cli.sweep_position import COMMAND, begin_sweep
from esper.config import ALIASES, GROUPS, MANY, Config, ConfigError
from esper.env.actions import ActionError
from esper.files import DiskError, FileError
from esper.memory import memory_shortage
from esper.notices import UserNotice, notice
from esper.plugins import load_plugins, place_in_plugin, split_plugins
from esper.pool.cluster import ClusterError
from esper.reward.rewards import RewardError
from esper.sweeps import SWEEPS
from esper.task.data import TaskError
from esper.telemetry.tracker import TrackerError
from esper.telemetry.writers import check_writers
from esper.text import counted
from esper.training.config_io import to_plain
from esper.training.resume import continued, load_newest
from esper.training.run_folder import CHECKPOINTS, BusyError, create, only_writer

LOCAL_LAUNCHERS = ("basic", "joblib", "submitit_local")
"""Launchers whose runs are processes on this machine."""
USER_ERRORS = (
    ConfigError,
    TaskError,
    RewardError,
    ActionError,
    FileError,
    DiskError,
    TrackerError,
    ClusterError,
    FloatingPointError,
)
"""Errors whose message is written for the user; the last is raised for hosts and policies that diverge. Any other error is a bug
and keeps its traceback."""
OF_THE_MACHINE = (DiskError, TrackerError, ClusterError, BusyError)
"""Those whose cause is the machine, or another program, and not the settings."""


@contextmanager
def in_one_sentence() -> Generator[None]:
    """Turn an error for the user, or of the file system, into one line and exit code 2; HYDRA_FULL_ERROR=1 adds the traceback.

    Lack of memory, Ctrl-C and a closed output end in the same way, with exit codes 2, 130 and 1.
    """
    rehearsal.prepare_outputs()
    try:
        yield
        sys.stdout.flush()  # else a closed output shows only at the end of Python
    except USER_ERRORS as error:
        _exit_with(error)
    except KeyboardInterrupt:
        print(rehearsal.INTERRUPTED, file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        rehearsal.close_output()
        print(rehearsal.CLOSED, file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        _report(error)


def _report(error: Exception) -> None:
    """Exit with one line on an error whose message is not written for the user; raise it if it is a bug.

    The traceback of an error in a plugin is for its author, and stays.
    """
    shortage = memory_shortage(error)
    if (place := place_in_plugin(error)) and shortage is None:
        notice()
        traceback.print_exception(error)
        saved = "what was saved before is intact: correct the file, and repeat the command, or continue a run with resume="
        end(1, f"{place}: {type(error).__name__}: {' '.join(str(error).split())}; {saved}")
    if isinstance(error, OSError) and shortage is None:  # of Hydra or another library: ours are DiskErrors
        _exit_with(DiskError(f"use {error.filename}" if error.filename else "go on", error))
    if shortage is None:
        raise error
    end(2, f"{shortage}; what was saved before is intact: lower hosts or task.batch_size")


def _exit_with(error: Exception) -> NoReturn:
    notice()
    if os.environ.get("HYDRA_FULL_ERROR"):
        traceback.print_exc()
    end(2, " ".join(str(error).split()), machine=isinstance(error, OF_THE_MACHINE))


@contextmanager
def _from_hydra(main: Callable[[], object], folder: Path | None = None) -> Generator[list[Any]]:
    """Turn an error of Hydra, or of a launcher, into ConfigError; one of our own is a bug and keeps its traceback.

    Yields a list that will hold the results of all runs.
    """
    results: list[Any] = []
    # Hydra would print errors and exit, and drop the results.
    hydra_internals.run_and_report = lambda work: results.append(work()) or results[-1]  # pyright: ignore[reportPrivateUsage]
    try:
        yield results
    except (*USER_ERRORS, OSError):
        raise
    except BrokenProcessPool as error:  # of joblib
        raise ConfigError(
            "the process of a run was killed, most likely out of memory, and the other runs ended with it; all "
            "are saved up to their last update: lower hydra.launcher.n_jobs if it happens again, and "
            f"{go_on(folder) if folder else 'repeat the command'}"
        ) from error
    except Exception as error:
        if type(error).__module__.startswith("submitit."):  # its traceback, and the logs that it quotes, are its own
            told = str(error).splitlines()[0]
            raise ClusterError(
                f"a run was killed on its machine ({told}); {go_on(folder) if folder else 'repeat the command'}"
            ) from error
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        in_a_run = any(frame.f_code is getattr(main, "__wrapped__", main).__code__ for frame in frames)
        in_a_worker = type(error.__cause__).__name__ == "_RemoteTraceback"
        ours = Path(frames[-1].f_code.co_filename).is_relative_to(Path(__file__).parents[1])
        if rehearsal.active or in_a_run or in_a_worker or ours:
            raise
        raise ConfigError(f"Hydra cannot run this command ({type(error).__name__}: {error}); see --hydra-help") from error


_shown: set[str] = set()
"""Warnings that this command has shown: a run reads its config and its checkpoints several times."""


def _format_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Format a warning; return nothing for one that was shown. Those of configs come from code that `dataclass` generated, with
    no source line: like a `UserNotice`, they are for the user."""
    plain = filename == "<string>" or issubclass(category, UserNotice)
    notice()  # ends a line of a terminal that shows a step
    text = f"warning: {message}\n" if plain else f"{filename}:{lineno}: {category.__name__}: {message}\n"
    if text in _shown:
        return ""
    _shown.add(text)
    return text


def warn_plainly() -> None:
    """Install a format that shows each warning once, and those for the user as one sentence."""
    if warnings.formatwarning is not _format_warning:
        _shown.clear()
    warnings.formatwarning = _format_warning


def spelled_out(overrides: list[str]) -> list[str]:
    """Expand overrides for Hydra: in Esper's sweeps, arms=... is short for hydra.sweeper.arms=..., quoted."""
    kinds = [kind for name, kind in SWEEPS.items() for override in overrides if override.startswith(f"sweep={name}")]
    short = tuple(f"{key}=" for kind in kinds for key in sweep_keys(kind))

    def spelled(override: str) -> str:
        key, _, value = override.partition("=")
        if key in ("arms", "question", "plan", "score_overrides"):
            return f"hydra.sweeper.{key}={quoted(unquoted(value))}"
        return f"hydra.sweeper.{override}"

    return [spelled(override) if override.startswith(short) else override for override in overrides]


def load_parts(overrides: list[str]) -> list[str]:
    """Import the plugins that a command names or that the run it resumes has recorded, and return its other overrides.

    Raises:
        ConfigError: a plugin cannot be imported.
    """
    names, others = split_plugins(overrides)
    load_plugins(names)
    if resume := next((unquoted(override.partition("=")[2]) for override in others if override.startswith("resume=")), None):
        load_recorded(Path(resume))
    return others


def load_recorded(folder: Path) -> bool:
    """Import the plugins that the run in a folder has recorded; return False if there is no run.

    Raises:
        ConfigError: a plugin cannot be imported.
        CheckpointError: the newest checkpoint is damaged.
    """
    state = load_newest(folder)
    load_plugins(state["config"]["values"].get("plugins", ()) if state else ())
    return state is not None


def choices_of_run(overrides: Sequence[str]) -> list[str]:
    """Return the choices of groups that a command which resumes a run leaves out, as overrides: a key belongs to the option that
    the run has, not to the default. Empty for other commands, and if there is no run.

    Raises:
        CheckpointError: the run cannot be read.
    """
    given = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    state = load_newest(Path(unquoted(given["resume"]))) if given.get("resume") else None
    if state is None:
        return []
    chosen, named = state["config"]["choices"], {ALIASES.get(key, key) for key in given}
    groups = dict.fromkeys(group for key in given if "." in key and (group := key.split(".")[0]) in GROUPS and group not in named)
    return [f"{group}=[{','.join(chosen[group])}]" if group in MANY else f"{group}={chosen[group]}" for group in groups]


@contextmanager
def evaluating(arguments: Sequence[str]) -> Generator[list[str]]:
    """Run a command that takes overrides of runs; see `in_one_sentence`.

    Yields:
        Its arguments without plugins, which are imported, and without --config-dir, whose options are known meanwhile.
    """
    warn_plainly()
    with in_one_sentence():
        config_dir, others = flags.split_config_dir(arguments)
        with options_in(config_dir):
            yield load_parts(others)


def run(main: Callable[[], object]) -> None:
    """Run a `hydra.main` command with the overrides of the command line.

    A command that cannot run ends here with exit code 2 and one sentence, before Hydra has written anything.
    """
    warn_plainly()
    with in_one_sentence():
        typed = flags.in_order(sys.argv[1:])
        args = flags.parse(typed)
        load_parts(args.overrides)
        check_sweep(args.overrides, many=_is_many(args), config_name=args.config_name)
        failures.arguments[:] = typed
        sys.argv[1:] = [*spelled_out(typed), *choices_of_run(args.overrides)]
        args = flags.parse(sys.argv[1:])
        if args.help:
            show_help(help_text(main.__doc__ or ""))
        elif args.hydra_help or args.shell_completion or args.info is not None:
            with _from_hydra(main):
                main()
        else:
            _start(main, args)


def _is_many(args: Namespace) -> bool:
    return args.multirun or "hydra.mode=MULTIRUN" in args.overrides


def _start(main: Callable[[], object], args: Namespace) -> None:
    """Check a command, and run it or show its config."""
    overrides = list(args.overrides)
    many = _is_many(args)
    with warnings.catch_warnings(), options_in(args.config_dir), hydra_at_conf():
        warnings.simplefilter("ignore")  # warnings of configs are shown when the run reads its config
        warnings.simplefilter("always", UserNotice)  # but data is checked only when it is first loaded, which may be here
        folder, comparison = _look_ahead(overrides, args.config_name or "config", many=many, show=args.cfg is not None)
    if args.cfg is not None:
        with _from_hydra(main):
            main()
        return
    if many:
        os.environ[COMMAND] = str(os.getpid())
    try:
        with only_writer(folder), _from_hydra(main, folder) as results:
            begun = not many and bool(Checkpoints(folder / CHECKPOINTS).paths())
            if begun or any(override.startswith("resume=") for override in overrides):
                # .hydra tells how the run was started, also if this command is refused
                sys.argv.append("hydra.output_subdir=null")
            main()
    except KeyboardInterrupt:  # of a launcher, whose runs are in other processes
        if not many:
            raise
        end(130, f"interrupted; what was saved before is intact; {go_on(folder)}")
    end_if_failed(results, folder)
    if comparison:
        print(f"all runs are finished; compare them with: {comparison}")


def _look_ahead(overrides: list[str], config_name: str, *, many: bool, show: bool) -> tuple[Path, str]:
    """Compose the configs of all runs, and check that this machine can run them.

    Returns:
        The folder, created if it is new; and, for a sweep over values of one task that differ in more than the random seed, the
        command that compares its runs, else an empty text.
    """
    configs, folder = (plan_sweep if many else plan_run)(overrides, config_name=config_name)
    if many and any(config.resume is not None for config in configs):
        raise ConfigError("resume continues one run: leave out -m and the swept values")
    if not show:
        refuse_another_kind(folder, overrides, many=many)
        shown = bool(configs) and "console" in check_writers(configs[0].telemetry.writers)
        rehearsal.end(configs[0].title() if shown and not many else "", shows=shown)
    # A config that is only printed, or that a launcher sends to other machines, need not run on this one.
    asked, comparison = list[object](), ""
    for config in () if show or _elsewhere(overrides) else configs:
        if config.resume is not None:
            if Path(config.resume) != folder:
                raise ConfigError(f"a run is resumed in its own folder: leave out hydra.run.dir={folder}")
            config = continued(config, [override for override in overrides if not override.startswith("hydra.")])
        if not many:
            refuse_another_length(folder, config.updates)
        key = [
            getattr(config, name)
            for name in ("resume", "env", "task", "host", "devices", "cluster", "hosts", "slots", "blueprint", "agent")
        ]
        if key not in asked:  # a begun sweep may need its teachers no more: each run looks
            ready(config, trains=not (many and any(folder.glob(f"**/{CHECKPOINTS}/*.pt"))), folder=None if many else folder)
            asked.append(key)
    if many and not show and not _elsewhere(overrides):
        refuse_other_data(folder, configs)
    if many and configs and not show and not any(override.startswith("sweep=") for override in overrides):
        refuse_another_sweep(folder, configs)
        begin_sweep(len(configs))  # sweeps of experiments and tunings count their own runs
        if (alike := len(configs) - _different(configs)) > 0:
            repeated = f"{counted(alike, 'run')} of {len(configs)} repeat another one"
            print(f"warning: {repeated}, with the same values and seeds: remove values that are listed twice", file=sys.stderr)
        tasks = {config.choice("task") for config in configs}
        first = configs[0]  # a comparison does not tell arms apart by these:
        aside = {"seed": 0, "policy_seed": None, "telemetry": first.telemetry, "checkpoints": first.checkpoints}
        if len(tasks) == 1 and _different([replace(config, **aside) for config in configs]) > 1:
            comparison = _comparison(configs, folder)
    return (folder if show else create(folder)), comparison


def _comparison(configs: Sequence[Config], folder: Path) -> str:
    """Return the command that compares the runs of a sweep over values; an empty text if they cannot be compared."""
    command = f"python -m esper.compare {shlex.quote(str(folder))}"
    if all(config.env.has_hosts for config in configs):
        return command
    paid = {(str(config.governor), str(config.reward), getattr(config.agent, "gamma", None)) for config in configs}
    return f"{command} outcome=return" if len(paid) == 1 and not any(config.env.has_hosts for config in configs) else ""


def _elsewhere(overrides: Sequence[str]) -> bool:
    """Return whether a launcher sends the runs to other machines."""
    launcher = next((one.partition("=")[2] for one in overrides if one.startswith("hydra/launcher=")), "basic")
    address = next((one.partition("=")[2] for one in overrides if one.startswith("hydra.launcher.address=")), "null")
    return address != "null" if launcher == "esper_ray" else launcher not in LOCAL_LAUNCHERS


def _different(configs: Sequence[Config]) -> int:
    """Return how many of these configs are different."""
    return len({json.dumps(to_plain(config), sort_keys=True, default=str) for config in configs})
