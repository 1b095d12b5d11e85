"""A growth problem without networks, whose optimal value is known: see `oracle`.

Seeds live by the real lifecycle, legality and actions, and a controller sees and does what it sees and does in `GrowthEnv`; only
training is replaced by a table. Every host has a hidden kind, which says what a seed of each blueprint is worth in each slot. In
every step one slot of each host lights up, more often than not the one that pays. A seed that is being blended in shows what it
contributes, without noise, and pays it as far as it is in; all seeds cost rent, and those that were kept pay once more at the
end.
"""

# N hosts, S slots, K blueprints, Q kinds, T steps, H heads, C configurations of a host's slots

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from esper.agent.base import Controller
from esper.buffer.rollout import Rollout
from esper.env.actions import EnvSpec, Head, HeadsConfig, Observation, Op, execute, legal_slots, legal_values, parameters_legal
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.slots import OneSeedConfig, SlotsConfig
from esper.lifecycle.stages import OCCUPIED, TAKES_PART, SlotState, Stage, empty
from esper.seeding import stream

Array = npt.NDArray[np.float64]
GATES, HEADS = GatesConfig(), HeadsConfig()
CONTRIBUTION_UNIT = 2.0
"""Worth that is seen as a contribution of 1."""
SLOT_FEATURES = ("light", *(stage.name.lower() for stage in Stage), "alpha", "stage_age", "contribution", "measured")


def default_worth() -> Array:
    """Three kinds that pay in one slot each, for one blueprint, and a barren one."""
    worth_QSK = np.zeros((4, 3, 2))
    for kind, blueprint in enumerate((0, 1, 0)):
        worth_QSK[kind, kind] = 0.3
        worth_QSK[kind, kind, blueprint] = 1.0
    return worth_QSK


@dataclass(frozen=True, kw_only=True, slots=True)
class Puzzle:
    """The rules."""

    num_steps: int = 10
    """T."""
    worth_QSK: Array = field(default_factory=default_worth)
    """What a seed pays in a step at alpha 1, by the host's kind. All kinds are equally frequent."""
    keeping: float = 4.0
    """How many times that a seed pays at the end where it was kept."""
    rent_K: tuple[float, ...] = (0.05, 0.1)
    """What a seed costs in every step that it is there."""
    candour: float = 0.7
    """Chance that the light is on at the slot that pays best; on a barren host it is on anywhere."""
    slots: SlotsConfig = field(default_factory=lambda: OneSeedConfig(min_prune_age=1, embargo=1))

    def __post_init__(self) -> None:
        assert self.slots.prune_below is None, "what may be done must not depend on the hidden kind"
        assert self.slots.max_seeds == 1

    @property
    def light_QS(self) -> Array:
        """Chance of each slot to light up."""
        kinds, slots, _ = self.worth_QSK.shape
        best_QS = self.worth_QSK.max(axis=2)
        if slots == 1:
            return np.ones((kinds, 1))
        light_QS = np.full((kinds, slots), (1 - self.candour) / (slots - 1))
        light_QS[np.arange(kinds), best_QS.argmax(axis=1)] = self.candour
        return np.where(best_QS.any(axis=1, keepdims=True), light_QS, 1 / slots)

    def spec(self, num_hosts: int) -> EnvSpec:
        _, slots, blueprints = self.worth_QSK.shape
        return EnvSpec(
            num_hosts=num_hosts,
            num_steps=self.num_steps,
            slot_names=tuple(f"r0c{slot}" for slot in range(slots)),
            blueprint_names=tuple(f"kind{blueprint}" for blueprint in range(blueprints)),
            seed_params=tuple((int(100 * rent),) * slots for rent in self.rent_K),
            feature_names=("time_left",),
            slot_feature_names=SLOT_FEATURES,
        )

    def legal(self, state: SlotState) -> npt.NDArray[np.bool_]:
        """`[C, O, S]`."""
        chosen_S = np.ones(state.stage.shape[1], dtype=np.bool_)
        return legal_slots(state, self.slots, chosen_S, GATES, HEADS)

    def grow(self, state: SlotState, action_CH: npt.NDArray[np.int64]) -> SlotState:
        """One step of configurations under legal actions, in which every seed that is in is measured."""
        state = lifecycle.tick(execute(state, action_CH, self.slots), self.slots, GATES)
        return replace(state, measured=state.measured | (state.within(*TAKES_PART) & (state.alpha > 0)))

    def worth_of(self, state: SlotState) -> Array:
        """`[C, S, Q]`: what the seed in each slot is worth on a host of each kind; 0 where there is none."""
        slot_S = np.arange(state.stage.shape[1])
        worth_CSQ = np.moveaxis(self.worth_QSK, 0, 2)[slot_S, state.blueprint]
        return np.where(state.within(*OCCUPIED)[:, :, None], worth_CSQ, 0.0)

    def pay(self, state: SlotState, *, last: bool) -> Array:
        """`[C, Q]`: what is paid for a step that led to these configurations, on a host of each kind."""
        rent_CS = np.where(state.within(*OCCUPIED), np.array(self.rent_K)[state.blueprint], 0.0)
        in_CS = np.where(state.within(*TAKES_PART), state.alpha, 0.0)
        times_CS = in_CS + self.keeping * last * state.within(Stage.FOSSILIZED)
        return (times_CS[:, :, None] * self.worth_of(state)).sum(axis=1) - rent_CS.sum(axis=1)[:, None]


