"""Roots of experiments: two experiments with one root draw the same blocks, and the second is no new evidence."""

from pathlib import Path

from esper.config import ConfigError, root_key
from esper.files import fingerprint
from esper.lab.design import FILE, Design


def new_root(*facts: object) -> int:
    """Return a root in [0, 2^31) for the experiment that follows on another one, or on a tuning, with these facts.

    The same facts give the same root, so that a repeated comparison proposes the same experiment; other facts give another one,
    but for chance.
    """
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
    pilot = Design.find(Path(design.plan.pilot))
    if pilot and pilot.root == design.root:
        raise ConfigError(
            f"pilot={design.plan.pilot} has root={design.root}, too, so its blocks would be repeated and counted twice: set a "
            f"new root, as in root={new_root(design.digest)}"
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
