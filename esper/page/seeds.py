"""The seeds of a trace, for the table of a page."""

# N hosts, S slots

from typing import Any

import numpy as np
import numpy.typing as npt

from esper.lifecycle.stages import EMPTY, OCCUPIED, Stage
from esper.measure.seed_log import SeedLog, SlotsAfter, grouped
from esper.task.kinds import condensed
from esper.telemetry.seed_table import rows_of
from esper.telemetry.traces import Table, slots_of, steps_of

EMPTY_STAGES = tuple(str(stage) for stage in Stage if stage not in OCCUPIED)


def log_of(table: Table, blueprints: list[str]) -> SeedLog:
    """Return the log of the seeds of a trace, with blueprints by their rank in this list."""
    slots, steps = slots_of(table), steps_of(table)
    hosts, log = len(table["epoch"]) // steps, SeedLog()
    rank: dict[Any, int] = {name: index for index, name in enumerate(blueprints)}

    def column(name: str, epoch: int) -> list[Any]:
        return table[name][epoch - 1 :: steps]

    def numbers(name: str, epoch: int) -> npt.NDArray[np.float32]:
        values = [[np.nan if value is None else value for value in column(f"{slot}.{name}", epoch)] for slot in slots]
        return np.array(values, np.float32).reshape(len(slots), hosts).T

    for epoch in range(1, steps + 1):
        stage_NS = np.array([column(f"{slot}.stage", epoch) for slot in slots], dtype=object).T
        seed_NS = np.array([[rank.get(name, EMPTY) for name in column(f"{slot}.blueprint", epoch)] for slot in slots]).T
        found = SlotsAfter(
            blueprint_NS=np.where(np.isin(stage_NS.astype(str), EMPTY_STAGES), EMPTY, seed_NS),
            kept_NS=stage_NS == "fossilized",
            contribution_NS=numbers("contribution", epoch),
            contribution_error_NS=numbers("contribution_error", epoch),
            rolled_back_N=np.array([cause is not None for cause in column("rolled_back", epoch)]),
        )
        log.add(epoch, found)
    if f"{slots[0]}.kept" in table:
        log.end(np.array([[rank.get(name, EMPTY) for name in column(f"{slot}.kept", steps)] for slot in slots]).T)
    else:  # a trace of an earlier version does not know what the rollbacks of the last epoch took
        log.end()
    return log


def seed_rows(table: Table, twins: int = 1) -> list[list[str]]:
    """Return the rows of the table of seeds, see `seed_table.HEAD`; none where no hosts train.

    Args:
        table: a trace.
        twins: number of consecutive hosts that are twins.
    """
    slots, steps = slots_of(table), steps_of(table)
    if not slots:
        return []
    prefix = f"{slots[0]}.potential_"
    known = [name.removeprefix(prefix) for name in table if name.startswith(prefix)]
    planted = {name for slot in slots for name in table[f"{slot}.blueprint"] if name is not None}
    blueprints = [*known, *sorted(planted - {*known})]
    kinds = [condensed(str(kind)) for kind in table["kind"][::steps]]
    origins = [host // twins for host in range(len(kinds))]
    return rows_of(grouped(log_of(table, blueprints).seeds, blueprints, slots, kinds, origins))
