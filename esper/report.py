"""Write the page of a run, run.html: python -m esper.report FOLDER

The page shows what the controller did, host by host, and what it was worth on held-out hosts. It needs no server. FOLDER is
that of a run of esper.train, which may still be training, or have been killed, or of a saved policy, as in zoo/. If the data of
the run has moved, append its new path, as in task.file=FILE.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from esper.cli.command import in_one_sentence, load_parts, warn_plainly
from esper.cli.keyvalue import help_of, read_overrides, show_help, split_folders
from esper.config import ConfigError
from esper.training.config_io import PLACES, is_path


@dataclass(kw_only=True, slots=True)
class ReportConfig:
    """Settings of a run page."""

    hosts: int | None = None
    """Held-out hosts for the page, at least 2, each trained with the newest policy and once without growth; 0: none; null:
    telemetry.page_hosts of the run, or 24 if that is 0, but no more than the hosts of the run. Higher: narrower intervals, a
    larger page."""

    def __post_init__(self) -> None:
        if self.hosts is not None and (self.hosts < 0 or self.hosts == 1):
            raise ValueError(f"hosts must be at least 2, or 0 for none, got {self.hosts}")


def parse(arguments: list[str]) -> tuple[list[Path], ReportConfig, list[str]]:
    """Return the folders, the config, and new paths of data as overrides.

    Raises:
        ConfigError: the arguments do not describe a page.
    """
    folders, keys = split_folders(arguments)
    paths = [key for key in keys if is_path(key)]
    config = read_overrides(ReportConfig, [key for key in keys if key not in paths], also=PLACES)
    if not folders:
        raise ConfigError("no folder is given: name one, as in python -m esper.report multirun/single/...")
    return folders, config, paths


def main(arguments: list[str]) -> None:
    """Write the page of each folder, and print how far its run is, which policy the page evaluates, and its place."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show_help(help_of(__doc__, ReportConfig()))
        return
    warn_plainly()
    with in_one_sentence():
        folders, config, paths = parse(load_parts(arguments))
        from esper.page.page import write_page  # late, to keep --help and error messages fast
        from esper.page.status import saved_config
        from esper.task.data import TaskError
        from esper.training.run_folder import PAGE

        for folder in folders:
            try:
                written = write_page(folder, hosts=config.hosts, paths=paths, log=lambda line: print(line, flush=True))
            except (TaskError, ConfigError) as error:
                if not isinstance(error.__cause__ or error, TaskError):
                    raise
                needed = "held-out hosts could not be grown, which needs the data of the run"
                raise ConfigError(f"{needed}: {error}; hosts=0 writes a page without them") from error
            print(written.status.line, f"page: {folder / PAGE}", sep="\n")
            saved_config(folder).telemetry.attach(folder, [folder / PAGE])


if __name__ == "__main__":
    main(sys.argv[1:])
