"""What the controller sees: one table of features, from which the vector, its size, its names, its docs and its tests come.

Scales are fixed, so that rollout and update see the same numbers and nothing has to be remembered. "Never measured" differs from
zero. The controller sees neither the reward nor the instance.

`python -m esper.env.observation > docs/observation.md` writes the page anew.
"""

# N hosts, S slots, K blueprints

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.env.features import Feature, FloatArray, HostView, Plan, Yardstick
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import OCCUPIED, Mode, Op, Stage

HISTORY = 3
"""Epochs of accuracy that are seen besides the last one."""
LEAST_POTENTIAL = 1e-8
"""Growth potential that is seen as nothing much [nats per unit of learning rate]."""
MOST_POTENTIAL = 1e6
"""Growth potential above which nothing more is seen [nats per unit of learning rate]."""
LOG_UNIT = 10.0
"""What a potential's logarithm is divided by, to be of order one."""


def _past(ago: int) -> list[Feature]:
    known = f"accuracy_{ago}_ago_known"
    return [
        Feature(
            name=f"accuracy_{ago}_ago",
            meaning=f"validation accuracy {ago} epoch{'s' * (ago > 1)} ago",
            extract=lambda v: v.accuracy_NH[:, ago],
            unit="pp",
            one=100.0,
            told_by=(known,),
        ),
        Feature(name=known, meaning="did it exist?", extract=lambda v: ~np.isnan(v.accuracy_NH[:, ago])),
    ]


def _last_op(op: Op) -> Feature:
    meaning = "was this carried out in the last step?"
    return Feature(name=f"last_op_{op.name.lower()}", meaning=meaning, extract=lambda v: v.op_N == op)


def _stage(stage: Stage) -> Feature:
    meaning = "is the slot in this stage?"
    return Feature(name=f"stage_{stage.name.lower()}", meaning=meaning, extract=lambda v: v.state.stage == stage)


def _blend(blend: Blend) -> Feature:
    return Feature(
        name=f"blend_{blend.name.lower()}",
        meaning="is this how the seed is blended in?",
        extract=lambda v: v.state.within(*OCCUPIED) & (v.state.blend == blend),
    )


def best_potential(potential_NSK: FloatArray) -> FloatArray:
    """`[N, S]`: growth potential of the best blueprint of which it is known, NaN where there is none."""
    return np.fmax.reduce(potential_NSK, axis=2)


def log_potential(potential: FloatArray) -> FloatArray:
    """Growth potential x [nats per unit of learning rate] as it is seen, log(1 + x / 1e-8) / 10: 0 is none, 1 is 2.2e-4."""
    return (_log(potential) / LOG_UNIT).astype(np.float32)


def potential_seen(feature: FloatArray) -> FloatArray:
    """Undoes `log_potential`."""
    return (LEAST_POTENTIAL * np.expm1(LOG_UNIT * feature)).astype(np.float32)


def _log(potential: FloatArray) -> FloatArray:
    return np.log1p(np.minimum(potential, MOST_POTENTIAL) / LEAST_POTENTIAL)


