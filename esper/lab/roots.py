"""Roots of experiments: two experiments with one root draw the same blocks, and the second is no new evidence."""

from pathlib import Path

from esper.config import ConfigError, root_key
from esper.files import fingerprint
from esper.lab.design import FILE, Design


def new_root(*facts: object) -> int:
    """Return one of 2^31 roots for the experiment that follows on another one, or on a tuning, with these facts. No other facts
    lead to it (but for chance), and the same facts always do, so that a repeated comparison proposes the same experiment."""
    return int(fingerprint(facts)[:8], 16) >> 1


def repeated(design: Design, folder: Path) -> list[str]:
    """Return a warning if the blocks of an experiment are those of another one beside it.

    Args:
        design: the experiment.
        folder: its folder, which need not exist.
    """
    own = folder if folder.name else folder.absolute()
    others = (path.parent for path in sorted(own.parent.glob(f"*/{FILE}")) if path.parent.name != own.name)
    alike = [other for other in others if _shares_blocks(design, other)]
    if not alike:
        return []
    more = f" and {len(alike) - 1} more beside it" if len(alike) > 1 else ""
    return [
        f"root={design.root} and the task are also those of {alike[0]}{more}: this experiment repeats blocks, "
        f"which are no new evidence; set another root, as in root={new_root(design.digest)}"
    ]


def check_pilot(design: Design) -> None:
    """Raise ConfigError if the blocks of an experiment are those of its pilot."""
    if design.plan.pilot is None:
        return
    folder = Path(design.plan.pilot)
    if (folder / FILE).exists() and Design.load(folder).root == design.root:
        raise ConfigError(
            f"pilot={folder} has root={design.root}, too, so its blocks would be repeated and counted twice: set a new root, as "
            f"in root={new_root(design.digest)}"
        )


def _shares_blocks(design: Design, folder: Path) -> bool:
    """Return whether the experiment in a folder has the root and the task of another one."""
    try:
        other = Design.load(folder)
    except ConfigError:  # whoever uses that folder is told; here it only cannot be compared
        return False
    return (design.root, design.vary_split) == (other.root, other.vary_split) and bool(_hosts(design) & _hosts(other))


def _hosts(design: Design) -> set[frozenset[str]]:
    """Return the overrides of each arm that choose its hosts and divide their data."""
    arms = ([*design.common, *own] for own in design.arms.values())
    chosen = (frozenset(one for one in arm if root_key(one) in ("task", "experiment")) for arm in arms)
    return {overrides - {"task=digits"} for overrides in chosen}  # the default of conf/config.yaml
