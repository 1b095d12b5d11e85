"""Flags of the commands. Those of esper.train are Hydra's; whatever Hydra would answer with a traceback is refused here."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser  # the parser that hydra.main itself uses, so that both agree

from esper.cli.version import version_text
from esper.config import CONF, ConfigError


def admit_lazy_help() -> None:
    """Let argparse accept a help text that is no string, but becomes one when it is shown.

    Hydra 1.3 has one, and Python 3.14 checks it too early: Hydra would not start there.
    """
    parsers: Any = ArgumentParser
    if (check := getattr(parsers, "_check_help", None)) is not None:

        def checked(self: ArgumentParser, action: Action) -> None:
            if isinstance(action.help, str):
                check(self, action)

        parsers._check_help = checked


admit_lazy_help()


def _refuse(message: str) -> NoReturn:
    _, unknown, flag = message.partition("unrecognized arguments: --")
    hint = f": keys are written without dashes, as in {flag.split()[0].partition('=')[0]}=VALUE" if unknown and flag else ""
    raise ConfigError(f"{message}{hint}; see --help")


def _check_config_dir(folder: str) -> None:
    if not (folder and Path(folder).is_dir()):
        raise ConfigError(f"--config-dir {folder} is not a folder: name one with your own options, such as experiment/")


def split_config_dir(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the folder of --config-dir, None without this flag, and the other arguments of a command that takes no other flag
    of Hydra's.

    Raises:
        ConfigError: it is not a folder.
    """
    folder, others, words = None, list[str](), iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            folder = value if equals else next(words, "")
            _check_config_dir(folder)
        else:
            others.append(word)
    return folder, others


def _folders(args: Namespace) -> list[Path]:
    return [Path(folder) for folder in (args.config_dir, CONF) if folder]


def in_order(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the flags first, as Hydra reads them, and then the overrides, each in their order."""
    overrides, flags = parse(arguments).overrides, list(arguments)
    for override in reversed(overrides):
        del flags[len(flags) - 1 - flags[::-1].index(override)]
    return [*flags, *overrides]


def parse(arguments: Sequence[str]) -> Namespace:
    """Return the flags and overrides of a command line.

    Raises:
        ConfigError: Hydra does not know a flag, or flags do not fit together.
    """
    if "--version" in arguments:  # Hydra would name its own alone
        print(f"{version_text() or 'esper, not installed'} (Hydra {hydra.__version__})")
        raise SystemExit(0)
    parser = get_args_parser()
    parser.error = _refuse
    args = parser.parse_intermixed_args(list(arguments))
    if args.config_path is not None or args.experimental_rerun is not None:
        flag = "--config-path" if args.config_path is not None else "--experimental-rerun"
        raise ConfigError(f"{flag} is not supported: add a folder of your own options with --config-dir")
    if args.config_name == "":
        raise ConfigError("--config-name names no config: leave it out, or name a file of --config-dir")
    if args.config_name and not any(
        (folder / f"{args.config_name.removesuffix('.yaml')}.yaml").is_file() for folder in _folders(args)
    ):
        found = sorted({path.stem for folder in _folders(args) for path in folder.glob("*.yaml")})
        raise ConfigError(f"--config-name {args.config_name} is not a config: choose from {', '.join(found)}")
    if args.config_dir is not None:
        _check_config_dir(args.config_dir)
    flags = {"--run": args.run, "--cfg": args.cfg, "--multirun": args.multirun, "--info": args.info}
    chosen = [flag for flag, given in {**flags, "--shell-completion": args.shell_completion}.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} are mutually exclusive: keep only one")
    if (args.resolve or args.package is not None) and not args.cfg:
        raise ConfigError(f"{'--resolve' if args.resolve else '--package'} changes what --cfg prints: add --cfg job")
    if args.shell_completion and sum(word.startswith(("install=", "uninstall=", "query=")) for word in args.overrides) != 1:
        raise ConfigError("--shell-completion needs a command and a shell: write --shell-completion install=bash")
    return args
