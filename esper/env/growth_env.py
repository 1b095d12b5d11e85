"""Host training as a vectorised environment: N hosts in lockstep, one action each, one host epoch per step."""

# N hosts, S slots, H heads, O operations, K blueprints, V counterfactual variants, I samples of an epoch

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.env import observation as obs
from esper.env.actions import Head, Op, execute, legal_slots
from esper.env.base import EnvConfig, Environment, EnvParts, Hparam
from esper.env.episode import Episode
from esper.env.foresight import feature_tables, foresight
from esper.env.guard import Guard
from esper.env.spec import Array, EnvSpec, one_each
from esper.growth.grown import GrownNetwork, KeptSeed
from esper.hosts.base import slot_specs
from esper.lifecycle import operations as lifecycle
from esper.lifecycle.gates import gradient_ratio
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import LIVE, OCCUPIED, SlotState, Stage, empty
from esper.measure.costs import Meter, Price, count_costs
from esper.measure.counterfactuals import SeedEffects, seed_effects, settings
from esper.measure.latency import BATCH
from esper.measure.plans import Plan
from esper.notices import notice
from esper.pool.base import PoolParts
from esper.pool.host_sampler import HostSampler
from esper.pool.pretrained import Pretrained
from esper.pool.shard import TrainReport
from esper.reward.signals import StepSignals
from esper.seeds.blueprints.base import is_informed
from esper.seeds.blueprints.registry import check_blueprints
from esper.task.base import Task
from esper.task.loading import load_task

PROBE_EVERY = 2
"""Measure growth potential every N host epochs. Lower: fresher, costlier; see benchmarks/README.md."""


@dataclass(kw_only=True, slots=True)
class GrowthConfig(EnvConfig):
    """Host networks that train in parallel, observed and grown by the controller."""

    potential: bool = True
    """If true, growth potential is measured and observed. If false, it is unknown, and episodes take less time."""
    timetable: bool = False
    """If true, the observation includes which events happen to a host, and for how long: for oracles such as
    agent=event_oracle."""

    def build(self, parts: EnvParts) -> "GrowthEnv":
        return GrowthEnv(load_task(parts.task, parts.host), parts, self)


