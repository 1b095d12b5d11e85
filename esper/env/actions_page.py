"""The page docs/actions.md: `python -m esper.env.actions_page > docs/actions.md` writes it anew."""

from typing import Any

from esper.env.actions import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    FREE,
    RELEVANT,
    STYLES,
    TEMPOS,
    VALUES,
    Head,
    HeadsConfig,
    Op,
)
from esper.lifecycle.ramps import STEEPNESS, Curve
from esper.lifecycle.roles import Blend
from esper.lifecycle.slots import SlotsConfig
from esper.measure.plans import member_docs

DOES = {
    Op.WAIT: "nothing; always legal",
    Op.GERMINATE: "plants a seed of this blueprint in an empty slot, and settles how it will be blended in",
    Op.SET_ALPHA_TARGET: "sends the alpha of a seed in blending or holding to another target; only where `alpha_target` is free",
    Op.PRUNE: "removes a seed that is not yet a fossil: at once, or after a ramp down to 0",
    Op.FOSSILIZE: "keeps a seed in holding for good",
    Op.ADVANCE: "moves a seed on to its next stage, where the gate to it is open",
}
MEANS = {
    Head.OP: "what is done",
    Head.SLOT: "where",
    Head.BLUEPRINT: "which kind of seed",
    Head.STYLE: "how the seed enters its host, for life, and the curve of its first ramp",
    Head.TEMPO: "length of the first ramp",
    Head.ALPHA_TARGET: "where alpha goes: on the first ramp, or from now on",
    Head.ALPHA_SPEED: "length of a later ramp, to another target or down to a removal",
    Head.ALPHA_CURVE: "shape of a later ramp",
}
RANGES = {
    Head.OP: "those below",
    Head.SLOT: "the host's slots, in forward order; legal are those that `slots` puts in use",
    Head.BLUEPRINT: "those that `blueprint=[...]` offers, in that order",
}
HEAD = """\
# What the controller does

Generated from `esper/env/actions.py` by `python -m esper.env.actions_page > docs/actions.md`; do not edit by hand.

Before every host epoch the controller takes one action for each host: a value for each of eight heads. `op` says what is done,
the others are its arguments. Those that the operation does not take have no effect, are not drawn, and are recorded as 0. The
observation says what is legal, and the policy chooses among that. Any other action is refused: the host waits, and sees so in
`last_refused`.

## Operations
"""


def page() -> str:
    """docs/actions.md."""
    opened = SlotsConfig().auto_advance
    lines = [HEAD, "| op | what it does | arguments |", "|---|---|---|"]
    for op in Op:
        taken = [f"`{_name(head)}`" for head in Head if RELEVANT[op, head] and head is not Head.OP]
        lines.append(f"| {op.name} | {DOES[op]} | {', '.join(taken)} |")
    lines += [
        "",
        "When each is legal, and what time does by itself, is in [lifecycle.md](lifecycle.md). Seeds enter the stages that",
        f"`slots.auto_advance` names, by default [{', '.join(opened)}], without an action: ADVANCE is for the others, blending",
        "above all.",
        "",
        "## Heads",
        "",
        "| head | what it says | values, in the order of their numbers | held by default at |",
        "|---|---|---|---|",
        *(f"| `{_name(head)}` | {MEANS[head]} | {_values(head)} | {_held(head)} |" for head in Head),
        "",
        "A head that is held has one legal value: there is nothing to choose, and nothing to learn.",
        f"`agent.heads.tempo={FREE}` frees it, `agent.heads.tempo=slow` holds it at another value, and so for every head that is",
        "held. `alpha_curve` needs an `alpha_speed` other than instant. Without incubation (`slots.incubation=none`) there is no",
        "first ramp, and `tempo` has no effect. What it was worth to free them is in",
        "[a record](../experiments/2026-11-22_parts/README.md).",
        "",
        "## Values",
        "",
        "`h` is what comes into the slot, `delta` what the seed makes of it, `y` what leaves the slot; `t` is the share of a",
        "ramp that is behind.",
        "",
        "| head | value | meaning |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{_name(head)}` | `{value}` | {meaning} |" for head, table in _meanings().items() for value, meaning in table.items()
    ]
    return "\n".join(lines) + "\n"


def _meanings() -> dict[Head, dict[str, str]]:
    """Head -> value -> what it means, of the heads whose values are the same in every run."""
    blends = member_docs(Blend)
    curves = {kind: f"a sigmoid of steepness {k:g}" for kind, k in STEEPNESS.items()}
    curves |= {Curve.LINEAR: "alpha moves in proportion to t", Curve.COSINE: "alpha moves by (1 - cos(pi t)) / 2"}
    return {
        Head.STYLE: {name: f"{blends[blend.name]}; first ramp {curve.name.lower()}" for name, (blend, curve) in STYLES.items()},
        Head.TEMPO: {name: _epochs(length) for name, length in TEMPOS.items()},
        Head.ALPHA_TARGET: {name: f"alpha {target:g}" for name, target in ALPHA_TARGETS.items()}
        | {"full": "alpha 1, which a seed must reach before it can be fossilized"},
        Head.ALPHA_SPEED: {name: _epochs(length) if length else "at once" for name, length in ALPHA_SPEEDS.items()},
        Head.ALPHA_CURVE: {name: curves[curve] for name, curve in ALPHA_CURVES.items()},
    }


def _epochs(length: int) -> str:
    return f"{length} host epochs"


def _name(head: Head) -> str:
    return head.name.lower()


def _values(head: Head) -> str:
    table: dict[str, Any] = VALUES.get(head, {})
    return RANGES.get(head) or ", ".join(f"`{name}`" for name in table)


def _held(head: Head) -> str:
    return f"`{getattr(HeadsConfig(), _name(head))}`" if head in VALUES else "free"


if __name__ == "__main__":
    print(page(), end="")
