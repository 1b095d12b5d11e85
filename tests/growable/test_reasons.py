"""Why the lifecycle does not permit an operation: each sentence names what is missing."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from esper.growable.module import GrowableModule
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import SlotsConfig
from tests.growable.test_grow import active, grown

FREE = {"min_prune_age": 0, "embargo": 0}


def rules(**settings: Any) -> SlotsConfig:
    return SlotsConfig(**FREE | settings)


def held(**settings: Any) -> GrowableModule:
    """Return a network with a holding seed in its early slot."""
    net = active(grown(**settings))
    net.begin_epoch()
    net.advance("early")
    return net


def fossil(**settings: Any) -> GrowableModule:
    net = held(**settings)
    net.contributions(lambda: 1.0)
    net.fossilize("early")
    return net


def moving() -> GrowableModule:
    net = held()
    net.set_alpha("early", 0.5, ramp=3)
    return net


def leaving() -> GrowableModule:
    net = held()
    net.prune("early", ramp=3)
    return net


def blending(**settings: Any) -> GrowableModule:
    """Return a network with a seed that incubation has just left, at alpha 0."""
    net = active(grown(rules=rules(incubation="straight_through"), **settings), ramp=0)
    net.begin_epoch()
    net.advance("early")
    return net


def unimproved() -> GrowableModule:
    net = active(grown(gates=GatesConfig(min_improvement=0.5)))
    net.contributions(lambda: 1.0)
    net.begin_epoch()
    return net


def poor(**gates: float) -> GrowableModule:
    net = held(gates=GatesConfig(**gates))  # pyright: ignore[reportArgumentType]
    net.contributions(lambda: 1.0)
    return net


REASONS: dict[str, tuple[Callable[[], GrowableModule], Callable[[GrowableModule], object], str]] = {
    "a seed is there": (
        lambda: active(grown()),
        lambda net: net.germinate("early", "norm"),
        "germinate is not permitted: slot early holds a seed already, which is training: prune it first",
    ),
    "a fossil is there": (fossil, lambda net: net.germinate("early", "norm"), "slot early holds a fossil already"),
    "not in use": (
        lambda: grown(rules=rules(where=["late"])),
        lambda net: net.germinate("early", "norm"),
        "slot early is not in use: add it to rules.where",
    ),
    "no room": (
        lambda: active(grown(rules=rules(max_seeds=1))),
        lambda net: net.germinate("late", "norm"),
        "slot late must stay empty, since rules.max_seeds=1 are planted",
    ),
    "one at a time": (
        lambda: active(grown(rules=rules(one_at_a_time=True))),
        lambda net: net.germinate("late", "norm"),
        "slot late must stay empty while another seed is germinated or in training (rules.one_at_a_time)",
    ),
    "no seed": (grown, lambda net: net.fossilize("late"), "fossilize is not permitted: slot late holds no seed: it is dormant"),
    "it is leaving": (leaving, lambda net: net.prune("early"), "slot early holds a seed that is being removed, over the epochs"),
    "no advance while it leaves": (leaving, lambda net: net.advance("early"), "slot early holds a seed that is being removed"),
    "no switch": (fossil, lambda net: net.switch("early"), "slot early may not be switched: set rules.switchable=True"),
    "no fossil": (held, lambda net: net.switch("early"), "slot early holds no fossil: its seed is holding"),
    "fossils stay": (fossil, lambda net: net.prune("early"), "slot early holds a fossil, which stays as it is"),
    "too young to go": (
        lambda: active(grown(rules=rules(min_prune_age=4))),
        lambda net: net.prune("early"),
        "slot early holds a seed of 1 epoch, and rules.min_prune_age is 4",
    ),
    "alpha moves": (
        moving,
        lambda net: net.set_alpha("early", 1.0),
        "slot early holds a seed whose alpha still moves to its target, for 3 net.begin_epoch() calls",
    ),
    "no alpha": (
        lambda: active(grown()),
        lambda net: net.set_alpha("early", 0.5),
        "slot early holds a seed in the stage training: only one that is blending or holding has an alpha to move",
    ),
    "too early to keep": (
        lambda: active(grown()),
        lambda net: net.fossilize("early"),
        "slot early holds a seed in the stage training, and only a holding seed can be kept: call advance(slot) until it is",
    ),
    "not full": (
        moving,
        lambda net: net.fossilize("early"),
        "and only a holding seed can be kept: call advance(slot) once its alpha is 1 (set_alpha moves it)",
    ),
    "unmeasured": (
        held,
        lambda net: net.fossilize("early"),
        "whose contribution was never measured: call net.contributions(score)",
    ),
    "unmeasured, by advance": (held, lambda net: net.advance("early"), "advance is not permitted: slot early holds a seed whose"),
    "not worth it": (
        lambda: poor(min_contribution=0.5),
        lambda net: net.fossilize("early"),
        "slot early holds a seed whose last measured contribution of 0 is below gates.min_contribution=0.5, in the unit",
    ),
    "too young to blend": (
        lambda: active(grown(gates=GatesConfig(min_training=3))),
        lambda net: net.advance("early"),
        "slot early holds a seed in training for 1 epoch, and gates.min_training is 3: net.begin_epoch() begins an epoch",
    ),
    "no gain": (
        unimproved,
        lambda net: net.advance("early"),
        "slot early holds a seed in training, and the score has not risen by gates.min_improvement=0.5 since",
    ),
    "too young to hold": (
        lambda: blending(gates=GatesConfig(min_blending=2)),
        lambda net: net.advance("early"),
        "slot early holds a seed in blending for 0 epochs, and gates.min_blending is 2",
    ),
    "alpha has not moved yet": (
        blending,
        lambda net: net.advance("early"),
        "slot early holds a seed at alpha 0 with target 1, and it leaves blending at 1: net.begin_epoch() moves it",
    ),
    "another target": (
        moving,
        lambda net: net.advance("early"),
        "slot early holds a seed at alpha 1 with target 0.5, and it leaves blending at 1: set_alpha(slot, 1.0) moves it",
    ),
}


@pytest.mark.parametrize(("make", "call", "sentence"), REASONS.values(), ids=list(REASONS))
def test_a_refusal_names_what_is_missing(
    make: Callable[[], GrowableModule], call: Callable[[GrowableModule], object], sentence: str
) -> None:
    net = make()
    with pytest.raises(ValueError, match=f" is not permitted: slot .*{re.escape(sentence.partition('slot ')[2] or sentence)}"):
        call(net)


def test_a_seed_without_a_ramp_holds_once_an_epoch_has_moved_its_alpha() -> None:
    net = blending()
    assert net.alpha("early") == 0
    net.begin_epoch()
    assert (net.alpha("early"), net.stage("early").name) == (1.0, "HOLDING")


def test_standard_errors_count() -> None:
    net = held(gates=GatesConfig(min_contribution=0.0, contribution_z=2.0))
    scores = iter([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    net.contributions(lambda: np.array(next(scores)))
    with pytest.raises(
        ValueError, match=r"contribution of 0.25 less 2 standard errors of 0.25 is below gates.min_contribution=0"
    ):
        net.fossilize("early")
