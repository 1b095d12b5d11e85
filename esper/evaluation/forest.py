"""A figure of differences with their intervals as SVG: it needs no library, and follows the colour scheme of its page."""

# R rows

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from esper.text import decimals

ROW, TOP, CHAR, SIDE = 44, 4, 7.2, 16
"""Height of a row, height above the first, largest mean width of a character, and empty space at each side [pixels]."""
LEAST = 420
"""Least width, which a phone shows in readable size [pixels]."""
STYLE = """<style>
.forest { color-scheme: light dark; }
.forest { color: #222; --accent: #1a66b8; --faint: #999; --band: #8884; font: 13px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { .forest { color: #ddd; --accent: #6cb2ff; --faint: #888; } }
.forest text { fill: currentColor; } .forest .faint { fill: var(--faint); }
</style>"""
"""Colours of the figure; those of a dark page where the reader prefers one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One difference."""

    label: str
    mean: float
    low: float
    """Lower end of its interval; -inf if there is none."""
    high: float
    note: str = ""
    """Text at the end of the row, such as the verdict."""


def forest(rows: Sequence[Row], axis: str, margin: float | None = None, note: str = "") -> str:
    """Return the differences with their intervals, a line at 0 and, if there is one, a band between the margins.

    Args:
        rows: differences with finite means, at least one.
        axis: what the axis shows, with its unit.
        margin: smallest difference that matters, > 0.
        note: line below the axis.
    """
    texts = [f"{_numbers(row)}{f', {row.note}' if row.note else ''}" for row in rows]
    longest = max(len(row.label) + len(text) + 3 for row, text in zip(rows, texts, strict=True))
    width, bottom = max(LEAST, longest * CHAR + 2 * SIDE), TOP + ROW * len(rows)
    ends = [value for row in rows for value in (row.mean, row.low, row.high) if math.isfinite(value)]
    ends += [0.0] if margin is None else [-margin, margin]
    ticks = _ticks(min(ends), max(ends))

    def x(value: float) -> float:
        inside = min(max(value, ticks[0]), ticks[-1])
        return SIDE + (width - 2 * SIDE) * (inside - ticks[0]) / (ticks[-1] - ticks[0])

    parts = list[str]()
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        y = TOP + ROW * place
        parts += [_text(SIDE, y + 16, row.label), _text(width - SIDE, y + 16, text, anchor="end")]
        if margin is not None:
            band = f'x="{x(-margin):.1f}" y="{y + 22}" width="{x(margin) - x(-margin):.1f}" height="{ROW - 26}"'
            parts.append(f'<rect {band} fill="var(--band)"/>')
        parts.append(_line(x(0), y + 22, x(0), y + ROW - 4, "var(--faint)", dash=True))
        if math.isfinite(row.high - row.low):
            parts += [_line(x(row.low), y + 30, x(row.high), y + 30, "var(--accent)", 2.5)]
        parts += [f'<circle cx="{x(row.mean):.1f}" cy="{y + 30}" r="4.5" fill="var(--accent)"/>']
    parts.append(_line(SIDE, bottom, width - SIDE, bottom, "var(--faint)"))
    parts += [_text(x(tick), bottom + 17, f"{tick:g}", anchor="middle", faint=True) for tick in ticks]
    parts.append(_text(width / 2, bottom + 36, axis, anchor="middle"))
    notes = [*([note] if note else []), *([] if margin is None else [f"grey: within the margin of {margin:g}; dashed: 0"])]
    for line in notes:
        bottom += 18
        parts.append(_text(width / 2, bottom + 36, line, anchor="middle", faint=True))
    height = bottom + 46
    box = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}"'
    about = escape("; ".join(f"{row.label}: {text}" for row, text in zip(rows, texts, strict=True)))
    opening = f'<svg class="forest" xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{about}">'
    return "\n".join([opening, STYLE, *parts, "</svg>"])


def _numbers(row: Row) -> str:
    digits = decimals(row.mean, row.low, row.high)
    ends = f" ({row.low:,.{digits}f} to {row.high:,.{digits}f})" if math.isfinite(row.high - row.low) else ", no interval"
    return f"{row.mean:+,.{digits}f}{ends}"


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two values, or beyond them."""
    rough = (high - low) / 5 or 0.2
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(step * place, 10) for place in range(first, last + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", faint: bool = False) -> str:
    kind = ' class="faint"' if faint else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0, *, dash: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashes}/>'
