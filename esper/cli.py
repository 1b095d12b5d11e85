"""How a command starts: help, checks, and only then Hydra."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from hydra._internal.utils import get_args_parser  # the parser that hydra.main itself uses, so that both agree

from esper.config import ConfigError, register
from esper.knobs import help_text
from esper.overrides import check, check_sweep


def run(main: Callable[[], None]) -> None:
    """Runs a `hydra.main` command with the words of the command line.

    A command that cannot be run ends here with exit code 2 and one sentence, before Hydra has written anything. Any other
    exception is a fault of ours and keeps its traceback.
    """
    register()
    args = get_args_parser().parse_args()
    words = list(args.overrides)
    if args.config_dir is not None:  # a folder of one's own experiments, searched after ours
        words.append(f"hydra.searchpath=[file://{os.path.abspath(args.config_dir)}]")
    config_name = args.config_name or "config"
    if args.help:
        print(help_text(main.__doc__ or "", check([])))
        return
    elsewhere = args.config_path is not None or args.experimental_rerun is not None
    if not (args.hydra_help or args.shell_completion or args.info is not None or elsewhere):
        many = args.multirun or "hydra.mode=MULTIRUN" in words
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful value warns once, when the run itself reads its config
            try:
                _ = check_sweep(words, config_name=config_name) if many else check(words, config_name=config_name)
            except ConfigError as error:
                stop(error)
    try:
        main()
    except ConfigError as error:
        stop(error)


def stop(error: ConfigError) -> NoReturn:
    """Says what is wrong, in one line, and ends with the exit code of a command that was not understood."""
    print(f"esper: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)
