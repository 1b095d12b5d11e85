"""Draw the pictures of theory.md, as SVG in greys and one colour that read on light and on dark pages.

python docs/theory_figures.py            rewrite the SVG files; a test compares them with what this file draws
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


def label(x: int, y: int, text: str, colour: str = INK, anchor: str = "middle") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{text}</text>\n'


def line(path: str, colour: str = INK) -> str:
    """Return a line along a path."""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>\n'


def life() -> str:
    """Return the picture of the stages of a seed, with its alpha below."""
    names = ("germinated", "training", "blending", "holding", "fossilized")
    return "".join(
        (
            HEAD.format(w=700, h=260, title="The life of a seed: its stages, and alpha over time"),
            *(box(10 + 140 * i, 20, 110, 44, [name], ACCENT if name == "fossilized" else INK) for i, name in enumerate(names)),
            *(arrow(f"M{120 + 140 * i} 42H{146 + 140 * i}") for i in range(4)),
            box(290, 96, 110, 40, ["pruned"]),
            *(arrow(f"M{x} 64V80H{x + dx}V92") for x, dx in ((65, 240), (205, 120), (345, 0), (485, -120))),
            label(20, 175, "alpha", anchor="start"),
            line("M10 240H690"),
            line("M65 236H290L400 186H690", ACCENT),
            label(100, 256, "no effect on the host", anchor="start"),
            label(345, 256, "ramp"),
            label(560, 256, "part of the network"),
            "</svg>\n",
        )
    )


def contribution() -> str:
    """Return the picture of counterfactuals of two seeds."""
    bars = (("both seeds", 78, ACCENT), ("without seed 1", 70, INK), ("without seed 2", 64, INK), ("without both", 61, INK))
    rows = [
        label(150, 45 + 40 * i, text, colour, "end")
        + f'<rect x="165" y="{28 + 40 * i}" width="{2 * accuracy}" height="24" fill="{colour}"/>\n'
        + label(175 + 2 * accuracy, 45 + 40 * i, f"{accuracy} %", colour, "start")
        for i, (text, accuracy, colour) in enumerate(bars)
    ]
    return "".join(
        (
            HEAD.format(w=640, h=200, title="Contributions are differences of validation accuracies"),
            *rows,
            label(400, 85, "c1 = 78 - 70 = 8 pp", ACCENT, "start"),
            label(400, 125, "c2 = 78 - 64 = 14 pp", ACCENT, "start"),
            label(400, 165, "8 + 14 > 17: each needs the other", INK, "start"),
            "</svg>\n",
        )
    )


def potential() -> str:
    """Return the picture of growth potential: the gradient that the next layer cannot follow."""
    return "".join(
        (
            HEAD.format(w=640, h=210, title="Growth potential: the part of the gradient that the host cannot follow"),
            arrow("M80 170H430", "fit(h): what the next layer can learn from h", (240, 195)),
            arrow("M80 170L426 44", "", (0, 0)),
            label(220, 90, "gradient g"),
            f'<path d="M430 168V50" fill="none" stroke="{ACCENT}" stroke-width="3"/>\n',
            label(445, 105, "g - fit(h):", ACCENT, "start"),
            label(445, 125, "what a seed can add", ACCENT, "start"),
            line("M418 170V158H430"),
            "</svg>\n",
        )
    )


def twins() -> str:
    """Return the picture of twins: equal hosts, different actions."""
    return "".join(
        (
            HEAD.format(w=640, h=210, title="Twins: equal hosts under different actions"),
            box(20, 80, 170, 56, ["kind, weights,", "data order"]),
            box(270, 20, 150, 44, ["host i"], ACCENT),
            box(270, 84, 150, 44, ["twin j"]),
            box(270, 148, 150, 44, ["twin k"]),
            *(arrow(f"M190 108L266 {y}") for y in (44, 106, 168)),
            label(440, 47, "return 74", ACCENT, "start"),
            label(440, 111, "return 66", INK, "start"),
            label(440, 175, "return 70", INK, "start"),
            label(540, 47, "74 - 68 = +6", ACCENT, "start"),
            label(540, 143, "mean 68", INK, "start"),
            "</svg>\n",
        )
    )


FIGURES = {
    "loops.svg": loops,
    "life.svg": life,
    "blend.svg": blend,
    "contribution.svg": contribution,
    "potential.svg": potential,
    "twins.svg": twins,
}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (Path(__file__).parent / name).write_text(draw())
