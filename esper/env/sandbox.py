"""The sandbox: a growth problem without networks, a thousand times faster than training hosts, with a known optimum.

Lifecycle, legality and actions of seeds are the real ones; only training is replaced by a table. Every host has a hidden kind,
which determines the worth of a seed of each blueprint in each slot. In every step one slot of each host lights up, most often
the one that pays. A blended seed shows its contribution, without noise, and pays it in proportion to alpha; every seed costs
rent, and a fossilized one pays a bonus at the end. `sandbox_optimum` computes the best expected return.
"""

# K blueprints, Q kinds, N hosts, S slots, T steps, H heads, O operations, C configurations of a host's slots

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from esper.env.actions import Head, HeadsConfig
from esper.env.base import EnvConfig, Environment, EnvParts, EpisodeRecord
from esper.env.sandbox_optimum import Optimum
from esper.env.sandbox_rules import CONTRIBUTION_UNIT, KEEP_BONUS, LIGHT_ACCURACY, SandboxRules
from esper.env.spec import Array, one_each
from esper.lifecycle.roles import Fossils
from esper.lifecycle.slots import Isolation, SlotsConfig
from esper.lifecycle.stages import Stage, empty
from esper.ranges import check_ranges
from esper.seeding import stream
from esper.task.instances import Split

LONGEST = 24
"""Longest episode whose optimum is computed within about ten seconds [host epochs]."""
BELIEFS = 3e3, 3.8
"""Memory of the optimum [bytes]: a factor, and the exponent of the number of steps. Measured with 10, 20 and 24 steps."""


@dataclass(kw_only=True, slots=True)
class SandboxConfig(EnvConfig):
    """An exactly solvable environment without host training, for testing controllers: three slots, two blueprints, four kinds."""

    ignores: ClassVar[tuple[str, ...]] = (
        "task",
        "host",
        "optimiser",
        "blueprint",
        "devices",
        "cluster",
        "gates",
        "reward",
        "reward_mode",
        "governor",
        "counterfactuals",
    )
    has_hosts: ClassVar[bool] = False
    light_accuracy: float = LIGHT_ACCURACY
    """Probability that the light, a hint in the observation, is at the slot that pays best, in [1/3, 1]. Higher: hosts are easier
    to tell apart."""
    keep_bonus: float = KEEP_BONUS
    """Multiple of its worth that a fossilized seed pays at the end, at least 0. Higher: committing matters more."""
    rent_scale: float = 1.0
    """Factor on the rent of all seeds, at least 0. Higher: fewer seeds pay for themselves."""

    def __post_init__(self) -> None:
        if not 1 / 3 <= self.light_accuracy <= 1:
            raise ValueError(f"env.light_accuracy must be in [1/3, 1], got {self.light_accuracy}: 1/3 carries no information")
        check_ranges("env", self, {"[0, inf)": ["keep_bonus", "rent_scale"]})

    def blueprint_names(self, chosen: Sequence[str]) -> Sequence[str]:
        return SandboxRules().layout(1).blueprint_names

    def check_run(self, *, slots: SlotsConfig, heads: HeadsConfig, steps: int) -> None:
        slots.chosen(SandboxRules().slot_names)
        if slots.prune_below is not None:
            raise ValueError("env=sandbox needs slots.prune_below=null: legality must not depend on the hidden kind")
        if slots.switchable:
            raise ValueError("env=sandbox needs slots.switchable=false: its seeds are worth the same at every time")
        idle = {"learning_epochs": 0, "fossils": Fossils.learning, "isolation": Isolation.training}
        for key, default in idle.items():
            if (value := getattr(slots, key)) != default:
                raise ValueError(f"env=sandbox trains no seeds, so slots.{key}={value} has no effect: leave it out")
        if slots.max_seeds != 1:
            raise ValueError(f"env=sandbox needs slots.max_seeds=1, got {slots.max_seeds}: choose slots=one_seed")
        if heads.pinned != HeadsConfig().pinned:
            raise ValueError("env=sandbox fixes every head at its default: leave agent.heads out")
        if steps > LONGEST:
            raise ValueError(f"steps={steps} is too long for the optimum of env=sandbox: set steps to at most {LONGEST}")

    def memory(self, steps: int) -> float:
        factor, exponent = BELIEFS
        return factor * steps**exponent

    def build(self, parts: EnvParts) -> "SandboxEnv":
        rules = SandboxRules(
            num_steps=parts.num_steps,
            light_accuracy=self.light_accuracy,
            keep_bonus=self.keep_bonus,
            rent_K=tuple(self.rent_scale * rent for rent in SandboxRules().rent_K),
            slots=parts.slots,
        )
        return SandboxEnv(rules, num_hosts=parts.num_hosts, seed=parts.seed, split=parts.split, num_twins=parts.num_twins)


