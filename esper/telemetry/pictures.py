"""Pictures of a trace for TensorBoard: the life of every slot, and the networks that were kept."""

# N hosts, S slots, T host epochs

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from esper.telemetry.traces import Table, carried_out, kept_in, slots_of, steps_of

COLOURS = {
    "dormant": "#eef0f3",
    "germinated": "#f0e442",
    "training": "#e69f00",
    "blending": "#56b4e9",
    "holding": "#b07aa1",
    "fossilized": "#009e73",
    "pruned": "#7a1f12",
    "embargoed": "#b9bec7",
}
"""Colour of each stage, distinct for colour-blind readers."""
LANE, CELL, GAP, LEFT, TOP = 12, 12, 6, 74, 34
WIDTH = 300
"""Width of the legend [pixels]."""
MOST_HOSTS = 32
"""Most hosts in a picture."""


def timeline(table: Table) -> npt.NDArray[np.uint8]:
    """Return the stages of every slot over the host epochs, a lane per slot and host, as an image `[height, width, 3]`.

    Epochs whose stage is empty are yet to come, and are outlined.
    """
    slots, steps = slots_of(table), steps_of(table)
    hosts = min(len(table["epoch"]) // steps, MOST_HOSTS)
    tall, left = len(slots) * LANE + GAP, LEFT + math.ceil(max(map(ImageFont.load_default().getlength, slots)))
    picture = Image.new("RGB", (max(left + steps * CELL, WIDTH) + GAP, TOP + hosts * tall), "white")
    draw = ImageDraw.Draw(picture)
    _legend(draw)
    for host in range(hosts):
        draw.text((4, TOP + host * tall), f"host {host}", fill="black")
        for rank, slot in enumerate(slots):
            y = TOP + host * tall + rank * LANE
            draw.text((left - GAP, y + LANE // 2 - 1), slot, fill="#5b6470", anchor="rm")
            for step in range(steps):
                row, x = host * steps + step, left + step * CELL
                stage, alpha = table[f"{slot}.stage"][row], table[f"{slot}.alpha"][row]
                draw.rectangle(
                    (x, y, x + CELL - 2, y + LANE - 2), fill=COLOURS["dormant"] if stage else None, outline=COLOURS["dormant"]
                )
                if not stage:
                    continue
                high = LANE - 2 if stage != "blending" or alpha is None else max(1, round((LANE - 2) * alpha))
                draw.rectangle((x, y + LANE - 2 - high, x + CELL - 2, y + LANE - 2), fill=COLOURS[stage])
    return np.asarray(picture)


def topology(table: Table) -> npt.NDArray[np.uint8]:
    """Return the blueprints that each host kept, one row per host and one column per slot, as an image `[height, width, 3]`."""
    slots, steps = slots_of(table), steps_of(table)
    hosts, wide = min(len(table["epoch"]) // steps, MOST_HOSTS), 92
    picture = Image.new("RGB", (LEFT + len(slots) * wide + GAP, TOP + hosts * 15), "white")
    draw = ImageDraw.Draw(picture)
    for rank, slot in enumerate(slots):
        draw.text((LEFT + rank * wide, 16), slot, fill="black")
    for host in range(hosts):
        row, y = host * steps + steps - 1, TOP + host * 15
        draw.text((4, y), f"host {host}", fill="black")
        for rank, slot in enumerate(slots):
            kept = kept_in(table, slot, row)
            box = (LEFT + rank * wide, y, LEFT + (rank + 1) * wide - 4, y + 13)
            draw.rectangle(box, fill=COLOURS["fossilized" if kept else "dormant"])
            if kept:
                draw.text((box[0] + 3, y), kept[:14], fill="white")
    return np.asarray(picture)


def _legend(draw: ImageDraw.ImageDraw) -> None:
    for rank, (stage, colour) in enumerate(COLOURS.items()):
        x, y = 4 + (rank % 4) * 76, 3 + 14 * (rank // 4)
        draw.rectangle((x, y + 1, x + 9, y + 10), fill=colour)
        draw.text((x + 12, y), stage, fill="black")


def values_of(table: Table) -> dict[str, npt.NDArray[np.float64]]:
    """Return what histograms show, by tag: the epochs in which seeds were planted, the alphas of active seeds, and all measured
    contributions; without those that have no value."""
    slots = slots_of(table)

    def numbers(values: list[Any]) -> npt.NDArray[np.float64]:
        return np.array([value for value in values if value is not None and np.isfinite(value)], dtype=np.float64)

    found = {
        "growth/epoch_of_planting": numbers([table["epoch"][row] for row in carried_out(table, "germinate")]),
        "growth/alpha": numbers([alpha for slot in slots for alpha in table[f"{slot}.alpha"]]),
        "growth/contribution": numbers([one for slot in slots for one in table[f"{slot}.contribution"]]),
    }
    return {tag: values for tag, values in found.items() if len(values)}
