"""Why the lifecycle does not permit an operation."""

from esper.lifecycle.stages import Stage

NEEDS = {
    "germinate": "the slot must be dormant, and the limit rules.max_seeds not reached",
    "advance": "a seed leaves training after gates.min_training epochs, blending at alpha 1, holding once it was measured",
    "fossilize": "the seed must be holding, with a contribution measured by contributions()",
    "set_alpha": "the seed must be blending or holding, with alpha at its target",
    "switch": "the slot must hold a fossil, and rules.switchable must be true",
    "prune": "the slot must hold a seed that is not a fossil and is at least rules.min_prune_age epochs old",
}
"""What each operation needs."""


def refusal(doing: str, slot: str, stage: Stage, age: int) -> str:
    """Return why an operation is not permitted.

    Args:
        doing: name of the operation.
        slot: name of the slot.
        stage: its stage.
        age: age of the stage [epochs].
    """
    here = f"{stage.name.lower()} (age {age})"
    return f"{doing} is not permitted in slot {slot}, which is {here}: {NEEDS[doing]} (docs/lifecycle.md)"
