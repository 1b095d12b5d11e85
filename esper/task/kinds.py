"""Kinds of hosts: with events in their data nearly every host has a kind of its own, so they are grouped."""

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