def _relative_log(v: HostView) -> npt.NDArray[Any]:
    logs = log_potential(best_potential(v.potential_NSK))
    known = ~np.isnan(logs)
    mean = np.where(known, logs, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return LOG_UNIT * (logs - mean)


_POTENTIAL_UNIT = f"ln(1 + x / {LEAST_POTENTIAL:g}), x in nats per unit of learning rate"
_MOST_SEEN = float(np.log1p(MOST_POTENTIAL / LEAST_POTENTIAL)) / LOG_UNIT


def _potential_of(name: str, rank: int) -> Feature:
    return Feature(
        name=f"potential_of_{name}",
        meaning=f"growth potential x of {name}; 0 too where it cannot grow, since nothing can be gained",
        extract=lambda v: _log(v.potential_NSK[:, :, rank]),
        unit=_POTENTIAL_UNIT,
        one=LOG_UNIT,
        high=_MOST_SEEN,
        told_by=("potential_measured",),
    )


HOST_FEATURES: tuple[Feature, ...] = (
    Feature(
        name="time_left",
        meaning="what is ahead of the episode",
        extract=lambda v: np.full(len(v.loss_N), v.num_steps - v.step),
        unit="host epochs",
        one=Yardstick.num_steps,
    ),
    Feature(name="accuracy", meaning="validation accuracy", extract=lambda v: v.accuracy_NH[:, 0], unit="pp", one=100.0),
    Feature(
        name="loss",
        meaning="validation loss; of a host whose loss is no number, as bad as can be",
        extract=lambda v: v.loss_N,
        unit="nats",
        one=Yardstick.chance_loss,
        high=5.0,
        unknown=5.0,
    ),
    *(feature for ago in range(1, HISTORY + 1) for feature in _past(ago)),
    Feature(
        name="seeds_left",
        meaning="seeds that the host may still hold besides those it has",
        extract=lambda v: v.max_seeds - v.state.within(*OCCUPIED).sum(axis=1),
        unit="seeds",
        one=Yardstick.max_seeds,
    ),
    *(_last_op(op) for op in Op),
    Feature(name="last_refused", meaning="was the last action refused?", extract=lambda v: v.refused_N),
)

SLOT_FEATURES: tuple[Feature, ...] = (
    *(_stage(stage) for stage in Stage),
    Feature(name="alpha", meaning="blend weight", extract=lambda v: v.state.alpha, unit="1"),
    Feature(
        name="alpha_target",
        meaning="where alpha goes or stays, also before it starts",
        extract=lambda v: v.state.ramp_target,
        unit="1",
    ),
    Feature(name="alpha_up", meaning="is alpha on its way up?", extract=lambda v: v.state.mode == Mode.UP),
    Feature(name="alpha_down", meaning="is alpha on its way down?", extract=lambda v: v.state.mode == Mode.DOWN),
    Feature(
        name="time_to_target",
        meaning="time until alpha is there; 0 where it does not move",
        extract=lambda v: np.where(v.state.moving, v.state.ramp_total - v.state.ramp_done, 0),
        unit="host epochs",
        one=8.0,
    ),
    Feature(name="dying", meaning="does the ramp end in the seed's removal?", extract=lambda v: v.state.dying),
    *(_blend(blend) for blend in Blend),
    Feature(
        name="stage_age",
        meaning="time in the stage",
        extract=lambda v: v.state.stage_age,
        unit="host epochs",
        one=Yardstick.num_steps,
    ),
    Feature(
        name="seed_age",
        meaning="time since germination",
        extract=lambda v: v.state.seed_age,
        unit="host epochs",
        one=Yardstick.num_steps,
    ),
    Feature(
        name="contribution",
        meaning="validation accuracy with the seed minus without",
        extract=lambda v: np.where(v.state.measured, v.state.contribution, np.nan),
        unit="pp",
        one=50.0,
        low=-2.0,
        high=2.0,
        told_by=("contribution_measured",),
    ),
    Feature(
        name="contribution_error",
        meaning="its standard error",
        extract=lambda v: np.where(v.state.measured, v.state.contribution_error, np.nan),
        unit="pp",
        one=5.0,
        high=4.0,
        told_by=("contribution_measured",),
    ),
    Feature(name="contribution_measured", meaning="has it been measured?", extract=lambda v: v.state.measured),
    Feature(
        name="improvement",
        meaning="validation accuracy that the host won while the seed is in the stage",
        extract=lambda v: np.where(v.state.within(*OCCUPIED), v.state.improvement, np.nan),
        unit="pp",
        one=50.0,
        low=-2.0,
        high=2.0,
        told_by=tuple(f"stage_{stage.name.lower()}" for stage in OCCUPIED),
    ),
    Feature(
        name="gradient_ratio",
        meaning="gradient of the seed over the host's, a parameter",
        extract=lambda v: v.state.gradient_ratio,
        unit="1",
        one=10.0,
        told_by=("gradient_measured",),
    ),
    Feature(name="gradient_measured", meaning="has it been measured?", extract=lambda v: ~np.isnan(v.state.gradient_ratio)),
    Feature(
        name="potential",
        meaning="growth potential x of the best blueprint",
        extract=lambda v: _log(best_potential(v.potential_NSK)),
        unit=_POTENTIAL_UNIT,
        one=LOG_UNIT,
        high=_MOST_SEEN,
        told_by=("potential_measured",),
    ),
    Feature(
        name="potential_relative",
        meaning="the same logarithm, minus its mean over the host's slots",
        extract=_relative_log,
        unit="1",
        low=-10.0,
        high=10.0,
        told_by=("potential_measured",),
    ),
    Feature(
        name="potential_measured",
        meaning="is the potential of a blueprint known?",
        extract=lambda v: ~np.isnan(best_potential(v.potential_NSK)),
    ),
    Feature(
        name="params",
        meaning="parameters of the seed, its gate's included",
        extract=lambda v: v.params_NS,
        unit="parameters",
        one=Yardstick.host_params,
        high=10.0,
    ),
)


def slot_table(blueprints: Sequence[str]) -> tuple[Feature, ...]:
    """The features of a slot where these blueprints are offered: `SLOT_FEATURES`, and the potential of each."""
    return (*SLOT_FEATURES, *(_potential_of(name, rank) for rank, name in enumerate(blueprints)))


_HOST_PLAN = Plan(HOST_FEATURES)


@cache
def _slot_plan(blueprints: tuple[str, ...]) -> Plan:
    return Plan(slot_table(blueprints))


def host_features(view: HostView) -> FloatArray:
    """`[N, D]` in the order of `HOST_FEATURES`."""
    return _HOST_PLAN.seen(view)


def slot_features(view: HostView, blueprints: Sequence[str]) -> FloatArray:
    """`[N, S, F]` in the order of `slot_table`."""
    return _slot_plan(tuple(blueprints)).seen(view)


# ---- docs/observation.md

_ABOUT = """\
Generated from `esper/env/observation.py` by `python -m esper.env.observation > docs/observation.md`; do not edit by hand.

Every host epoch the controller sees the features of each host and of each of its slots below, which blueprint is in each slot
(the network learns numbers for each), and which operations, slots and values are legal. A quantity is divided by what is seen as
1 and held within its range; nothing is normalised as it goes. Features without a unit are 1 for yes and 0 for no."""

_BETWEEN_TASKS = """\
A policy may be moved to another task: names and scales are the same there. What the numbers mean is not always the same:

* Shares are comparable: time left, ages, alpha, time to target, parameters in host sizes, the gradient ratio. Ages and time left
  count in episodes, so that the same ramp is a larger share of a shorter episode.
* `seeds_left` counts in seed caps: another cap gives shares that were never seen in training.
* Loss is in units of a random guess over all classes of the task: 1 is no skill everywhere. How low a trained host gets differs
  from task to task, and hosts that are measured on some of the classes only (`task.classes`) start from another loss.
* Accuracy, contribution, its error and improvement are in points. A random guess has 10 % with 10 classes and 50 % with 2, there
  is more to win where a host starts low, and the error falls with the number of validation samples.
* Growth potential is not comparable: it has the scales of the loss and of the features. Its differences between the slots of a
  host (`potential_relative`) and between blueprints are, as far as anything is.
* The slots are all those of the host, in use or not, and what the network takes over slots, mean and maximum, is over all."""


def page() -> str:
    """docs/observation.md."""
    lines = [
        "# What the controller sees",
        "",
        _ABOUT,
        "",
        "## Of a host",
        "",
        *_rows(HOST_FEATURES),
        "",
        "## Of a slot",
        "",
        *_rows(slot_table(["BLUEPRINT"])),
        "",
        "There is a `potential_of_...` for each blueprint that is offered.",
        "",
        "## Between tasks",
        "",
        _BETWEEN_TASKS,
    ]
    return "\n".join(lines) + "\n"


def _rows(features: Sequence[Feature]) -> Iterator[str]:
    yield from ("| feature | meaning | unit | seen as 1 | range | never measured |", "|---|---|---|---|---|---|")
    for one in features:
        told = ", ".join(f"`{name}`" for name in one.told_by)
        never = f"{one.unknown:g}, told by {told}" if told else ""
        yes_or_no = ("", "", "0 or 1")
        unit, seen, held = (one.unit, _one(one), f"{one.low:g} to {one.high:.3g}") if one.unit else yes_or_no
        yield f"| `{one.name}` | {one.meaning} | {unit} | {seen} | {held} | {never} |"


def _one(feature: Feature) -> str:
    return str(feature.one) if isinstance(feature.one, Yardstick) else f"{feature.one:g}"


if __name__ == "__main__":
    print(page(), end="")
