"""Every change of stage, as a table: what the docs show, and what the code is held to.

`python -m esper.lifecycle.transitions > docs/lifecycle.md` writes the page anew.
"""

from dataclasses import dataclass

from esper.lifecycle.stages import LIVE, TAKES_PART, Op, Stage


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of stage."""

    start: Stage
    end: Stage
    op: Op | None
    """The operation that brings it about; None: time does."""
    when: str


_BLENDS = "the gate to blending is open: trained for `gates.min_training`, and learnt as `gates` asks"
_HOLDS = "the ramp is over, its target is 1, and the seed was in blending for `gates.min_blending`"
_KEPT = "the contribution was measured, and is as high as `gates.min_contribution` and `gates.contribution_z` ask"
_IN_FULL = "the same gate, without incubation and with alpha target 1: nothing has to be blended in"
_OLD = "live for `slots.prune_after` host epochs"
_POOR = "alpha at its target, `slots.min_prune_age` reached, and a measured contribution below `slots.prune_below`"

TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        Stage.DORMANT,
        Stage.GERMINATED,
        Op.GERMINATE,
        "the slot is in use, `slots.max_seeds` is not reached, and `slots.one_at_a_time` allows it",
    ),
    Transition(Stage.GERMINATED, Stage.TRAINING, Op.ADVANCE, "always"),
    Transition(Stage.GERMINATED, Stage.TRAINING, None, "always, where `slots.auto_advance` names training"),
    Transition(Stage.TRAINING, Stage.BLENDING, Op.ADVANCE, _BLENDS),
    Transition(Stage.TRAINING, Stage.BLENDING, None, "the same, where `slots.auto_advance` names blending"),
    Transition(Stage.TRAINING, Stage.HOLDING, Op.ADVANCE, _IN_FULL),
    Transition(Stage.TRAINING, Stage.HOLDING, None, "the same, where `slots.auto_advance` names blending"),
    Transition(Stage.BLENDING, Stage.HOLDING, Op.ADVANCE, _HOLDS),
    Transition(Stage.BLENDING, Stage.HOLDING, None, "the same, where `slots.auto_advance` names holding"),
    Transition(Stage.HOLDING, Stage.BLENDING, Op.SET_ALPHA_TARGET, "the new target is below 1"),
    Transition(Stage.HOLDING, Stage.BLENDING, Op.PRUNE, "with a speed other than instant: alpha goes down first"),
    Transition(Stage.HOLDING, Stage.FOSSILIZED, Op.FOSSILIZE, _KEPT),
    Transition(Stage.HOLDING, Stage.FOSSILIZED, None, "the same, where `slots.auto_advance` names fossilized"),
    Transition(Stage.GERMINATED, Stage.PRUNED, Op.PRUNE, "`slots.min_prune_age` is reached"),
    Transition(Stage.GERMINATED, Stage.PRUNED, None, _OLD),
    Transition(Stage.TRAINING, Stage.PRUNED, Op.PRUNE, "`slots.min_prune_age` is reached"),
    Transition(Stage.TRAINING, Stage.PRUNED, None, _OLD),
    Transition(Stage.BLENDING, Stage.PRUNED, Op.PRUNE, "`slots.min_prune_age` is reached, and the speed is instant or alpha 0"),
    Transition(Stage.BLENDING, Stage.PRUNED, None, f"the ramp down has reached 0; or {_OLD}; or {_POOR}"),
    Transition(Stage.HOLDING, Stage.PRUNED, Op.PRUNE, "`slots.min_prune_age` is reached, and the speed is instant"),
    Transition(Stage.HOLDING, Stage.PRUNED, None, f"{_OLD}; or {_POOR}"),
    Transition(Stage.PRUNED, Stage.EMBARGOED, None, "one host epoch later"),
    Transition(Stage.PRUNED, Stage.DORMANT, None, "one host epoch later, where `slots.embargo` is 0"),
    Transition(Stage.EMBARGOED, Stage.DORMANT, None, "`slots.embargo` host epochs later"),
)
"""Every change of stage. What the governor does is apart: it brings a host back to its snapshot and prunes its live seeds."""


def page() -> str:
    """docs/lifecycle.md."""
    lines = [
        "# The life of a seed",
        "",
        "Generated from `esper/lifecycle` by `python -m esper.lifecycle.transitions > docs/lifecycle.md`; do not edit by hand.",
        "A step carries out the controller's operation, then what time does by itself, then a host epoch of training.",
        "",
        "## Stages",
        "",
        "| stage | live | takes part |",
        "|---|---|---|",
        *(f"| {_name(stage)} | {_yes(stage in LIVE)} | {_yes(stage in TAKES_PART)} |" for stage in Stage),
        "",
        "Live seeds may be pruned; those that take part are computed.",
        "",
        "## Transitions",
        "",
        "| from | to | by | when |",
        "|---|---|---|---|",
        *(f"| {_name(row.start)} | {_name(row.end)} | {_by(row.op)} | {row.when} |" for row in TRANSITIONS),
        "",
        "SET_ALPHA_TARGET, and PRUNE with a speed other than instant, also act within blending, where they start a ramp.",
        "Roll-backs are apart: the governor brings a host back to its snapshot and prunes its live seeds.",
    ]
    return "\n".join(lines) + "\n"


def _name(stage: Stage) -> str:
    return stage.name.lower()


def _by(op: Op | None) -> str:
    return "time" if op is None else op.name


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


if __name__ == "__main__":
    print(page(), end="")
