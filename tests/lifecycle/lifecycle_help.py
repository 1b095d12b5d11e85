"""Actions by name, and epochs without networks, for the tests of the lifecycle."""

import math
from dataclasses import replace

import numpy as np

from esper.env.actions import VALUES, Head, HeadsConfig, execute
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.ramps import STEEPNESS, Curve
from esper.lifecycle.stages import TAKES_PART, Op

ALL_AUTO = ["training", "blending", "holding"]
FREE = HeadsConfig(style="free", tempo="free", alpha_target="free", alpha_speed="free", alpha_curve="free")
GATED = GatesConfig()


def action(op, slot=0, *, blueprint=1, style="linear_add", tempo="fast", target="full", speed="instant", curve="linear"):
    """Return an action of one host with parameters by name."""
    names = {Head.STYLE: style, Head.TEMPO: tempo, Head.ALPHA_TARGET: target, Head.ALPHA_SPEED: speed, Head.ALPHA_CURVE: curve}
    row = np.zeros((1, len(Head)), dtype=np.int64)
    row[0, [Head.OP, Head.SLOT, Head.BLUEPRINT]] = op, slot, blueprint
    for head, name in names.items():
        row[0, head] = list(VALUES[head]).index(name)
    return row


def step(state, config, op=Op.WAIT, slot=0, *, gates=GATED, measure=True, **parameters):
    """Apply an operation, legal or not, then a tick, then a measurement."""
    state = execute(state, action(op, slot, **parameters), config)
    return measured(lifecycle.tick(state, config, gates)) if measure else lifecycle.tick(state, config, gates)


def measured(state, rng=None):
    """Give every seed with alpha above 0 a contribution, and every host an accuracy, as an epoch does."""
    inside, shape = state.within(*TAKES_PART) & (state.alpha > 0), state.stage.shape

    def some(low, high, value, size=shape):
        return np.full(size, value, np.float32) if rng is None else rng.uniform(low, high, size).astype(np.float32)

    part = state.within(*TAKES_PART)
    return replace(
        state,
        contribution=np.where(inside, some(-3, 5, 1.5), state.contribution),
        contribution_error=np.where(inside, some(0, 2, 0.5), state.contribution_error),
        measured=state.measured | inside,
        accuracy=np.repeat(some(20, 90, 50.0, (shape[0], 1)), shape[1], axis=1),
        gradient_ratio=np.where(part, some(0, 2, 1.0), np.float32(np.nan)),
        gradient_norm=np.where(part, some(0, 20, 1.0), np.float32(np.nan)),
    )


def share_of(done, total, curve):
    """Return f(t) in plain Python."""
    t = done / total
    if curve == Curve.LINEAR:
        return t
    if curve == Curve.COSINE:
        return (1 - math.cos(math.pi * t)) / 2
    low, here, high = (1 / (1 + math.exp(-STEEPNESS[curve] * x)) for x in (-0.5, t - 0.5, 0.5))
    return (here - low) / (high - low)
