"""Hand-made steps of an episode; what a test does not set is unchanged or not measured."""

# N hosts, S slots

import dataclasses

import numpy as np

from esper.lifecycle.stages import OCCUPIED, Op, SlotState, Stage, empty
from esper.measure.counterfactuals import SeedEffects
from esper.reward.signals import StepSignals

WORTH = {entry.name for entry in dataclasses.fields(SeedEffects)}
NAN = np.float32(np.nan)
D, G, T, B, H, F, P = (
    Stage.DORMANT,
    Stage.GERMINATED,
    Stage.TRAINING,
    Stage.BLENDING,
    Stage.HOLDING,
    Stage.FOSSILIZED,
    Stage.PRUNED,
)


def floats(*values):
    return np.array(values, dtype=np.float32)


def state_of(*rows, contribution=None):
    """Slots of hosts from stages; all seeds have been measured, with contribution 10 * (host + 1) + slot unless given."""
    state = empty(len(rows), len(rows[0]))
    state.stage = np.array(rows, dtype=np.int64)
    host, slot = np.indices(state.stage.shape)
    state.measured = state.within(*OCCUPIED)
    worth = 10 * (host + 1) + slot if contribution is None else np.array(contribution)
    state.contribution = np.where(state.measured, worth, 0).astype(np.float32)
    state.alpha = state.measured.astype(np.float32)
    return state


def signals_of(before, after, **given):
    """One step between two states."""
    hosts, slots = before.stage.shape
    zeros_N, void_NS = np.zeros(hosts, np.float32), np.full((hosts, slots), NAN)
    rest = {
        "op_N": np.zeros(hosts, np.int64),
        "accuracy_before_N": zeros_N,
        "accuracy_N": zeros_N,
        "loss_before_N": zeros_N,
        "loss_N": zeros_N,
        "train_loss_N": zeros_N,
        "params_before_NS": np.zeros((hosts, slots), np.int64),
        "params_NS": np.zeros((hosts, slots), np.int64),
        "host_params": 100,
        "flops_before_NS": void_NS,
        "flops_NS": void_NS,
        "host_flops": NAN,
        "latency_before_NS": void_NS,
        "latency_NS": void_NS,
        "host_latency": NAN,
        "num_steps": 20,
        "steps_left": 1,
        "rolled_back_N": np.zeros(hosts, dtype=bool),
    } | given
    seen = {name: rest.pop(name) for name in WORTH & rest.keys()}
    effects = dataclasses.replace(SeedEffects.unknown(hosts, slots), **seen)
    return StepSignals(before=before, after=after, effects=effects, last=rest["steps_left"] == 0, **rest)


def replaced(signals, **changes):
    """The signals with other values, by the names of `StepSignals` and of its `SeedEffects`."""
    seen = {name: changes.pop(name) for name in WORTH & changes.keys()}
    return dataclasses.replace(signals, effects=dataclasses.replace(signals.effects, **seen), **changes)


def random_state(rng, hosts=4, slots=3):
    return state_of(
        *rng.integers(len(Stage), size=(hosts, slots)).tolist(), contribution=rng.normal(4, 5, (hosts, slots)).astype(np.float32)
    )


def random_path(rng, steps, *, hosts=4, slots=3, sick=0.2):
    """A whole episode through any states at all, with rollbacks in between that leave fossils alone, and lose some of those.

    Accuracies, losses and interactions are drawn anew in every step; what a rolled back host shows is NaN.
    """
    state = empty(hosts, slots)
    accuracy, loss = (100 * rng.random(hosts)).astype(np.float32), rng.random(hosts).astype(np.float32)
    for step in range(steps):
        after, rolled = random_state(rng, hosts, slots), rng.random(hosts) < sick
        # Most seeds live on, and fossils do for ever.
        lives = state.within(*OCCUPIED) & (rng.random((hosts, slots)) < 0.8)
        after.stage = np.where(
            lives, np.maximum(state.stage, rng.integers(G, F, size=(hosts, slots), endpoint=True)), after.stage
        )
        after.stage[state.within(Stage.FOSSILIZED)] = Stage.FOSSILIZED
        after.measured = after.within(*OCCUPIED)
        after.contribution = rng.normal(4, 5, (hosts, slots)).astype(np.float32)
        shown, fell = (accuracy + rng.normal(5, 5, hosts)).astype(np.float32), (3 * rng.random(hosts)).astype(np.float32)
        noise = rng.normal(0, 5, (hosts, slots, slots)).astype(np.float32)
        yield signals_of(
            state,
            after,
            op_N=rng.integers(len(Op), size=hosts),
            accuracy_before_N=accuracy,
            accuracy_N=np.where(rolled, NAN, shown),
            loss_before_N=loss,
            loss_N=np.where(rolled, NAN, fell),
            committed_accuracy_N=shown if step == steps - 1 else np.full(hosts, NAN),  # of the snapshot after a rollback
            interaction_NSS=noise + noise.transpose(0, 2, 1),
            params_before_NS=rng.integers(50, size=(hosts, slots)),
            params_NS=rng.integers(50, size=(hosts, slots)),
            num_steps=steps,
            steps_left=steps - 1 - step,
            rolled_back_N=rolled,
        )
        back = empty(hosts, slots)
        kept = state.within(Stage.FOSSILIZED) & (rng.random((hosts, slots)) < 0.7)  # the snapshot may be older
        back = SlotState(**{name: np.where(kept, array, getattr(back, name)) for name, array in state.arrays().items()})
        state = SlotState(
            **{name: np.where(rolled[:, None], getattr(back, name), array) for name, array in after.arrays().items()}
        )
        accuracy = np.where(rolled, (100 * rng.random(hosts)), shown).astype(np.float32)
        loss = np.where(rolled, 3 * rng.random(hosts), fell).astype(np.float32)
