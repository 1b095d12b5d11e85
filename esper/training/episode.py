"""One episode of all hosts under a controller: what both training and evaluation do."""

# N hosts, S slots, T steps, H heads

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.agent.base import Controller, Decision
from esper.agent.scripted.replay import EMPTY
from esper.env.actions import Head, Observation, Op
from esper.env.growth_env import GrowthEnv, as_observation
from esper.governor.base import Cause
from esper.lifecycle.stages import LIVE, Stage
from esper.reward.audit import Audit, Auditor
from esper.reward.signals import StepSignals
from esper.reward.table import SHAPING
from esper.seeding import stream

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of N hosts, as the controller lived it."""

    observation: Observation
    decision: Decision
    reward_N: FloatArray
    terminated_N: npt.NDArray[np.bool_]
    is_init_N: npt.NDArray[np.bool_]
    """Did a (sub-)episode start with this step?"""
    signals: StepSignals
    """What it is paid for."""


@dataclass(kw_only=True, slots=True)
class Episode:
    """What came of an episode, host by host."""

    return_N: FloatArray
    """Undiscounted sum of rewards [pp], without the shaping potential that a rollback charges a second time."""
    modes: Mapping[str, slice] = field(default_factory=lambda: dict[str, slice]())
    """Which hosts are paid by which mode; empty where all are paid alike."""
    audit: Audit | None = None
    """Whether what was paid is what was meant; known at the end."""
    terms: dict[str, float] = field(default_factory=lambda: dict[str, float]())
    """Mean over hosts of what each term paid [pp]."""
    first_accuracy_N: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    signals: StepSignals | None = None
    """The last step."""
    ops: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Op), np.int64))
    """How often each operation was carried out."""
    fossilized: int = 0
    """Seeds that were kept."""
    pruned: int = 0
    """Seeds that were removed, roll-backs apart."""
    causes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Cause), np.int64))
    """How often the governor gave each verdict."""
    suspect: int = 0
    """Host epochs after which something was suspect, roll-backs apart."""
    vetoed: int = 0
    """Steps of a host in which the governor withheld an operation that would have been legal."""
    retired: int = 0
    """Hosts that were given up before the end."""
    samples: int = 0
    """Training samples in a host epoch."""
    seconds: float = 0.0
    """How long it took."""
    act_seconds: float = 0.0
    """How much of that the controller took."""
    blueprints: tuple[str, ...] = ()
    """Names of the blueprints."""
    instance: list[str] = field(default_factory=lambda: list[str]())
    kept_NS: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Blueprint of the fossil in each slot at the end, -1 where there is none."""
    blend_NS: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Its `Blend`."""
    committed: dict[str, npt.NDArray[Any]] = field(default_factory=lambda: dict[str, npt.NDArray[Any]]())
    """What each committed network costs, host and fossils `[N]`: `params`, `flops` of a sample, and `latency` [s], NaN where it
    was not measured."""
    training_flops_N: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """FLOPs that training each host took, its seeds included; see `Flops.training`."""
    measuring_flops_N: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """FLOPs that validating it took, counterfactuals included."""
    test_accuracy_N: FloatArray | None = None
    """Accuracy of what was committed, on the test part [pp], where the environment measures it."""

    @property
    def params_N(self) -> npt.NDArray[np.int64]:
        """Parameters of the seeds a host holds at the end."""
        assert self.signals is not None
        return self.signals.params_NS.sum(axis=1)

    @property
    def kept_params_N(self) -> npt.NDArray[np.int64]:
        """Parameters of the seeds a host kept, which are part of what it committed; a seed that is only held is not."""
        assert self.signals is not None
        return self.committed["params"] - self.signals.host_params

    def metrics(self) -> dict[str, float]:
        """Values for telemetry, by tag."""
        signals = self.signals
        assert signals is not None
        hosts, steps = len(self.return_N), int(self.ops.sum()) / len(self.return_N)
        values = {
            "policy/return": self.return_N.mean(),
            "host/accuracy": _mean(signals.accuracy_N),
            "host/accuracy_gain": _mean(signals.accuracy_N - self.first_accuracy_N),
            "host/loss": _mean(signals.loss_N),
            "host/committed_accuracy": _mean(signals.worth.committed_accuracy_N),
            "host/parameters_grown": self.params_N.mean(),
            "host/parameters_committed": self.committed["params"].mean(),
            "host/flops_committed": self.committed["flops"].mean(),
            "host/latency_committed": self.committed["latency"].mean(),
            "host/training_flops": self.training_flops_N.mean(),
            "host/measuring_flops": self.measuring_flops_N.mean(),
            "host/seeds_germinated": self.ops[Op.GERMINATE] / hosts,
            "host/seeds_fossilized": self.fossilized / hosts,
            "host/seeds_pruned": self.pruned / hosts,
            "governor/rollbacks_nonfinite": self.causes[Cause.NONFINITE],
            "governor/rollbacks_divergence": self.causes[Cause.DIVERGENCE],
            "governor/rollbacks_lobotomy": self.causes[Cause.LOBOTOMY],
            "governor/rollbacks_decline": self.causes[Cause.DECLINE],
            "governor/suspect": self.suspect,
            "governor/vetoed": self.vetoed,
            "governor/retired": self.retired,
            "time/rollout_seconds": self.seconds,
            "time/act_seconds": self.act_seconds,
            "time/host_epochs_per_second": hosts * steps / self.seconds,
            "time/samples_per_second": hosts * steps * self.samples / self.seconds,
        }
        values |= {f"host/stage_{stage.name.lower()}": (signals.after.stage == stage).sum() / hosts for stage in Stage}
        values |= {f"action/{op.name.lower()}": self.ops[op] / self.ops.sum() for op in Op}
        values |= {f"reward/{name}": paid for name, paid in self.terms.items()} | self._worths(signals)
        values |= {f"mode/{name}": self.return_N[rows].mean() for name, rows in self.modes.items()}
        values |= {f"audit/{name}": value for name, value in asdict(self.audit).items()} if self.audit else {}
        return {tag: float(value) for tag, value in values.items()}

    def _worths(self, signals: StepSignals) -> dict[str, float]:
        """What seeds were worth at the end, NaN where it was not measured; hosts that were rolled back then do not count."""
        seen, healthy_N, after = signals.worth, ~signals.rolled_back_N, signals.after
        pair_SS = np.triu(np.ones(seen.interaction_NSS.shape[1:], np.bool_), 1)
        values = {
            "host/all_off_accuracy": _mean(seen.all_off_accuracy_N[healthy_N]),
            "host/solo_contribution": _mean(seen.solo_NS[healthy_N]),
            "host/interaction": _mean(seen.interaction_NSS[healthy_N][:, pair_SS]),
            "host/shapley_error": _mean(seen.shapley_error_NS[healthy_N]),
        }
        shares = [seen.shapley_NS[healthy_N[:, None] & (after.blueprint == rank)] for rank in range(len(self.blueprints))]
        return values | {f"shapley/{name}": _mean(share) for name, share in zip(self.blueprints, shares, strict=True)}


def _mean(values_N: FloatArray) -> float:
    """Mean over what could be measured; NaN where there is nothing."""
    finite = values_N[np.isfinite(values_N)]
    return float(finite.mean()) if len(finite) else float("nan")


def play(
    env: GrowthEnv,
    controller: Controller,
    *,
    greedy: bool = False,
    record: Callable[[Transition], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Episode:
    """Runs the episode that the environment stands at the start of, to its end.

    The noise of the controller's choices comes from a stream for each host, so that a host's actions do not
    depend on how many others there are, up to float rounding.

    Args:
        greedy: take the most probable actions instead of drawn ones.
        record: called with every transition.
        progress: called with the steps done and T, before the first step too.
    """
    begun = time.perf_counter()
    num_hosts, num_steps = env.num_envs, env.num_steps
    names = ((env.root, "action", env.split, env.episode, host) for host in range(num_hosts))
    uniform_TNH = np.stack([stream(*name).random((num_steps, len(Head))) for name in names], axis=1)
    none_NS = np.full((num_hosts, env.layout.num_slots), EMPTY)
    episode = Episode(
        return_N=np.zeros(num_hosts, np.float32),
        first_accuracy_N=env.accuracy_NH[:, 0].copy(),
        blueprints=env.layout.blueprint_names,
        kept_NS=none_NS,
        blend_NS=np.zeros_like(none_NS),
        modes=env.reward.groups,
    )
    auditor = Auditor()
    observation, state = as_observation(env.observation()), controller.start(num_hosts)
    is_init_N = np.ones(num_hosts, dtype=np.bool_)
    info: dict[str, Any] = {}
    for step in range(num_steps):
        if progress:
            progress(step, num_steps)
        asked = time.perf_counter()
        decision = controller.act(observation, state, is_init=is_init_N, uniform=uniform_TNH[step], greedy=greedy)
        episode.act_seconds += time.perf_counter() - asked
        arrays, reward_N, terminated_N, _, info = env.step(decision.action)
        if record:
            record(Transition(observation, decision, reward_N, terminated_N, is_init_N, info["signals"]))
        _count(episode, info, reward_N)
        auditor.see(info["signals"], info["components"])
        observation, state, is_init_N = as_observation(arrays), decision.state, terminated_N
    episode.audit = auditor.report(episode.return_N, info["signals"].worth.committed_accuracy_N, episode.modes)
    _close(episode, env, info["final_info"])
    episode.seconds = time.perf_counter() - begun
    if progress:
        progress(num_steps, num_steps)
    return episode


def _close(episode: Episode, env: GrowthEnv, final: dict[str, Any]) -> None:
    """What the environment says at the end."""
    episode.instance, episode.test_accuracy_N = final["instance"], final.get("test_accuracy")
    episode.training_flops_N, episode.measuring_flops_N = final["training_flops"], final["measuring_flops"]
    episode.committed = env.costs.committed(episode.kept_NS, episode.blend_NS)
    episode.samples = env.sampler.samples_per_epoch


def _count(episode: Episode, info: dict[str, Any], reward_N: FloatArray) -> None:
    """Adds a step to the episode."""
    signals: StepSignals = info["signals"]
    restored_N = info["restored_potential"]  # the next sub-episode charges it again, which is no loss of the host
    episode.return_N += (reward_N + restored_N).astype(np.float32)
    for name, paid_N in info["components"].items():
        reported_N = paid_N + restored_N if name == SHAPING else paid_N
        episode.terms[name] = episode.terms.get(name, 0.0) + float(reported_N.mean())
    episode.ops += np.bincount(signals.op_N, minlength=len(Op))
    live = signals.before.within(*LIVE)
    episode.fossilized += int((live & signals.after.within(Stage.FOSSILIZED)).sum())
    episode.pruned += int((live & signals.after.within(Stage.PRUNED)).sum())
    episode.causes += np.bincount(info["cause"], minlength=len(Cause))
    episode.suspect += int(info["suspect"].sum())
    episode.vetoed += int(info["vetoed"].sum())
    episode.retired = int(info["retired"].sum())
    # A host that was rolled back has the fossils of its last healthy step again.
    healthy_N1, after = ~signals.rolled_back_N[:, None], signals.after
    kept_NS = np.where(after.within(Stage.FOSSILIZED), after.blueprint, EMPTY)
    episode.kept_NS = np.where(healthy_N1, kept_NS, episode.kept_NS)
    episode.blend_NS = np.where(healthy_N1, after.blend, episode.blend_NS)
    episode.signals = signals
