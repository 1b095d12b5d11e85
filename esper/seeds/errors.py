"""Errors in the code of a blueprint."""

# L live members

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from torch import Tensor

from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import BlueprintConfig


class SeedError(RuntimeError):
    """An error in a blueprint's branch, which stops the run.

    No host is rolled back for it: all seeds of a bank are one call, so the error belongs to no single host, other hosts of the
    program are left in the middle of a batch, and the error would happen again.
    """

    def __init__(self, blueprint: str, slot: str, hosts: Sequence[int] | None, error: Exception) -> None:
        self.blueprint, self.slot, self.hosts, self.error = blueprint, slot, hosts, error
        whose = "all hosts" if hosts is None else f"hosts {', '.join(map(str, hosts))}"
        super().__init__(f"blueprint {blueprint} failed in slot {slot} of {whose} with {type(error).__name__}: {error}")

    def among(self, first: int) -> "SeedError":
        """Return the error with members numbered from this host."""
        hosts = None if self.hosts is None else [first + host for host in self.hosts]
        return SeedError(self.blueprint, self.slot, hosts, self.error)


@contextmanager
def seed_errors(blueprint: BlueprintConfig, slot: SlotSpec, live_L: Tensor | None = None) -> Generator[None]:
    """Turn any error into a `SeedError` with blueprint, slot and members; `live_L` are the members computed, None for all."""
    try:
        yield
    except Exception as error:
        hosts = None if live_L is None else live_L.tolist()
        raise SeedError(type(blueprint).__name__, slot.name, hosts, error) from error
