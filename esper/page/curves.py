"""Curves of metrics over the updates, as SVG."""

# U updates

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esper.telemetry.healthy import HEALTHY
from esper.telemetry.tags import in_terms_of, metric

WIDTH, HEIGHT = 250, 110
LEFT, RIGHT, TOP, BOTTOM = 54, 8, 9, 20

HEALTH = "Learning health"
IMITATES = "policy/imitation_loss"
"""Metric of the updates in which the policy imitates its teacher."""
SHOWN = {
    "Result": ("policy/return", "host/committed_accuracy", "host/parameters_grown", "search/best_return", "bandit/explained"),
    "Growth": ("host/seeds_germinated", "host/seeds_fossilized", "host/seeds_pruned", "action/wait"),
    HEALTH: (
        "policy/explained_variance",
        "policy/entropy",
        "policy/kl",
        "policy/clip_fraction",
        IMITATES,
        "audit/goodhart",
        "audit/ransomware",
    ),
    "Speed": ("time/host_epochs_per_second",),
}
"""Metrics of each group of curves; those that a run did not measure are left out."""
CAPTIONS = {
    "policy/explained_variance": "How well the critic predicts the returns: 1 is perfect, 0 no better than a constant.",
    "audit/goodhart": "Rank correlation over hosts between return and committed accuracy: whether rewards reflect the goal.",
    "audit/ransomware": (
        "Share of the measured contributions that come from seeds on which a host depends although it has lost accuracy since "
        "they were planted."
    ),
}
"""Captions of metrics whose meaning in the table refers to other rows of the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A curve with its captions."""

    tag: str
    name: str
    meaning: str
    healthy: str
    """Its values in a healthy run; empty if they are not shown."""
    first: str
    last: str
    svg: str
    """The curve between its axes, which have the first and last update and the lowest and highest value."""


def curves(records: Sequence[Mapping[str, float]], tags: Sequence[str], score: str, *, healthy: bool = False) -> list[Chart]:
    """Return the curves of those metrics that have at least one finite value.

    Args:
        records: metrics by tag, each with its `update`.
        tags: metrics in the order of the page.
        score: name of the hosts' score.
        healthy: if true, say what the metrics are in a healthy run.
    """
    return [one for tag in tags if (one := _curve(records, tag, score, healthy))]


def taught(records: Sequence[Mapping[str, float]]) -> int:
    """Return the last update in which the policy imitated its teacher; 0 without one."""
    return max((int(record["update"]) for record in records if math.isfinite(record.get(IMITATES, math.nan))), default=0)


def reward_tags(records: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the tags of the reward terms that ever differ from 0, by their mean magnitude over the updates, largest first."""
    size: dict[str, float] = {}
    for record in records:
        for tag, value in record.items():
            if tag.startswith("reward/") and math.isfinite(value):
                size[tag] = size.get(tag, 0.0) + abs(value)
    return [tag for tag in sorted(size, key=lambda tag: -size[tag]) if size[tag] > 0]


def _curve(records: Sequence[Mapping[str, float]], tag: str, score: str, healthy: bool) -> Chart | None:
    points = [(record["update"], record[tag]) for record in records if tag in record and math.isfinite(record[tag])]
    if not points:
        return None
    svg = _svg(points, taught(records))
    row = metric(tag)
    unit = "" if row.unit in ("1", "count") else f" [{'points' if row.unit == 'reward' else row.unit}]"
    name = in_terms_of(score, tag.partition("/")[2].replace("_", " "))
    return Chart(
        tag=tag,
        name=name + unit,
        meaning=in_terms_of(score, CAPTIONS.get(tag, row.meaning)),
        healthy=HEALTHY[row.tag].replace("`", "") if healthy else "",
        first=short(points[0][1]),
        last=short(points[-1][1]),
        svg=svg,
    )


def _svg(points: Sequence[tuple[float, float]], shaded: int) -> str:
    """Return a curve of updates and values as SVG, with the background of the updates up to `shaded` in grey."""
    updates, values = zip(*points, strict=True)
    (low, high), (begin, end) = (min(values), max(values)), (updates[0], updates[-1])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(update: float) -> float:
        return LEFT + (right - LEFT) * ((update - begin) / (end - begin) if end > begin else 0.5)

    def y(value: float) -> float:
        return TOP + (bottom - TOP) * (1 - (value - low) / (high - low) if high > low else 0.5)

    parts = [f'<path class="axes" d="M{LEFT},{TOP}V{bottom}H{right}"/>']
    if begin <= shaded and begin < end:
        edge = min(x(shaded + 0.5), right)  # between the last update of imitation and the first one without
        parts.insert(0, f'<rect class="taught" x="{LEFT}" y="{TOP}" width="{edge - LEFT:.1f}" height="{bottom - TOP}"/>')
    if low < 0 < high:
        parts.append(f'<path class="axes zero" d="M{LEFT},{y(0):.1f}H{right}"/>')
    for value in dict.fromkeys((high, low)):
        parts.append(f'<text class="faint" x="{LEFT - 4}" y="{y(value) + 3.5:.1f}" text-anchor="end">{short(value)}</text>')
    for update, anchor in {begin: "start", end: "end"}.items() if end > begin else [(begin, "middle")]:
        parts.append(f'<text class="faint" x="{x(update):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{update:,.0f}</text>')
    parts.append(f'<polyline points="{" ".join(f"{x(update):.1f},{y(value):.1f}" for update, value in points)}"/>')
    parts.append(f'<circle cx="{x(end):.1f}" cy="{y(values[-1]):.1f}" r="3"/>')
    title = f"from {short(values[0])} to {short(values[-1])}, between {short(low)} and {short(high)}"
    return f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def short(value: float) -> str:
    """Return a number with three digits, or two of a tiny one."""
    if 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
