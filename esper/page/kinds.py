"""Kinds of hosts on a page: with events in their data nearly every host has a kind of its own, so they are grouped."""

import re

STAYS, PASSES = "an event stays", "all events pass"


def condensed(kind: str) -> str:
    """Return a kind without its single events: "ooo invert@2-6 relabel@9" becomes "ooo, an event stays".

    An event with an end, as in invert@2-6, passes (see `esper.task.events.Event`).
    """
    events = re.findall(r"@\S+", kind)
    if not events:
        return kind
    rest = " ".join(word for word in kind.split() if "@" not in word)
    return ", ".join(filter(None, [rest, PASSES if all("-" in event for event in events) else STAYS]))


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