@dataclass(kw_only=True, slots=True)
class SandboxEpisode(EpisodeRecord):
    """The record of an episode in the sandbox."""

    optimum: float
    """Expected return of the best controller."""

    def metrics(self) -> dict[str, float]:
        mean, optimum = float(self.return_N.mean()), self.optimum
        share = mean / optimum if optimum > 0 else float("nan")
        return EpisodeRecord.metrics(self) | {"sandbox/optimum": optimum, "sandbox/share_of_optimum": share}

    def summary(self) -> list[tuple[str, str]]:
        metrics = self.metrics()
        share = 100 * metrics["sandbox/share_of_optimum"]
        return [("optimum", f"{self.optimum:.3f} points per host; the last update reached {share:.1f} % of it")]


@cache
def _optimum(rules: bytes) -> float:
    """Return the expected return of the best controller under pickled rules; the runs of a sweep share them."""
    return Optimum(pickle.loads(rules)).value


class SandboxEnv(Environment):
    """N hosts in lockstep. The last step of an episode returns the first observation of the next, as in `GrowthEnv`."""

    def __init__(
        self,
        rules: SandboxRules,
        *,
        num_hosts: int,
        seed: int = 0,
        split: Split = Split.TRAINING,
        num_twins: int = 1,
    ) -> None:
        """Build the environment; `num_twins` consecutive hosts have the same kind and lights."""
        super().__init__(rules.layout(num_hosts), seed=seed, split=split, heads=HeadsConfig(), slots=rules.slots)
        self.rules, self.num_twins = rules, num_twins
        self.chosen_S = rules.chosen_S

    @cached_property
    def optimum(self) -> float:
        """Expected return of the best controller."""
        return _optimum(pickle.dumps(self.rules))

    # ---- Gymnasium's interface

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Draw new hosts; root seed, split, episode and host (or group of twins) determine each."""
        self.begin(seed, options)
        rules = self.rules
        split = () if self.split is Split.TRAINING else (self.split,)
        names = ((*split, self.episode, host // self.num_twins) for host in range(self.num_envs))
        uniform_NT = np.stack([stream(self.root, "sandbox_host", *name).random(rules.num_steps + 1) for name in names])
        self.kind_N = (uniform_NT[:, 0] * len(rules.worth_QSK)).astype(np.int64)
        cdf_N1S = rules.light_QS.cumsum(axis=1)[self.kind_N][:, None]
        self.light_NT = (cdf_N1S[:, :, :-1] <= uniform_NT[:, 1:, None]).sum(axis=2)
        self.time, self.state = 0, empty(self.num_envs, self.layout.num_slots)
        self.shown = self.state
        return self.observation(), {}

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[dict[str, Array], Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """Run one step; an illegal action has no effect."""
        action_NH, _ = self.permitted(actions)
        before, rules, host_N = self.state, self.rules, np.arange(self.num_envs)
        self.op_N, self.state = action_NH[:, Head.OP], rules.grow(before, action_NH)
        worth_NS = rules.worth_of(self.state)[host_N, :, self.kind_N]
        self.state = replace(self.state, contribution=np.where(self.state.measured, worth_NS, 0.0).astype(np.float32))
        self.time += 1
        last = self.time == rules.num_steps
        reward_N = rules.reward(self.state, last=last)[host_N, self.kind_N].astype(np.float32)
        kept_NS = self.state.within(Stage.FOSSILIZED) & ~before.within(Stage.FOSSILIZED)
        info: dict[str, Any] = {"op": self.op_N, "fossilized": kept_NS.sum(axis=1)}
        terminated_N = np.full(self.num_envs, last)
        observation, ended = self.observation(), self.state
        if last:
            info["final_obs"], info["_final_obs"] = one_each(observation, terminated_N), terminated_N
            observation = self.reset()[0] if self.autoreset else observation
        self.shown = ended
        return observation, reward_N, terminated_N, np.zeros_like(terminated_N), info

    # ---- what the trainer also needs

    def legal_slots(self) -> npt.NDArray[np.bool_]:
        return self.rules.legal(self.state)

    def observation(self) -> dict[str, Array]:
        """Return the current observation of every host, by the names of `Observation`."""
        state, rules = self.state, self.rules
        shown = min(self.time, rules.num_steps - 1)  # after the last step, the lights of that step
        light_NS = np.eye(self.layout.num_slots)[self.light_NT[:, shown]]
        columns = [
            light_NS,
            *(state.stage == stage for stage in Stage),
            state.alpha,
            state.stage_age / rules.num_steps,
            state.contribution / CONTRIBUTION_UNIT,
            state.measured,
        ]
        return {
            "features": np.full((self.num_envs, 1), 1 - self.time / rules.num_steps, np.float32),
            "slots": np.stack(columns, axis=2).astype(np.float32),
            "blueprints": np.where(state.blueprint < 0, len(rules.rent_K), state.blueprint),
            "legal_slots": self.legal_slots().astype(np.int8),
            "legal_values": self._legal_values.astype(np.int8),
        }

    def record(self) -> SandboxEpisode:
        """Return an empty record of the episode that starts now."""
        kinds = [f"kind {kind}" for kind in self.kind_N.tolist()]
        return SandboxEpisode(return_N=np.zeros(self.num_envs, np.float32), instance=kinds, optimum=self.optimum)
