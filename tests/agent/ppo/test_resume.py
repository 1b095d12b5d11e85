"""The state of a policy: with it, learning resumes bit for bit."""

import io
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.agent.small_policy import SMALL, SPEC, make, update


def roundtrip(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file that may hold tensors and primitives only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def test_a_saved_policy_resumes_bit_for_bit() -> None:
    one = make(seed=0, epochs=2)
    for seed in range(3):
        update(one, seed)
    two = make(seed=99, epochs=2)
    two.load_state_dict(roundtrip(one.state_dict()))
    for seed in range(3, 6):
        assert repr(update(one, seed, progress=0.5)) == repr(update(two, seed, progress=0.5))  # to the bit, and NaN is NaN
    states = one.state_dict(), two.state_dict()
    for part in ("network", "popart"):
        assert all(torch.equal(states[0][part][name], states[1][part][name]) for name in states[0][part])


def test_optimizer_and_popart_are_part_of_the_state() -> None:
    """A policy that forgot its optimiser or its scale goes on differently."""
    one = make(epochs=2)
    for seed in range(3):
        update(one, seed)
    for forgotten in ("optimizer", "popart"):
        two = make(epochs=2)
        two.load_state_dict(one.state_dict() | {forgotten: getattr(make(), forgotten).state_dict()})
        torch.manual_seed(0)
        three = make(epochs=2)
        three.load_state_dict(one.state_dict())
        update(two, 7), update(three, 7)
        assert any(not torch.equal(a, b) for a, b in zip(two.network.parameters(), three.network.parameters(), strict=True))


def test_a_policy_with_other_observations_is_refused() -> None:
    state = make().state_dict()
    other = SMALL.build(replace(SPEC, feature_names=("time_left", "cue", "hint")), seed=0)
    with pytest.raises(ValueError, match="features time_left, cue, noise, but this run has time_left, cue, hint"):
        other.load_state_dict(state)
