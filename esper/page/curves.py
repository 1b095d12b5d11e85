"""Curves of metrics over the updates, as SVG."""

# U updates

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esper.telemetry.healthy import HEALTHY
from esper.telemetry.tags import in_terms_of, metric

WIDTH, HEIGHT = 250, 96
LEFT, RIGHT, TOP, BOTTOM = 6, 6, 8, 8

HEALTH = "Learning health"
SHOWN = {
    "Result": ("policy/return", "host/committed_accuracy", "host/parameters_grown", "search/best_return", "bandit/explained"),
    "Growth": ("host/seeds_germinated", "host/seeds_fossilized", "host/seeds_pruned", "action/wait"),
    HEALTH: (
        "policy/explained_variance",
        "policy/entropy",
        "policy/kl",
        "policy/clip_fraction",
        "audit/goodhart",
        "audit/ransomware",
    ),
    "Speed": ("time/host_epochs_per_second",),
}
"""Metrics of each group of curves; those that a run did not measure are left out."""
CAPTIONS = {
    "policy/explained_variance": "How well the critic predicts the returns: 1 is perfect, 0 no better than a constant.",
    "audit/goodhart": "Rank correlation over hosts between return and committed accuracy: whether what is paid is what is meant.",
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
    low: str
    high: str
    svg: str


def curves(records: Sequence[Mapping[str, float]], tags: Sequence[str], score: str, *, healthy: bool = False) -> list[Chart]:
    """Return the curves of those metrics that have at least one finite value.

    Args:
        records: metrics by tag, each with its `update`.
        tags: metrics in the order of the page.
        score: name of the hosts' score.
        healthy: if true, say what the metrics are in a healthy run.
    """
    return [one for tag in tags if (one := _curve(records, tag, score, healthy))]


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
    updates, values = zip(*points, strict=True)
    low, high = min(values), max(values)
    (begin, end), span = (updates[0], updates[-1]), (high - low) or 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    places = [
        (
            LEFT + (width * (update - begin) / (end - begin) if end > begin else width / 2),
            TOP + height * (1 - (value - low) / span if high > low else 0.5),
        )
        for update, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    mark = f'<circle cx="{places[-1][0]:.1f}" cy="{places[-1][1]:.1f}" r="3"/>'
    title = f"from {short(values[0])} to {short(values[-1])}, between {short(low)} and {short(high)}"
    head = f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
    svg = f'{head}<polyline points="{line}"/>{mark}</svg>'
    row = metric(tag)
    unit = "" if row.unit in ("1", "count") else f" [{'points' if row.unit == 'reward' else row.unit}]"
    name = in_terms_of(score, tag.partition("/")[2].replace("_", " "))
    return Chart(
        tag=tag,
        name=name + unit,
        meaning=in_terms_of(score, CAPTIONS.get(tag, row.meaning)),
        healthy=HEALTHY.get(tag, "").replace("`", "") if healthy else "",
        first=short(values[0]),
        last=short(values[-1]),
        low=short(low),
        high=short(high),
        svg=svg,
    )


def short(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
