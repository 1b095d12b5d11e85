"""The record of an episode of growing hosts: returns, events, costs, and metrics."""

# N hosts, S slots

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.env.base import EpisodeRecord
from esper.governor.base import Cause
from esper.lifecycle.stages import EMPTY, LIVE, OCCUPIED, FloatArray, Stage
from esper.measure.costs import Costs
from esper.measure.seed_log import SeedLog, SlotsAfter, grouped
from esper.phases import PhaseTimes
from esper.reward.audit import Auditor
from esper.reward.signals import StepSignals
from esper.reward.table import SHAPING
from esper.task.events import Event
from esper.task.kinds import condensed

_NOT_IN_TAGS = re.compile(r"[^a-z0-9_]+")


@dataclass(kw_only=True, slots=True)
class Episode(EpisodeRecord):
    """The results of an episode, host by host."""

    modes: Mapping[str, slice] = field(default_factory=lambda: dict[str, slice]())
    """Hosts by reward mode; empty for a single mode."""
    terms: dict[str, float] = field(default_factory=lambda: dict[str, float]())
    """Sum over the steps so far of each term of the reward, mean over hosts [points]."""
    first_accuracy_N: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    """Accuracy of the newborn hosts [%]."""
    signals: StepSignals | None = None
    """Signals of the last step."""
    tally: Counter[str] = field(default_factory=Counter[str])
    """Number of pruned seeds (rollbacks excluded), of rollbacks by cause, of suspect or vetoed host epochs, of overflows,
    and of hosts that are retired now."""
    twins: int = 1
    """Number of consecutive hosts that are twins, and hence one sample."""
    samples: int = 0
    """Number of training samples per host epoch."""
    blueprints: tuple[str, ...] = ()
    """Names of the blueprints."""
    slots: tuple[str, ...] = ()
    """Names of the slots."""
    log: SeedLog = field(default_factory=SeedLog)
    """Every seed of the episode."""
    host_norm_N: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    """Gradient norm of each host, summed over the host epochs so far in which it is finite; see `StepSignals.host_norm_N`."""
    norms_N: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))
    """Number of these host epochs."""
    loss_scale: float = math.nan
    """Lowest loss scale among the hosts after the last step; NaN without loss scales."""
    costs: Costs | None = None
    """Costs of hosts and seeds."""
    times: PhaseTimes = field(default_factory=PhaseTimes)
    """Times of the environment's phases."""
    auditor: Auditor = field(default_factory=Auditor)
    audit: dict[str, float] = field(default_factory=dict[str, float])
    """Reward-hacking checks as metrics by tag; empty before the end."""
    kept_NS: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Blueprint of the fossil in each slot at the end, -1 for none."""
    blend_NS: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """`Blend` of each fossil."""
    alpha_NS: FloatArray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """Blend weight of each fossil at the end: 0 for one that is switched off."""
    params_N: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Parameters of all seeds of each host at the end `[N]`."""
    committed: dict[str, npt.NDArray[Any]] = field(default_factory=lambda: dict[str, npt.NDArray[Any]]())
    """Costs of each committed network, host and fossils `[N]`: `params`, `flops` per sample, and `latency` per sample [s], NaN if
    not measured."""
    training_flops_N: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """FLOPs of training each host with its seeds so far; see `Flops.training`."""
    measuring_flops_N: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """FLOPs of validating each host so far, counterfactuals included."""
    test_accuracy_N: FloatArray | None = None
    """Committed accuracy on the test split [%]; None if not measured."""
    timetable: list[Sequence[Event]] = field(default_factory=list[Sequence[Event]])
    """Events of each host; known only at the end."""
    online_N: FloatArray | None = None
    """Mean over the host epochs of the accuracy on the test split, with all seeds as they are [%]; None if not measured."""

    def add(self, info: Mapping[str, Any], reward_N: FloatArray) -> None:
        """Add one step. The return leaves out what shaping deducts although the host lost nothing: the potential of a snapshot a
        second time, after a rollback, and a part of every potential where `agent.gamma` is below 1."""
        signals: StepSignals = info["signals"]
        back_N = info["restored_potential"] + info["discounted_potential"]
        EpisodeRecord.add(self, info, (reward_N + back_N).astype(np.float32))
        for name, paid_N in info["components"].items():
            reported_N = paid_N + back_N if name == SHAPING else paid_N
            self.terms[name] = self.terms.get(name, 0.0) + float(reported_N.mean())
        pruned = signals.before.within(*LIVE) & signals.after.within(Stage.PRUNED) & signals.healthy_N1
        rollbacks = {f"rollbacks_{cause.name.lower()}": info["cause"] == cause for cause in Cause if cause}
        events = rollbacks | {name: info[name] for name in ("suspect", "vetoed")}
        self.tally.update({"pruned": int(pruned.sum())} | {name: int(which_N.sum()) for name, which_N in events.items()})
        self.tally["retired"] = int(info["retired"].sum())
        if "scale" in info:
            self.tally["overflows"] += int(info["overflows"].sum())
            self.loss_scale = float(np.fmin.reduce(info["scale"]))
        self.training_flops_N, self.measuring_flops_N = info["training_flops"], info["measuring_flops"]
        self.log.add(signals.num_steps - signals.steps_left, _slots(signals))
        finite_N, zero = np.isfinite(signals.host_norm_N), np.float32(0)
        norm_N = np.where(finite_N, signals.host_norm_N, zero)
        self.host_norm_N = norm_N + (self.host_norm_N if len(self.host_norm_N) else zero)
        self.norms_N = finite_N.astype(np.float32) + (self.norms_N if len(self.norms_N) else zero)
        self.signals = signals
        self.auditor.add(signals, info["components"])

    def close(self, info: Mapping[str, Any]) -> None:
        """Add the info of the last step, after `add`."""
        assert self.costs is not None
        assert self.signals is not None
        assert self.signals.final is not None
        final, state, self.phases = info["final_info"], self.signals.final, self.times.take()
        self.kept_NS = np.where(state.within(Stage.FOSSILIZED), state.blueprint, EMPTY)
        self.blend_NS, self.alpha_NS = state.blend, state.alpha
        self.params_N = self.costs.params.of(state).sum(axis=1)
        self.log.end(self.kept_NS)
        self.audit = self.auditor.report(self.return_N, info["signals"].effects.committed_accuracy_N, self.modes)
        self.instance, self.timetable, self.test_accuracy_N = final["instance"], final["timetable"], final.get("test_accuracy")
        self.online_N = final.get("online_accuracy")
        self.committed = self.costs.committed(self.kept_NS, self.blend_NS)

    def summary(self) -> list[tuple[str, str]]:
        """Return rows of name and text for the summary at the end of a run."""
        metrics, kept = self.metrics(), self.kept_params_N.mean()
        assert self.signals is not None
        grown = f"{metrics['host/parameters_grown']:.0f} in all seeds, {kept:.0f} in fossilized ones"
        where = f"at the end of the last update, mean per host of {self.signals.host_params:,} parameters"
        fallen = sum(count for name, count in self.tally.items() if name.startswith("rollbacks"))
        lost = [("rollbacks", f"{fallen} in the {int(self.ops.sum())} host epochs of the last update")] if fallen else []
        return [("parameters grown", f"{grown} {where}"), *lost]

    @property
    def kept_params_N(self) -> npt.NDArray[np.int64]:
        """Parameters of the fossils of each host at the end `[N]`."""
        assert self.signals is not None
        return self.committed["params"] - self.signals.host_params

    def metrics(self) -> dict[str, float]:
        """Return values for telemetry by tag."""
        signals = self.signals
        assert signals is not None
        assert signals.final is not None
        healthy_N = ~signals.rolled_back_N
        hosts, epochs_per_second = len(self.return_N), self.ops.sum() / self.seconds
        values = EpisodeRecord.metrics(self) | {
            "host/accuracy": _mean(signals.accuracy_N[healthy_N]),
            "host/accuracy_gain": _mean((signals.accuracy_N - self.first_accuracy_N)[healthy_N]),
            "host/loss": _mean(signals.loss_N[healthy_N]),
            "host/committed_accuracy": _mean(signals.effects.committed_accuracy_N),
            "host/parameters_grown": self.params_N.mean(),
            "host/parameters_committed": self.committed["params"].mean(),
            "host/flops_committed": self.committed["flops"].mean(),
            "host/latency_committed": self.committed["latency"].mean(),
            "host/training_flops": self.training_flops_N.mean(),
            "host/measuring_flops": self.measuring_flops_N.mean(),
            "host/seeds_pruned": self.tally["pruned"] / hosts,
            "host/loss_scale": self.loss_scale,
            "time/samples_per_second": self.samples * epochs_per_second,
        }
        values |= {f"governor/{name}": count for name, count in self.tally.items() if name != "pruned"}
        values |= {f"host/stage_{stage.name.lower()}": (signals.final.stage == stage).sum() / hosts for stage in Stage}
        values |= {f"reward/{tag_name(name)}": paid for name, paid in self.terms.items()} | self._effects(signals)
        values |= {f"mode/{tag_name(name)}": self.return_N[rows].mean() for name, rows in self.modes.items()}
        values |= self.audit | self._seeds() | self._gradients()
        return {tag: float(value) for tag, value in values.items()}

    def _effects(self, signals: StepSignals) -> dict[str, float]:
        """Return the counterfactual metrics of the last step, NaN if not measured; hosts rolled back in it are left out."""
        seen, healthy_N, after = signals.effects, ~signals.rolled_back_N, signals.after
        pair_SS = np.triu(np.ones(seen.interaction_NSS.shape[1:], np.bool_), 1)
        values = {
            "host/solo_contribution": _mean(seen.solo_NS[healthy_N]),
            "host/interaction": _mean(seen.interaction_NSS[healthy_N][:, pair_SS]),
            "host/shapley_error": _mean(seen.shapley_error_NS[healthy_N]),
        }
        shares = [seen.shapley_NS[healthy_N[:, None] & (after.blueprint == rank)] for rank in range(len(self.blueprints))]
        named = zip(self.blueprints, shares, strict=True)
        return values | {f"shapley/{tag_name(name)}": _mean(share) for name, share in named}

    def _seeds(self) -> dict[str, float]:
        """Return the statistics of seeds by blueprint, by slot and by kind of host."""
        kinds = [condensed(kind) for kind in self.instance]
        found = grouped(self.log.seeds, self.blueprints, self.slots, kinds, [host // self.twins for host in range(len(kinds))])
        return {
            f"seeds_{what}/{group}_{tag_name(name)}": value
            for (group, name), stats in found.items()
            for what, value in asdict(stats).items()
        }

    def _gradients(self) -> dict[str, float]:
        """Return the mean and the maximum over hosts of the gradient norm per epoch; empty if none is finite."""
        known_N = self.norms_N > 0
        if not known_N.any():
            return {}
        norm_N = self.host_norm_N[known_N] / self.norms_N[known_N]
        return {"host/gradient_norm": norm_N.mean(), "host/gradient_norm_max": norm_N.max()}


def tag_name(name: str) -> str:
    """Return the name of a blueprint, slot, kind, term or mode as part of a tag: "My-Block" as "my_block"."""
    return _NOT_IN_TAGS.sub("_", name.lower())


def _slots(signals: StepSignals) -> SlotsAfter:
    """Return the data of a step that `SeedLog` records."""
    after, effects = signals.after, signals.effects
    return SlotsAfter(
        blueprint_NS=np.where(after.within(*OCCUPIED), after.blueprint, EMPTY),
        kept_NS=after.within(Stage.FOSSILIZED),
        contribution_NS=effects.contribution_NS,
        contribution_error_NS=effects.contribution_error_NS,
        rolled_back_N=signals.rolled_back_N,
    )


def _mean(values_N: FloatArray) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    finite = values_N[np.isfinite(values_N)]
    return float(finite.mean()) if len(finite) else float("nan")