class GrowthEnv(Environment):
    """N hosts that a controller observes and grows.

    A step carries out one action per host, trains every host for an epoch, measures it with and without each of its seeds, has
    the governor judge it, and computes the reward. An episode is T steps, a finite horizon: its end is `terminated`. The
    transition of a host that is rolled back is `terminated` with the penalty, and the host continues from its snapshot, without
    live seeds, as a new sub-episode. Both are `SAME_STEP` resets in Gymnasium's terms: the returned observation is the first of
    the next (sub-)episode, and `info["final_obs"]` holds the last of the one that ended. `truncated` is never set.

    The same root seed, split and episode number give the same hosts, data orders and newborn seeds, whatever the number of hosts.
    """

    def __init__(self, task: Task, parts: EnvParts, config: GrowthConfig) -> None:
        self.task, self.slots, self.gates, self.heads = task, parts.slots, parts.gates, parts.heads
        self.counterfactuals, self.test_at_end, self.test_online = parts.counterfactuals, parts.test_at_end, parts.test_online
        self.reward = (parts.reward.build_training if parts.trains else parts.reward.build)(gamma=parts.gamma)
        self.governor = parts.governor.build(chance_loss=task.chance_loss)
        self.guard = Guard(self.governor)
        self.sampler = HostSampler(
            task=task, split=parts.split, num_hosts=parts.num_hosts, twins=parts.num_twins, epochs=parts.num_steps
        )
        example, blueprints = task.host(parts.seed, parts.split, 0, 0), tuple(parts.blueprints.values())
        specs = slot_specs(example)
        self.costs = count_costs(example, blueprints, task.data.inputs(task.data.valid_x[:1]))
        self.host_params, self.chance_loss = int(self.costs.params.host), task.chance_loss
        incubation, frozen = self.slots.incubation, parts.host.frozen
        self.meter = Meter(self.costs.flops, incubation, frozen=frozen)
        of_pool = PoolParts(
            task=task,
            blueprints=blueprints,
            devices=parts.devices,
            num_hosts=parts.num_hosts,
            optimiser=parts.optimiser,
            incubation=incubation,
            frozen=frozen,
        )
        self.pool = parts.cluster.build(of_pool, self.meter)
        self.config, self._kinds = config, tuple(parts.task.events.kinds) if config.timetable else ()
        self._tables = feature_tables(self._kinds, tuple(parts.blueprints))
        self.pretrained = (
            Pretrained(task=task, host=parts.host, optimiser=parts.optimiser, devices=parts.devices)
            if task.config.pretrain
            else None
        )
        layout = EnvSpec(
            num_hosts=parts.num_hosts,
            num_steps=parts.num_steps,
            slot_names=tuple(spec.name for spec in specs),
            blueprint_names=tuple(parts.blueprints),
            seed_params=tuple(tuple(row) for row in self.costs.params.seed_KS.tolist()),
            feature_names=self._tables[0].names,
            slot_feature_names=self._tables[1].names,
            max_seeds=self.slots.max_seeds,
            feature_ranges=self._tables[0].ranges,
            slot_feature_ranges=self._tables[1].ranges,
        )
        super().__init__(layout, seed=parts.seed, split=parts.split, heads=self.heads, slots=self.slots)
        self._informed_K = np.array([is_informed(blueprint) for blueprint in blueprints])
        self.chosen_S = self.slots.chosen(self.layout.slot_names)
        self.max_seeds = self.slots.max_seeds or int(self.chosen_S.sum())
        used = [spec for spec, used in zip(specs, self.chosen_S, strict=True) if used]
        check_blueprints(parts.blueprints, used, "this task")
        self.signals: StepSignals | None = None
        self.take_networks: tuple[int, ...] = ()
        """Hosts whose networks to take at the end of each episode."""
        self.networks: dict[int, GrownNetwork] = {}
        """Networks of the hosts in `take_networks` at the end of the last episode, with their fossils."""

    # ---- Gymnasium's interface

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Start new hosts, untrained or pretrained (`task.pretrain`), and measured once.

        Args:
            seed: new root of all random streams; episodes then start from 0.
            options: `{"episode": e}` starts the hosts of that episode; by default the next one.
        """
        self.begin(seed, options)
        self.time_inference()
        num_hosts, num_slots = self.num_envs, self.layout.num_slots
        self.sampler = replace(self.sampler, root=self.root, episode=self.episode)
        self.views = self.sampler.views()
        self._foresight_TNF = foresight([view.timetable for view in self.views], self._kinds, self.num_steps)
        self.foresight_NF = self._foresight_TNF[0]
        hosts = None if self.pretrained is None else self.pretrained.hosts(self.sampler)
        self.pool.start(self.sampler, self.views, hosts)
        self.time = 0
        self.online_N = np.zeros(num_hosts)
        self.reward.reset()
        self.state = self.shown = empty(num_hosts, num_slots)
        self.accuracy_NH = np.full((num_hosts, obs.HISTORY + 1), np.nan, dtype=np.float32)
        # The potential is most informative before training: experiments/2026-11-21_where_to_grow.
        unknown_NSK = np.full((num_hosts, num_slots, len(self.layout.blueprint_names)), np.nan, np.float32)
        self.potential_NSK = self.pool.potential(self.time) if self.config.potential else unknown_NSK
        self.op_N = np.full(num_hosts, Op.WAIT, dtype=np.int64)
        self.refused_N = np.zeros(num_hosts, dtype=np.bool_)
        measured = self.pool.validate(self.state.alpha[None])
        self.accuracy_NH[:, 0], self.loss_N = measured.accuracy_VM[0], measured.loss_VM[0]
        self.state.accuracy[:] = measured.accuracy_VM[0][:, None]
        self.guard.start(self)
        return self.observation(), {}

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[dict[str, Array], Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        """Run one step: act, train, validate, judge, reward, observe."""
        action_NH, self.refused_N = self.permitted(actions)
        before, accuracy_before_N, vetoed_N = self.state, self.accuracy_NH[:, 0].copy(), self._vetoed()
        known_loss_N, known_potential_NSK = self.loss_N, self.potential_NSK
        self.act(action_NH)
        report, seen = self._train(last=self.time + 1 == self.num_steps)
        ratio_NS = gradient_ratio(report.seed_norm_MS, report.host_norm_M, self.costs.params.of(self.state), self.host_params)
        self.state = replace(self.state, gradient_ratio=ratio_NS, gradient_norm=report.seed_norm_MS)
        # A seed behind the host, an infinite batch-norm variance and a skipped step do not show in the host's losses.
        unseen_N = np.isinf(report.seed_norm_MS).any(axis=1) | ~report.finite_M
        train_loss_N = np.where(unseen_N, np.inf, report.loss_M)
        verdict = self.governor.judge(self.guard.health, train_loss_N, self.loss_N)
        self.time, self.foresight_NF = self.time + 1, self._foresight_TNF[self.time + 1]
        signals = StepSignals(
            before=before,
            after=self.state,
            op_N=self.op_N,
            accuracy_before_N=accuracy_before_N,
            accuracy_N=self.accuracy_NH[:, 0].copy(),
            loss_before_N=known_loss_N,
            loss_N=self.loss_N,
            train_loss_N=report.loss_M,
            effects=seen,
            **self.costs.signals(before, self.state),
            num_steps=self.num_steps,
            steps_left=self.num_steps - self.time,
            last=self.time == self.num_steps,
            rolled_back_N=verdict.rollback_N,
            potential_before_NSK=known_potential_NSK,
            host_norm_N=report.host_norm_M,
        )
        kept_N = _kept(before, self.state) * ~verdict.rollback_N
        info: dict[str, Any] = {"op": self.op_N, "cause": verdict.cause_N, "fossilized": kept_N}
        info |= {"suspect": verdict.suspect_N, "vetoed": vetoed_N, "rolled_back": verdict.rollback_N} | report.scaling()
        if signals.ended_N.any():
            info["final_obs"], info["_final_obs"] = one_each(self.observation(), signals.ended_N), signals.ended_N
            info["final_info"], info["_final_info"] = {"instance": self.sampler.instances()}, signals.ended_N
        self.guard.settle(self, verdict)
        if signals.last:
            signals = replace(signals, final=self.state, final_loss_N=self.loss_N)
        if signals.last and verdict.rollback_N.any():
            signals.effects.committed_accuracy_N[verdict.rollback_N] = self._committed_accuracy(verdict.rollback_N)
        self.signals = info["signals"] = signals
        reward_N, info["components"] = self.reward(signals)
        info["components"]["governor"] = np.where(verdict.rollback_N, -verdict.penalty, 0.0).astype(np.float32)
        info |= {"training_flops": self.meter.training_N.copy(), "measuring_flops": self.meter.measuring_N.copy()}
        if self.test_online:  # a host that was rolled back is tested in its restored state
            self.online_N += self._test_accuracy(self.state.alpha) / self.num_steps
        info["retired"] = self.guard.health.retired_N
        info |= self._potentials(verdict.rollback_N)
        observation, ended = self.observation(), self.state
        if signals.last:
            info["final_info"] |= self._final()
            observation = self.reset()[0] if self.autoreset else observation
        self.shown = ended
        return observation, reward_N + info["components"]["governor"], signals.ended_N, np.zeros_like(signals.ended_N), info

    def _final(self) -> dict[str, Any]:
        """Return what is known of the hosts at the end of their episode."""
        final: dict[str, Any] = {"timetable": [view.timetable for view in self.views]}
        if self.test_at_end:
            final["test_accuracy"] = self._test_accuracy(self._committed_alpha())
        if self.test_online:
            final["online_accuracy"] = self.online_N.astype(np.float32)
        self.networks = {host: self.grown(host) for host in self.take_networks}
        return final

    def grown(self, host: int) -> GrownNetwork:
        """Return a copy of a host with the seeds that it has kept so far."""
        state, alpha_NS = self.state, self._committed_alpha()
        seeds = [
            KeptSeed(
                slot=int(slot),
                blueprint=int(state.blueprint[host, slot]),
                blend=Blend(int(state.blend[host, slot])),
                alpha=float(alpha_NS[host, slot]),
            )
            for slot in np.flatnonzero(alpha_NS[host] > 0)
        ]
        return self.pool.grown(host, seeds)

    def _potentials(self, rolled_back_N: npt.NDArray[np.bool_]) -> dict[str, Array]:
        """Return the shaping potentials that reported returns add back `[N]`, by their names in `info`; 0 at the end."""
        here, goes_on = (self.accuracy_NH[:, 0], self.state), self.time < self.num_steps
        restored_N = np.where(rolled_back_N & goes_on, self.reward.initial_potential(*here), 0.0)
        return {"restored_potential": restored_N, "discounted_potential": self.reward.discounted_potential(*here) * goes_on}

    # ---- what the trainer also needs

    def record(self) -> Episode:
        """Return an empty record of the episode that starts now."""
        self.pool.times.take()
        return Episode(
            times=self.pool.times,
            return_N=np.zeros(self.num_envs, np.float32),
            first_accuracy_N=self.accuracy_NH[:, 0].copy(),
            blueprints=self.layout.blueprint_names,
            slots=self.layout.slot_names,
            costs=self.costs,
            twins=self.sampler.twins,
            samples=self.sampler.samples_per_epoch,
            modes=self.reward.groups,
        )

    def prepare(self, state: dict[str, Any] | None = None) -> None:
        """Measure latency if the reward needs it, or restore the earlier measurement, since measurements differ."""
        latency = (state or {}).get("latency")
        self.time_inference(Price.from_state(latency) if latency else None)

    def state_dict(self) -> dict[str, Any]:
        """Return the measured latency; hosts and random streams are determined by their names."""
        latency = self.costs.latency
        return {"latency": None if math.isnan(latency.host) else latency.state_dict()}

    def hparams(self) -> dict[str, Hparam]:
        """Return the fingerprint of the data."""
        return {"data": self.task.data.fingerprint()}

    def costs_table(self) -> dict[str, Any]:
        """Return the costs of hosts and seeds."""
        return self.costs.table(self.layout.blueprint_names, self.layout.slot_names)

    def machines(self) -> dict[str, str]:
        """Return the processors or GPUs of the hosts."""
        return self.pool.machines()

    def time_inference(self, known: Price | None = None) -> None:
        """Measure latency on the first device, once, if the reward needs it; or take the `known` measurement of the run."""
        if known is None and self.reward.needs_latency and math.isnan(self.costs.latency.host):
            host, samples = self.task.host(self.root, self.split, 0, 0), self.task.data.inputs(self.task.data.valid_x[:BATCH])
            notice("measuring the latency of hosts and seeds")
            known = self.pool.latency(host, self.chosen_S, samples)
        if known is not None:
            self.costs = replace(self.costs, latency=known)

    def close_extras(self, **kwargs: Any) -> None:
        """Release the hosts."""
        self.pool.close()

    # ---- the parts of a step

    def act(self, action_NH: npt.NDArray[np.int64]) -> None:
        """Carry out legal actions, and advance the seeds by a host epoch."""
        self.op_N, slot_N, before = action_NH[:, Head.OP], action_NH[:, Head.SLOT], self.state
        self.state = lifecycle.tick(execute(before, action_NH, self.slots), self.slots, self.gates)
        kind_N = action_NH[:, Head.BLUEPRINT]
        gone = before.within(*LIVE) & ~self.state.within(*OCCUPIED)
        for host, slot in np.argwhere(gone):
            self.pool.clear(int(host), int(slot), int(before.blueprint[host, slot]))
        germinates_N = self.op_N == Op.GERMINATE
        if self._informed_K[kind_N[germinates_N]].any():
            self.pool.capture(self.time)
        for host in np.flatnonzero(germinates_N):
            slot = int(slot_N[host])
            name, blend = self.sampler.seed(int(host), slot, self.time), Blend(int(self.state.blend[host, slot]))
            self.pool.plant(int(host), slot, int(kind_N[host]), name, blend)
        self.pool.arrange(lifecycle.roles(self.state, self.slots))

    def _train(self, *, last: bool) -> tuple[TrainReport, SeedEffects]:
        """Train every host, and measure it with and without each seed, and by the plans of this step.

        Returns:
            The report of the training epoch, and the counterfactuals.
        """
        plans = self.reward.needs.union(self.counterfactuals.each_step, self.counterfactuals.at_end if last else ())
        plans |= {Plan.committed} if last else set()
        name, before = (self.root, self.split, self.episode, self.time), self.state
        asked = settings(before, plans, name=name, pairs=self.counterfactuals.orders)
        probe = self.config.potential and self.time % PROBE_EVERY == 0
        retired_N = self.guard.health.retired_N
        report, measured, potential_NSK = self.pool.epoch(self.time, asked.alpha_VNS, probe=probe, retired_N=retired_N)
        if probe:  # a retired host is at its snapshot, however the hosts beside it trained
            self.potential_NSK = np.where(retired_N[:, None, None], self.potential_NSK, potential_NSK)
        seen = seed_effects(asked, measured)
        measured_NS = ~np.isnan(seen.contribution_NS)
        self.state = replace(
            before,
            contribution=np.where(measured_NS, seen.contribution_NS, before.contribution).astype(np.float32),
            contribution_error=np.where(measured_NS, seen.contribution_error_NS, before.contribution_error),
            measured=before.measured | measured_NS,
            accuracy=np.repeat(measured.accuracy_VM[0][:, None], measured_NS.shape[1], axis=1),
        )
        self.accuracy_NH = np.roll(self.accuracy_NH, 1, axis=1)
        self.accuracy_NH[:, 0], self.loss_N = measured.accuracy_VM[0], measured.loss_VM[0]
        return report, seen

    def _committed_accuracy(self, of_N: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """Return the validation accuracy of the marked hosts with their fossils only, as they are now [%]."""
        return self.pool.validate(self._committed_alpha()[None], wanted_N=of_N).accuracy_VM[0, of_N]

    def _committed_alpha(self) -> npt.NDArray[np.float32]:
        """Return the blend weights of the fossils, 0 for other seeds `[N, S]`."""
        return np.where(self.state.within(Stage.FOSSILIZED), self.state.alpha, 0.0).astype(np.float32)

    # ---- views

    @property
    def params_NS(self) -> npt.NDArray[np.int64]:
        """Parameters of the seed in each slot."""
        return self.costs.params.of(self.state)

    def legal_slots(self) -> npt.NDArray[np.bool_]:
        """Return which operations are legal on which slots `[N, O, S]`, by the lifecycle and the governor."""
        legal_NOS = legal_slots(self.state, self.slots, self.chosen_S, self.gates, self.heads)
        return legal_NOS & ~self.guard.health.veto_NO[:, :, None]

    def _vetoed(self) -> npt.NDArray[np.bool_]:
        """Return the hosts for which the governor vetoes an operation that is otherwise legal `[N]`."""
        veto_NO = self.guard.health.veto_NO
        legal_NOS = legal_slots(self.state, self.slots, self.chosen_S, self.gates, self.heads)
        return np.asarray((legal_NOS & veto_NO[:, :, None]).any(axis=(1, 2)))

    def observation(self) -> dict[str, Array]:
        """Return the observation of every host, by the names of `Observation`."""
        blueprints = np.where(self.state.blueprint < 0, len(self.layout.blueprint_names), self.state.blueprint)
        return {
            "features": self._tables[0].values(self),
            "slots": self._tables[1].values(self),
            "blueprints": blueprints,
            "legal_slots": self.legal_slots().astype(np.int8),
            "legal_values": self._legal_values.astype(np.int8),
        }

    def _test_accuracy(self, alpha_NS: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the accuracy of each host with these alphas on the test split `[N]` [%]."""
        return self.pool.validate(alpha_NS[None], test=True).accuracy_VM[0]


def _kept(before: SlotState, after: SlotState) -> npt.NDArray[np.int64]:
    """Return how many seeds of each host were fossilized `[N]`."""
    return (before.within(*LIVE) & after.within(Stage.FOSSILIZED)).sum(axis=1)
