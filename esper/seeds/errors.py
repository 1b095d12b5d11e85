"""Errors in somebody's blueprint."""

# L live members

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from torch import Tensor

from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.base import BlueprintConfig


class SeedError(RuntimeError):
    """A blueprint's branch raised an error while it was computed, which stops the run.

    It is no host's ill health and nobody is rolled back: all seeds of a bank are one call, so that no host of them is to blame,
    other hosts of the program are left in the middle of a batch, and what is wrong in the branch would be wrong the next time.
    """

    def __init__(self, blueprint: str, slot: str, hosts: Sequence[int] | None, error: Exception) -> None:
        self.blueprint, self.slot, self.hosts, self.error = blueprint, slot, hosts, error
        whose = "all hosts" if hosts is None else f"hosts {', '.join(map(str, hosts))}"
        super().__init__(f"blueprint {blueprint} failed in slot {slot} of {whose} with {type(error).__name__}: {error}")

    def among(self, first: int) -> "SeedError":
        """The same where the first member is this host."""
        hosts = None if self.hosts is None else [first + host for host in self.hosts]
        return SeedError(self.blueprint, self.slot, hosts, self.error)


@contextmanager
def seed_errors(blueprint: BlueprintConfig, slot: SlotSpec, live_L: Tensor | None = None) -> Generator[None]:
    """Turns any error within into a `SeedError` that says whose it is; `live_L` are the members computed, None for all."""
    try:
        yield
    except Exception as error:
        hosts = None if live_L is None else live_L.tolist()
        raise SeedError(type(blueprint).__name__, slot.name, hosts, error) from error
