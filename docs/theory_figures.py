"""Draw the pictures of theory.md, as SVG in greys and one colour that read on light and on dark pages.

python docs/theory_figures.py            rewrite docs/loops.svg and docs/blend.svg; a test compares them with what this file draws
"""

from collections.abc import Sequence
from pathlib import Path

INK, ACCENT = "#808080", "#0f9d86"
"""Colours with a contrast of at least 3 to white and to the dark pages of the site."""
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" font-family="sans-serif" '
    'font-size="14" role="img" aria-label="{title}">\n'
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>\n'
)


def box(x: int, y: int, w: int, h: int, lines: Sequence[str], colour: str = INK) -> str:
    """Return a rounded box with centred lines of text."""
    top = y + h / 2 - 9 * (len(lines) - 1) + 5
    text = "".join(f'<text x="{x + w / 2:g}" y="{top + 18 * i:g}">{line}</text>' for i, line in enumerate(lines))
    rect = f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f'{rect}<g fill="{colour}" text-anchor="middle">{text}</g>\n'


def arrow(path: str, label: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """Return an arrow along a path, with a label."""
    text = f'<text x="{at[0]}" y="{at[1]}" fill="{INK}" text-anchor="middle">{label}</text>' if label else ""
    return f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="2" marker-end="url(#tip)"/>{text}\n'


def loops() -> str:
    """Return the picture of the two loops."""
    return "".join(
        (
            HEAD.format(w=640, h=250, title="The two loops of Esper"),
            box(20, 60, 170, 70, ["controller", "acts on each host"], ACCENT),
            box(430, 60, 190, 70, ["N hosts", "train for one epoch"]),
            arrow("M190 80H426", "operation, slot, blueprint", (308, 70)),
            arrow("M430 112H194", "observation, reward", (308, 134)),
            f'<text x="320" y="30" fill="{INK}" text-anchor="middle">inner loop: T host epochs</text>\n',
            box(220, 180, 180, 50, ["rollout, PPO update"], ACCENT),
            arrow("M525 130V205H404"),
            arrow("M220 205H105V134"),
            f'<text x="110" y="236" fill="{ACCENT}" text-anchor="middle">outer loop: U updates</text>\n',
            "</svg>\n",
        )
    )


def blend() -> str:
    """Return the picture of the residual-delta blend."""
    return "".join(
        (
            HEAD.format(w=640, h=170, title="The residual-delta blend of a seed"),
            box(20, 40, 120, 50, ["host before"]),
            box(500, 40, 120, 50, ["host after"]),
            arrow("M140 65H410", "h", (170, 57)),
            f'<circle cx="426" cy="65" r="14" fill="none" stroke="{INK}" stroke-width="2"/>'
            f'<text x="426" y="70" fill="{INK}" text-anchor="middle">+</text>\n',
            arrow("M440 65H496", "y", (466, 57)),
            box(220, 110, 120, 46, ["seed: delta(h)"], ACCENT),
            arrow("M180 65V133H216"),
            arrow("M340 133H426V83", "times alpha", (384, 152)),
            "</svg>\n",
        )
    )


FIGURES = {"loops.svg": loops, "blend.svg": blend}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (Path(__file__).parent / name).write_text(draw())
