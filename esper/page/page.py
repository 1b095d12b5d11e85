"""Renders the page of a run and writes it."""

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jinja2

from esper.cli.command import USER_ERRORS
from esper.config import Config, ConfigError
from esper.files import write_whole
from esper.memory import memory_shortage
from esper.notices import UserNotice, notice
from esper.page.contents import Contents, gather
from esper.page.held_out import trace_held_out, untraced
from esper.page.packing import embedded
from esper.page.status import saved_config
from esper.telemetry.jsonl import read_records
from esper.telemetry.pictures import COLOURS
from esper.telemetry.seed_table import HEAD, LEGEND, TITLE
from esper.text import duration
from esper.training.config_io import from_plain
from esper.training.resume import load_newest, newest_of
from esper.training.run_folder import CHECKPOINTS, PAGE, writing_reports

HOSTS = 24
"""Held-out hosts that the page of a run shows if its config asks for no page."""
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def shown_hosts(config: Config) -> int:
    """Return how many held-out hosts the page of a run shows by default."""
    places = config.cluster.num_workers * len(config.devices)  # each has at least one host
    return min(max(config.telemetry.page_hosts or HOSTS, places), max(2, config.hosts))


def write_page(
    folder: Path, *, hosts: int | None = None, paths: Sequence[str] = (), log: Callable[[str], None] = print
) -> Contents:
    """Grow held-out hosts with the newest policy of a run, unless that was done before, and write `run.html`; return what
    it shows.

    Args:
        folder: folder of the run, which may still be training.
        hosts: held-out hosts; 0 for none, None for those of the page at the end of the run.
        paths: where the data of the run is now, as overrides such as task.file=FILE, if it has moved.
        log: receives lines about the progress.

    Raises:
        ConfigError: the folder holds no run, or its checkpoint does not fit this version.
        FileError: a file of the run is damaged.
        DiskError: the page cannot be written.
    """
    if newest_of(folder) is None:
        if (folder / "multirun.yaml").exists():
            runs = ", ".join(str(path.parent) for path in sorted(folder.glob(f"**/{CHECKPOINTS}"))[:3])
            named = f", such as {runs}," if runs else " once it has a checkpoint,"
            raise ConfigError(f"{folder} holds several runs: name one{named} or use esper.compare")
        raise ConfigError(f"{folder} holds no run: name the folder that esper.train printed")
    hosts = shown_hosts(saved_config(folder)) if hosts is None else hosts
    with writing_reports(folder):
        if hosts:
            trace_held_out(folder, hosts, log, paths)
        contents = gather(folder, hosts or None)
        page = _TEMPLATES.get_template("run.html").render(
            c=contents,
            seed_title=TITLE,
            seed_head=HEAD,
            seed_legend=LEGEND,
            style=_stage_colours() + _source("run.css"),
            script=_source("run.js"),
            traces=embedded(contents.traces),
        )
        write_whole(folder / PAGE, page)
    return contents


def page_at_the_end(folder: Path, *, lead: str = "", paths: Sequence[str] = ()) -> None:
    """Write the page of a run that has just ended, and print its place; a page that cannot be written is a warning, since the run
    itself is complete. So is a held-out host that cannot be trained, or a lack of memory.

    Args:
        folder: folder of the run.
        lead: begins each line, to tell runs apart that share a terminal.
        paths: as in `write_page`.
    """
    try:
        state = load_newest(folder)
        if state is not None and (line := _announcement(folder, state)):
            print(f"{lead}{line}", flush=True)
        write_page(folder, paths=paths, log=notice)
        notice()
        print(f"{lead}page: {folder / PAGE}", flush=True)
    except Exception as error:
        why = str(error) if isinstance(error, USER_ERRORS) else memory_shortage(error)
        if why is None:
            raise
        notice()
        again = f"python -m esper.report {shlex.quote(str(folder))} tries again"
        warnings.warn(f"{PAGE} was not written: {why}; {again}", UserNotice, stacklevel=2)


def _announcement(folder: Path, state: Mapping[str, Any]) -> str:
    """Return the line that says what the page of a run with this state will take; empty if its hosts were grown before."""
    config, times = from_plain(state["config"]), folder / "times.jsonl"
    hosts = shown_hosts(config)
    growths = len(untraced(folder, config, state["update"], hosts))
    if not growths:
        return ""
    speeds = [record["time/host_epochs_per_second"] for record in read_records(times)] if times.exists() else []
    left = f", about {duration(growths * hosts * config.steps / median(speeds))}" if speeds else ""
    often = {1: "once", 2: "twice"}.get(growths) or f"{growths} times"
    return f"growing {hosts} held-out hosts {often} for its page{left}"


def _stage_colours() -> str:
    """Return the colours of the stages as CSS; that of empty slots depends on the reader's theme."""
    return f":root {{ {'; '.join(f'--{stage}: {colour}' for stage, colour in COLOURS.items() if stage != 'dormant')} }}\n"


def _source(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
