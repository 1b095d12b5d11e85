"""Building blocks of controllers without learning, and two baselines: `wait` and `random`."""

# N hosts, S slots, O operations, H heads, W values of one head

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from esper.agent.base import AgentConfig
from esper.buffer.base import Buffer
from esper.buffer.transition import Decision, State
from esper.env.actions import PINNED, RELEVANT, Head, Op, segments
from esper.env.spec import EnvSpec, Observation
from esper.lifecycle.stages import BoolArray, IntArray
from esper.ranges import check_ranges

UniformArray = npt.NDArray[np.float64]


def compose(observation: Observation, spec: EnvSpec, op_N: IntArray, slot_N: IntArray, **chosen: IntArray) -> IntArray:
    """Return complete actions `[N, H]`; heads without effect are 0.

    A parameter that is not given takes its default value, or the first legal one where the default is illegal.

    Args:
        chosen: values `[N]` of parameter heads, by the head's name in lower case.
    """
    action_NH = np.zeros((len(op_N), len(Head)), dtype=np.int64)
    action_NH[:, Head.OP], action_NH[:, Head.SLOT] = op_N, slot_N
    for head, place in segments(spec.head_sizes).items():
        legal_NW = observation.legal_values[:, place]
        default = PINNED.get(head, 0)
        default_N: IntArray = np.where(legal_NW[:, default], default, legal_NW.argmax(axis=1))
        action_NH[:, head] = chosen.get(head.name.lower(), default_N)
    return action_NH * RELEVANT[op_N]


def plant_and_keep(
    observation: Observation, spec: EnvSpec, slot_N: IntArray, blueprint_N: IntArray, *, plants_N: BoolArray, acts_N: BoolArray
) -> IntArray:
    """Return actions that plant a seed in the slot `slot_N`, advance it, and fossilize it, each as soon as it is legal.

    Args:
        plants_N: hosts in which a seed may be planted.
        acts_N: hosts in which anything is done; the others wait.
    """
    legal_NO = np.take_along_axis(observation.legal_slots, slot_N[:, None, None], axis=2)[:, :, 0]
    op_N = np.full(len(slot_N), Op.WAIT, dtype=np.int64)
    for op, wanted_N in ((Op.GERMINATE, plants_N & acts_N), (Op.ADVANCE, acts_N), (Op.FOSSILIZE, acts_N)):
        op_N = np.where(legal_NO[:, op] & wanted_N, op, op_N)
    return compose(observation, spec, op_N, slot_N, blueprint=blueprint_N)


def most_urgent(
    observation: Observation, wanted: Mapping[Op, tuple[BoolArray, npt.NDArray[np.floating[Any]]]]
) -> tuple[IntArray, IntArray]:
    """Return operation and slot of each host `[N]`: the first op that is wanted and legal somewhere, else WAIT.

    Args:
        wanted: for each op, most urgent first, where it is wanted `[N, S]`, and its urgency there `[N, S]`; ties go to the first
            slot.
    """
    hosts = len(observation.legal_slots)
    op_N, slot_N = np.full(hosts, Op.WAIT, dtype=np.int64), np.zeros(hosts, dtype=np.int64)
    for op, (wanted_NS, urgency_NS) in wanted.items():
        candidate_NS = observation.legal_slots[:, op] & wanted_NS
        takes_N = (op_N == Op.WAIT) & candidate_NS.any(axis=1)
        first_N = np.where(candidate_NS, urgency_NS, -np.inf).argmax(axis=1)
        op_N, slot_N = np.where(takes_N, op, op_N), np.where(takes_N, first_N, slot_N)
    return op_N, slot_N


def draw(weight_NW: npt.NDArray[np.float64], uniform_N: UniformArray) -> IntArray:
    """Draw one value per row by inversion, in proportion to the weights, never one of weight 0.

    The value for a row of zeros is undefined.
    """
    cdf_NW = weight_NW.cumsum(axis=1)
    return np.minimum((cdf_NW <= uniform_N[:, None] * cdf_NW[:, -1:]).sum(axis=1), weight_NW.shape[1] - 1)


class Scripted:
    """A controller without learning. A subclass defines `choose`, or `decide` if it has a state."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def start(self, num_hosts: int) -> State:
        """Return an empty state."""
        return {}

    def act(
        self, observation: Observation, state: State, *, is_init: BoolArray, uniform: UniformArray, greedy: bool = False
    ) -> Decision:
        """See `Controller`."""
        action_NH, state = self.decide(observation, state, uniform)
        return Decision(action=action_NH, state=state)

    def decide(self, observation: Observation, state: State, uniform_NH: UniformArray) -> tuple[IntArray, State]:
        """Return actions `[N, H]` and the next state."""
        return self.choose(observation, uniform_NH), state

    def choose(self, observation: Observation, uniform_NH: UniformArray) -> IntArray:
        """Return actions `[N, H]`."""
        raise TypeError(f"{type(self).__name__} does not define choose(observation, uniform_NH)")


@dataclass(kw_only=True, slots=True)
class WaitConfig(AgentConfig):
    """A controller that never acts: the baseline without growth."""

    seeded: ClassVar[bool] = False
    standalone: ClassVar[bool] = True

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Wait":
        return Wait(spec)


class Wait(Scripted):
    """See `WaitConfig`."""

    def choose(self, observation: Observation, uniform_NH: UniformArray) -> IntArray:
        return np.zeros((len(observation.features), len(Head)), dtype=np.int64)


@dataclass(kw_only=True, slots=True)
class RandomConfig(AgentConfig):
    """A controller that draws a legal operation, then its slot and values, uniformly except for the weight of waiting."""

    seeded: ClassVar[bool] = False
    standalone: ClassVar[bool] = True
    wait_weight: float = 1.0
    """Weight of waiting relative to any other legal operation, at least 0. Higher: acts less often; 0: whenever possible."""

    def __post_init__(self) -> None:
        AgentConfig.__post_init__(self)
        check_ranges("agent", self, {"[0, inf)": ["wait_weight"]})

    def build(self, spec: EnvSpec, *, seed: int, buffer: Buffer | None = None) -> "Random":
        return Random(self, spec)


class Random(Scripted):
    """See `RandomConfig`."""

    def __init__(self, config: RandomConfig, spec: EnvSpec) -> None:
        Scripted.__init__(self, spec)
        self.config = config

    def choose(self, observation: Observation, uniform_NH: UniformArray) -> IntArray:
        weight_NO = observation.legal_ops.astype(np.float64)
        may_act_N = weight_NO[:, Op.WAIT + 1 :].any(axis=1)
        weight_NO[:, Op.WAIT] = np.where(may_act_N, self.config.wait_weight, 1.0)
        op_N = draw(weight_NO, uniform_NH[:, Head.OP])
        legal_NS = observation.legal_slots[np.arange(len(op_N)), op_N].astype(np.float64)
        slot_N = draw(legal_NS, uniform_NH[:, Head.SLOT])
        chosen = {
            head.name.lower(): draw(observation.legal_values[:, place].astype(np.float64), uniform_NH[:, head])
            for head, place in segments(self.spec.head_sizes).items()
        }
        return compose(observation, self.spec, op_N, slot_N, **chosen)
