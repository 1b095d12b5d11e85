"""Kinds of hosts on a page, in words."""

import re

from esper.lab.kinds import PASSES, STAYS


def kind_words(kind: str, part: str) -> str:
    """Return a sentence that explains kinds, by the example of one."""
    events = " Events that pass are undone some epochs later; one that stays is not." if kind.endswith((STAYS, PASSES)) else ""
    letters = re.match(r"[ox]+(?=,| |$)", kind)
    if not letters:
        return f"A kind names what sets these hosts apart; the controller is not told.{events}"
    return (
        f"A kind such as {letters[0]} has one letter per {part}, in forward order: o for an intact {part}, x for one with a "
        f"built-in defect, which a seed in the right slot makes up for. The controller is not told the kind.{events}"
    )
