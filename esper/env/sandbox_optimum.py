"""The optimum of the sandbox, by dynamic programming over beliefs.

A controller's belief about a host is the configuration of its slots, how often each slot lit up, and which kinds are still
possible after the observed contributions. All three are finite. Values are multiplied by the probability of the belief, so that
they add up without division (Smallwood, Sondik 1973: a value is linear in the unnormalised belief).
"""

# C configurations of a host's slots, A actions, Q kinds, M sets of kinds still possible, L counts of lights, S slots, H heads

from itertools import product

import numpy as np
import numpy.typing as npt

from esper.env.actions import PINNED, RELEVANT, Head, Op
from esper.env.sandbox_rules import Float64Array, SandboxRules
from esper.lifecycle.stages import SlotState, Stage, empty

Ints = npt.NDArray[np.int64]


def every_action(rules: SandboxRules) -> Ints:
    """Return every action that may be legal `[A, H]`; heads without effect are 0."""
    _, slots, blueprints = rules.worth_QSK.shape
    rows = [(op, slot, blueprint) for op, slot, blueprint in product(Op, range(slots), range(blueprints))]
    action_AH = np.zeros((len(rows), len(Head)), dtype=np.int64)
    action_AH[:, : Head.BLUEPRINT + 1] = rows
    for head, value in PINNED.items():
        action_AH[:, head] = value
    return np.unique(action_AH * RELEVANT[action_AH[:, Head.OP]], axis=0)


def distinct(state: SlotState) -> tuple[SlotState, Ints]:
    """Return the distinct configurations, and the index of the configuration of each row."""
    read = state.arrays()
    read["stage_age"] = np.where(state.within(Stage.DORMANT, Stage.FOSSILIZED), 0, state.stage_age)  # no rule reads it there
    rows = np.nan_to_num(np.concatenate(list(read.values()), axis=1))
    _, first_C, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return state.of(first_C), which.reshape(-1)


class Optimum:
    """The optimal value under some rules, and the controller that reaches it."""

    def __init__(self, rules: SandboxRules) -> None:
        self.rules, self.action_AH = rules, every_action(rules)
        kinds, slots, _ = rules.worth_QSK.shape
        self.member_MQ = np.array(list(product((False, True), repeat=kinds)))[:, ::-1]
        """Set m holds kind q where bit q of m is 1."""
        states, self.next_TCA = self._reach()
        """The configuration that each action leads to, by step; -1 where it is not legal."""
        self.counts_TLS = counts = [_counts(time + 1, slots) for time in range(rules.num_steps)]
        self.best_TCML: list[npt.NDArray[np.int16]] = []
        """Best action for each belief, by step."""
        following = np.zeros((len(states[-1].stage), 2**kinds, 0))
        for time in reversed(range(rules.num_steps)):
            after = counts[time + 1] if time + 1 < rules.num_steps else None
            gain_CML = self._gain(states[time + 1], counts[time], after, following)
            following, best_CML = _best(gain_CML, self.next_TCA[time].T)
            self.best_TCML.insert(0, best_CML)
        first_M = following[0].sum(axis=1)
        self.value = float(first_M[-1])
        """Expected return of the best controller."""
        self.informed_value = float(sum(first_M[1 << kind] for kind in range(kinds)))
        """Expected return of the best controller that knows the kind."""

    def _reach(self) -> tuple[list[SlotState], list[Ints]]:
        """Return the configurations before each step and after the last, and where each action leads."""
        rules, action_AH = self.rules, self.action_AH
        states, nexts = [empty(1, rules.worth_QSK.shape[1])], []
        for _ in range(rules.num_steps):
            state = states[-1]
            legal_CA = rules.legal(state)[:, action_AH[:, Head.OP], action_AH[:, Head.SLOT]]
            config, action = np.nonzero(legal_CA)
            following, which = distinct(rules.grow(state.of(config), action_AH[action]))
            next_CA = np.full(legal_CA.shape, -1, dtype=np.int64)
            next_CA[config, action] = which
            states.append(following)
            nexts.append(next_CA)
        return states, nexts

    def _gain(self, state: SlotState, counts_LS: Ints, after_LS: Ints | None, following: Float64Array) -> Float64Array:
        """Return reward of the step that led here plus future value, times the probability of the belief `[C, M, L]`."""
        rules = self.rules
        kinds = len(rules.worth_QSK)
        weight_QL = np.exp(np.log(np.maximum(rules.light_QS, 1e-300)) @ counts_LS.T) / kinds
        gain_CML = np.einsum(
            "cq,mq,ql->cml", rules.reward(state, last=after_LS is None), self.member_MQ, weight_QL, optimize=True
        )
        if after_LS is None:
            return gain_CML
        index = {tuple(row): place for place, row in enumerate(after_LS.tolist())}
        lit_LS = [[index[tuple(row)] for row in (counts + np.eye(len(counts), dtype=int)).tolist()] for counts in counts_LS]
        to_come_CML = following[:, :, np.array(lit_LS)].sum(axis=3)
        remaining_CMQ = self._remaining(state)
        for config in range(len(state.stage)):
            for left_M in np.unique(remaining_CMQ[config], axis=1).T:  # the contributions of one kind
                gain_CML[config] += to_come_CML[config, left_M] * (left_M > 0)[:, None]
        return gain_CML

    def _remaining(self, state: SlotState) -> Ints:
        """Return the kinds that remain of a set after a host of kind q shows its contributions `[C, M, Q]`."""
        kinds = len(self.rules.worth_QSK)
        shown_CSQ = np.where(state.measured[:, :, None], self.rules.worth_of(state), 0.0)
        alike_CQQ = (shown_CSQ[:, :, :, None] == shown_CSQ[:, :, None, :]).all(axis=1)
        bits_CQ = alike_CQQ @ (1 << np.arange(kinds))
        return np.arange(2**kinds)[None, :, None] & bits_CQ[:, None, :]


def _best(gain_CML: Float64Array, next_AC: Ints) -> tuple[Float64Array, npt.NDArray[np.int16]]:
    """Return the value of the best action in each belief before a step, and this action, the first of several.

    Args:
        gain_CML: value after the step, by the configuration after it.
        next_AC: that configuration, by action and configuration before the step; -1 where the action is not legal.
    """
    shape = (next_AC.shape[1], *gain_CML.shape[1:])
    value_CML, best_CML = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int16)
    for action, next_C in enumerate(next_AC):  # one by one: the values of all actions would not fit into memory
        (legal_C,) = np.nonzero(next_C >= 0)
        before_CML, after_CML = value_CML[legal_C], gain_CML[next_C[legal_C]]
        better_CML = after_CML > before_CML
        value_CML[legal_C] = np.where(better_CML, after_CML, before_CML)
        best_CML[legal_C] = np.where(better_CML, np.int16(action), best_CML[legal_C])
    return value_CML, best_CML


def _counts(total: int, slots: int) -> Ints:
    """Return every way to distribute a number of lights over the slots `[L, S]`."""
    return np.array([row for row in product(range(total + 1), repeat=slots) if sum(row) == total])