class Sandbox:
    """N hosts in lockstep; as in `GrowthEnv`, the last step of an episode returns the first observation of the next."""

    def __init__(self, puzzle: Puzzle, *, num_hosts: int, seed: int = 0, twins: int = 1) -> None:
        """
        Args:
            twins: so many hosts, side by side, are of one kind and have the same lights.
        """
        self.puzzle, self.root, self.twins, self.episode = puzzle, seed, twins, -1
        self.spec = puzzle.spec(num_hosts)
        self._legal_values = legal_values(num_hosts, len(puzzle.rent_K), HEADS, puzzle.slots)

    def reset(self, episode: int | None = None) -> Observation:
        """New hosts, which are named by root seed, episode and host (or group of twins), whatever their number."""
        self.episode = self.episode + 1 if episode is None else episode
        hosts, puzzle = self.spec.num_hosts, self.puzzle
        names = ((self.root, "sandbox_host", self.episode, host // self.twins) for host in range(hosts))
        uniform_NT = np.stack([stream(*name).random(puzzle.num_steps + 1) for name in names])
        self.kind_N = (uniform_NT[:, 0] * len(puzzle.worth_QSK)).astype(np.int64)
        cdf_N1S = puzzle.light_QS.cumsum(axis=1)[self.kind_N][:, None]
        self.light_NT = (cdf_N1S[:, :, :-1] <= uniform_NT[:, 1:, None]).sum(axis=2)
        self.time, self.state = 0, empty(hosts, self.spec.num_slots)
        return self.observation()

    def step(self, action_NH: npt.NDArray[np.int64]) -> tuple[Observation, npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Acts, grows, pays: observation, reward and end of the episode of each host. What is illegal is waiting."""
        hosts, host_N = self.spec.num_hosts, np.arange(self.spec.num_hosts)
        allowed_N = self.puzzle.legal(self.state)[host_N, action_NH[:, Head.OP], action_NH[:, Head.SLOT]]
        allowed_N &= parameters_legal(action_NH, self._legal_values, self.spec.head_sizes)
        self.op_N = np.where(allowed_N, action_NH[:, Head.OP], Op.WAIT)
        action_NH = np.concatenate([self.op_N[:, None], action_NH[:, Head.SLOT :]], axis=1)
        self.state = self.puzzle.grow(self.state, action_NH)
        worth_NS = self.puzzle.worth_of(self.state)[host_N, :, self.kind_N]
        shown_NS = np.where(self.state.measured, worth_NS, 0.0).astype(np.float32)
        self.state = replace(self.state, contribution=shown_NS)
        self.time += 1
        last = self.time == self.puzzle.num_steps
        reward_N = self.puzzle.pay(self.state, last=last)[host_N, self.kind_N].astype(np.float32)
        return self.reset() if last else self.observation(), reward_N, np.full(hosts, last)

    def observation(self) -> Observation:
        state, puzzle = self.state, self.puzzle
        light_NS = np.eye(self.spec.num_slots)[self.light_NT[:, self.time]]
        columns = [
            light_NS,
            *(state.stage == stage for stage in Stage),
            state.alpha,
            state.stage_age / puzzle.num_steps,
            state.contribution / CONTRIBUTION_UNIT,
            state.measured,
        ]
        return Observation(
            features=np.full((self.spec.num_hosts, 1), 1 - self.time / puzzle.num_steps, np.float32),
            slots=np.stack(columns, axis=2).astype(np.float32),
            blueprints=np.where(state.blueprint < 0, len(puzzle.rent_K), state.blueprint),
            legal_slots=puzzle.legal(state),
            legal_values=self._legal_values.copy(),
        )


def play(env: Sandbox, controller: Controller, *, episode: int | None = None, greedy: bool = False) -> Rollout:
    """An episode of every host; what a host's choices are drawn with is named as the host is."""
    spec = env.spec
    observation = env.reset(episode)
    names = ((env.root, "action", env.episode, host) for host in range(spec.num_hosts))
    uniform_TNH = np.stack([stream(*name).random((spec.num_steps, len(Head))) for name in names], axis=1)
    rollout, state = Rollout(spec), controller.start(spec.num_hosts)
    is_init = np.ones(spec.num_hosts, dtype=np.bool_)
    for uniform_NH in uniform_TNH:
        decision = controller.act(observation, state, is_init=is_init, uniform=uniform_NH, greedy=greedy)
        following, reward, terminated = env.step(decision.action)
        rollout.add(observation, decision, reward=reward, terminated=terminated, is_init=is_init)
        observation, state, is_init = following, decision.state, terminated
    return rollout
