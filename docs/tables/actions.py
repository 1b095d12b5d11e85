"""Tables of actions.md: operations, heads and their values."""

from collections.abc import Iterator

from docs.tables.markdown import lower, table, ticked
from esper.cli.help import docs_below
from esper.env import actions
from esper.env.actions import Head, HeadsConfig, Op
from esper.lifecycle.ramps import STEEPNESS, Curve
from esper.lifecycle.roles import Blend

OPERATIONS = {
    Op.WAIT: "Do nothing. Always legal.",
    Op.GERMINATE: "Plant a seed of a blueprint in an empty slot, and choose how it will be blended in.",
    Op.SET_ALPHA_TARGET: "Ramp alpha of a seed in blending or holding to a target; the present one changes nothing. Legal only "
    "if `alpha_target` is free. With `slots.switchable=true` it also switches a fossil off, or on again, at once, even if "
    "`alpha_target` is fixed; the other heads have no effect then, but fixed ones must have their value.",
    Op.PRUNE: "Remove a live seed, at once or after a ramp of alpha down to 0.",
    Op.FOSSILIZE: "Keep a seed in holding permanently.",
    Op.ADVANCE: "Move a seed to its next stage, if the gate to that stage is open.",
}
HEADS = {
    Head.OP: "operation",
    Head.SLOT: "slot it applies to",
    Head.BLUEPRINT: "blueprint of the new seed",
    Head.STYLE: "blend of the seed, for its whole life, and the curve of its first ramp",
    Head.TEMPO: "length of the first ramp",
    Head.ALPHA_TARGET: "end of the ramp",
    Head.ALPHA_SPEED: "length of a later ramp: to another target, or down to a removal",
    Head.ALPHA_CURVE: "shape of a later ramp",
}
RANGES = {
    Head.OP: "the operations above",
    Head.SLOT: "the slots of the host in forward order; legal are those that `slots` puts in use",
    Head.BLUEPRINT: "the options of `blueprint=[...]`, in that order",
}


def operations() -> Iterator[str]:
    """Yield the meaning of each operation, and the heads that are its arguments."""
    taken = {op: [lower(head) for head in Head if actions.RELEVANT[op, head] and head is not Head.OP] for op in Op}
    return table(("op", "what it does", "arguments"), ((op.name, OPERATIONS[op], ticked(taken[op])) for op in Op))


def heads() -> Iterator[str]:
    """Yield the values of each head, and the value at which it is fixed by default."""

    def values(head: Head) -> str:
        return RANGES.get(head) or ticked(actions.VALUES.get(head, {}))

    def fixed(head: Head) -> str:
        return f"`{getattr(HeadsConfig(), lower(head))}`" if head in actions.VALUES else "free"

    rows = ((f"`{lower(head)}`", HEADS[head], values(head), fixed(head)) for head in Head)
    return table(("head", "what it chooses", "values, in the order of their numbers", "fixed by default at"), rows)


def head_values() -> Iterator[str]:
    """Yield the meaning of the values that do not depend on the config."""
    blends = docs_below(Blend)
    curves = {kind: f"a sigmoid of steepness {k:g}" for kind, k in STEEPNESS.items()}
    curves |= {Curve.LINEAR: "alpha moves in proportion to t", Curve.COSINE: "alpha moves by (1 - cos(pi t)) / 2"}

    def length(epochs: int) -> str:
        return f"{epochs} host epochs" if epochs else "at once"

    meanings = {
        Head.STYLE: {
            name: f"{blends[blend.name]}; first ramp {curve.name.lower()}" for name, (blend, curve) in actions.STYLES.items()
        },
        Head.TEMPO: {name: length(epochs) for name, epochs in actions.TEMPOS.items()},
        Head.ALPHA_TARGET: {name: f"alpha {target:g}" for name, target in actions.ALPHA_TARGETS.items()}
        | {"full": "alpha 1, which a seed must reach before it can be fossilized"},
        Head.ALPHA_SPEED: {name: length(epochs) for name, epochs in actions.ALPHA_SPEEDS.items()},
        Head.ALPHA_CURVE: {name: curves[curve] for name, curve in actions.ALPHA_CURVES.items()},
    }
    rows = ((f"`{lower(head)}`", f"`{value}`", text) for head, values in meanings.items() for value, text in values.items())
    return table(("head", "value", "meaning"), rows)
