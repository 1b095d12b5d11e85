"""Errors in the code of a blueprint."""

from collections.abc import Generator
from contextlib import contextmanager

from esper.hosts.base import SlotSpec
from esper.memory import memory_shortage
from esper.seeds.blueprints.base import BlueprintConfig


class SeedError(RuntimeError):
    """An error in a blueprint's branch, which stops the run.

    No host is rolled back for it: all seeds of a bank run in one call, so the error belongs to no single host, other hosts of the
    program are left in the middle of a batch, and the error would recur.
    """


@contextmanager
def seed_errors(blueprint: BlueprintConfig, slot: SlotSpec) -> Generator[None]:
    """Turn any error except lack of memory into a `SeedError` that names blueprint and slot."""
    try:
        yield
    except Exception as error:
        if memory_shortage(error):
            raise
        name, kind = type(blueprint).__name__, type(error).__name__
        raise SeedError(f"blueprint {name} failed in slot {slot.name} with {kind}: {error}") from error
