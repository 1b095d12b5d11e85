"""Compares the arms of an experiment by what they reached, whatever they were paid: python -m esper.compare FOLDER...

FOLDER is that of an experiment (sweep=ab), or one with runs in it; then runs that differ in something other than their seed are
arms, and runs with one seed are a block. Every policy grows fresh hosts, once, and what they reach is kept beside it. Shows the
verdicts, and writes report.html, comparison.json, comparison.csv and differences.csv into the first folder.

Words of esper.train besides move all policies to another world, as task=mnist5k does; the files then have it in their names.
"""

import sys
from pathlib import Path

from rich.console import Console

from esper.cli.command import in_one_sentence, load_parts, warn_plainly
from esper.cli.keyvalue import page, read_overrides
from esper.cli.transfer import WORLD, is_of_world
from esper.config import ConfigError
from esper.lab.runs import OUTCOMES, CompareConfig

WIDTH = 160
"""Columns of the tables where no terminal says how many there are."""


def parse(words: list[str]) -> tuple[list[Path], CompareConfig, list[str]]:
    """Folders, config, and what moves policies to another world, from words; one with = that names no folder is a key.

    Raises:
        ConfigError: they do not say what to compare.
    """
    folders = [Path(word) for word in words if "=" not in word or Path(word).is_dir()]
    settings = [word for word in words if "=" in word and not Path(word).is_dir()]
    world = [word for word in settings if is_of_world(word)]
    if seed := next((word for word in world if word.startswith("seed=")), None):
        raise ConfigError(f"{seed} would have all runs judged on the same hosts: leave it out, each has fresh ones of its own")
    config = read_overrides(
        CompareConfig, [word for word in settings if word not in world], also=[key for key in WORLD if key != "seed"]
    )
    if not folders:
        raise ConfigError("there is no folder to look into: python -m esper.compare multirun/ab/...")
    return folders, config, world


def help_text() -> str:
    """The page of --help."""
    outcomes = [f"{outcome.name} [{outcome.unit}]: {outcome.what}; margin {outcome.margin:g}" for outcome in OUTCOMES.values()]
    return "\n".join([page(__doc__, CompareConfig()), "", "outcomes:", *(f"  {line}" for line in outcomes)])


def main(words: list[str]) -> None:
    """Compares, shows, and writes."""
    if any(word in ("-h", "--help") for word in words):
        print(help_text())
        return
    warn_plainly()
    with in_one_sentence():
        folders, config, world = parse(load_parts(words))
        try:
            from esper.lab.comparison import study
            from esper.lab.results import show, write  # late: --help and mistakes should not wait for it
        except ImportError as error:
            remedy = "install the extra compare, as in pip install -e '.[compare]'"
            raise ConfigError(f"comparisons need {error.name}, which is not here: {remedy}") from error
        found = study(folders, config, world=world, tell=lambda line: print(line, flush=True))
        show(found, Console() if sys.stdout.isatty() else Console(width=WIDTH))
        print("written:", *write(found, folders[0], " ".join(["python -m esper.compare", *words])), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
