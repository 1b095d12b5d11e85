"""The trace of an episode: one row per host and host epoch, with the state, the decision and what was paid for it."""

# T steps, N hosts, S slots, K blueprints

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from esper.buffer.transition import Transition
from esper.env.actions import RELEVANT, VALUES, Head, Op
from esper.env.base import EpisodeRecord
from esper.env.episode import Episode
from esper.env.spec import EnvSpec
from esper.governor.base import Cause
from esper.lifecycle.stages import OCCUPIED, Stage
from esper.reward.signals import StepSignals
from esper.task.events import Event
from esper.telemetry.traces import VERSION, Table

DIGITS = 5
"""Significant digits of numbers that are measured."""


class Trace:
    """Collects the transitions of an episode, and turns them into a table."""

    def __init__(self, layout: EnvSpec) -> None:
        self._layout = layout
        self.steps: list[Transition] = []
        """The transitions so far."""

    def add(self, step: Transition) -> None:
        """Add one step of all hosts. Its arrays are kept, not copied."""
        self.steps.append(step)

    def table(self, episode: EpisodeRecord) -> Table:
        """Return the columns of docs/files.md, with T rows for the first host, then T for the next.

        Args:
            episode: the record of the whole episode.
        """
        steps = self.steps
        assert steps, "an episode has at least one step"
        num_hosts, num_steps = len(episode.return_N), len(steps)
        stacked: dict[str, npt.NDArray[Any]] = {
            "version": np.full((num_steps, num_hosts), VERSION),
            "host": np.tile(np.arange(num_hosts), (num_steps, 1)),
            "epoch": np.repeat(np.arange(1, num_steps + 1)[:, None], num_hosts, axis=1),
            "kind": np.tile(np.array(episode.instance, dtype=object), (num_steps, 1)),
        }
        if isinstance(episode, Episode) and any(episode.timetable):
            stacked["events"] = np.array(
                [[_events(one, epoch) for one in episode.timetable] for epoch in range(num_steps)], object
            )
        rows = [self._decisions(step) | self._measurements(step) for step in steps]
        stacked |= {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        stacked |= {name: _at_the_end(value_N, num_steps) for name, value_N in self._results(episode).items()}
        stacked |= self._kept(episode, num_steps)
        return {name: [_plain(value) for value in array_TN.T.ravel().tolist()] for name, array_TN in stacked.items()}

    def _decisions(self, step: Transition) -> dict[str, npt.NDArray[Any]]:
        """Return what the controller chose and what it was paid, as arrays `[N]`."""
        decision, layout = step.decision, self._layout
        op_N, slot_N = decision.action[:, Head.OP], decision.action[:, Head.SLOT]
        names = {
            "op": np.array([op.name.lower() for op in Op], dtype=object)[op_N],
            "slot": _where(RELEVANT[op_N, Head.SLOT], np.array(layout.slot_names, dtype=object)[slot_N]),
            "blueprint": _where(
                RELEVANT[op_N, Head.BLUEPRINT],
                np.array(layout.blueprint_names, dtype=object)[decision.action[:, Head.BLUEPRINT]],
            ),
        }
        for head, values in VALUES.items():
            chosen_N = np.array(list(values), dtype=object)[decision.action[:, head]]
            names[head.name.lower()] = _where(RELEVANT[op_N, head], chosen_N)
        unknown_N = np.full(len(op_N), np.nan)
        names["probability"] = unknown_N if decision.log_prob is None else np.exp(decision.log_prob)
        names["value"] = unknown_N if decision.value is None else decision.value
        causes = np.array([cause.name.lower() for cause in Cause], dtype=object)
        cause_N = np.zeros(len(op_N), np.int64) if step.cause_N is None else step.cause_N
        names |= {"reward": step.reward_N, "rolled_back": _where(cause_N != Cause.HEALTHY, causes[cause_N])}
        return names | {f"reward_{name}": paid_N for name, paid_N in step.paid.items()}

    def _measurements(self, step: Transition) -> dict[str, npt.NDArray[Any]]:
        """Return what was measured in the step, as arrays `[N]`; nothing where no hosts train."""
        signals = step.signals
        if signals is None:
            return {}
        columns: dict[str, npt.NDArray[Any]] = {
            "refused": (signals.op_N != step.decision.action[:, Head.OP]).astype(np.int64),
            "accuracy_before": signals.accuracy_before_N,
            "accuracy": signals.accuracy_N,
            "loss": signals.loss_N,
            "train_loss": signals.train_loss_N,
            "gradient_norm": signals.host_norm_N,
            "all_off_accuracy": signals.effects.all_off_accuracy_N,
        }
        for slot, name in enumerate(self._layout.slot_names):
            columns |= self._of_slot(signals, slot, name)
        return columns

    def _of_slot(self, signals: StepSignals, slot: int, name: str) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of one slot after the step."""
        after, effects, layout = signals.after, signals.effects, self._layout
        occupied_N = after.within(*OCCUPIED)[:, slot]
        blueprints = np.array([*layout.blueprint_names, None], dtype=object)
        columns: dict[str, npt.NDArray[Any]] = {
            f"{name}.stage": np.array([stage.name.lower() for stage in Stage], dtype=object)[after.stage[:, slot]],
            f"{name}.blueprint": blueprints[after.blueprint[:, slot]],  # -1, for none, is the last
            f"{name}.alpha": np.where(occupied_N, after.alpha[:, slot], np.nan),
            f"{name}.parameters": np.where(occupied_N, signals.params_NS[:, slot], np.nan),
            f"{name}.contribution": effects.contribution_NS[:, slot],
            f"{name}.contribution_error": effects.contribution_error_NS[:, slot],
            f"{name}.shapley": effects.shapley_NS[:, slot],
            f"{name}.gradient_norm": np.where(occupied_N, after.gradient_norm[:, slot], np.nan),
        }
        potential_NK = signals.potential_before_NSK[:, slot]
        return columns | {
            f"{name}.potential_{blueprint}": potential_NK[:, kind] for kind, blueprint in enumerate(layout.blueprint_names)
        }

    def _kept(self, episode: EpisodeRecord, num_steps: int) -> dict[str, npt.NDArray[Any]]:
        """Return the blueprint that each slot keeps after the episode `[T, N]`, None before."""
        if not isinstance(episode, Episode):
            return {}
        columns, blueprints = dict[str, npt.NDArray[Any]](), np.array([*self._layout.blueprint_names, None], dtype=object)
        for slot, name in enumerate(self._layout.slot_names):
            columns[f"{name}.kept"] = np.full((num_steps, len(episode.return_N)), None, dtype=object)
            columns[f"{name}.kept"][-1] = blueprints[episode.kept_NS[:, slot]]  # -1, for none, is the last
        return columns

    def _results(self, episode: EpisodeRecord) -> dict[str, npt.NDArray[Any]]:
        """Return the results of each host `[N]`."""
        if not isinstance(episode, Episode):
            return {"return": episode.return_N}
        assert episode.signals is not None
        unknown_N = np.full(len(episode.return_N), np.nan)
        online = {} if episode.online_N is None else {"online_accuracy": episode.online_N}
        return online | {
            "return": episode.return_N,
            "first_accuracy": episode.first_accuracy_N,
            "committed_accuracy": episode.signals.effects.committed_accuracy_N,
            "test_accuracy": unknown_N if episode.test_accuracy_N is None else episode.test_accuracy_N,
            "parameters_kept": episode.kept_params_N,
        }


def _events(timetable: Sequence[Event], epoch: int) -> str | None:
    """Return the events that start or begin to wane in a host epoch, counted from 0."""
    starts = [event.kind for event in timetable if event.start == epoch]
    wanes = [f"{event.kind} ends" for event in timetable if event.end == epoch]
    return ", ".join([*starts, *wanes]) or None


def _where(mask_N: npt.NDArray[np.bool_], value_N: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values where the mask is set, None elsewhere."""
    return np.array([value if kept else None for kept, value in zip(mask_N, value_N, strict=True)], dtype=object)


def _at_the_end(value_N: npt.NDArray[Any], num_steps: int) -> npt.NDArray[Any]:
    """Return values as `[T, N]`, in the last step only; NaN before."""
    values_TN = np.full((num_steps, len(value_N)), np.nan)
    values_TN[-1] = value_N
    return values_TN


def _plain(value: object) -> object:
    """Return a measured number with a few digits, a count as it is, and None for NaN."""
    if isinstance(value, float) and not value.is_integer():
        return None if value != value else float(f"{value:.{DIGITS}g}")
    return value
