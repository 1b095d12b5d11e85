"""Acting: the same action alone and among others, no side effects, and non-finite weights are noticed."""

import numpy as np
import pytest
import torch

from esper.env.actions import Head, Op
from tests.agent.small_policy import SPEC, generator, make
from tests.agent.toy_envs import blank, random_observation


def test_the_action_of_a_host_does_not_depend_on_the_number_of_hosts() -> None:
    agent, rng = make(), np.random.default_rng(0)
    seen, uniform = random_observation(SPEC, rng), rng.random((8, len(Head)))
    state = {name: torch.randn(8, 16, generator=generator()) for name in ("h", "c")}
    is_init = rng.random(8) < 0.5
    whole = agent.act(seen, state, is_init=is_init, uniform=uniform)
    for rows in (slice(2, 3), slice(3, 8)):
        few = type(seen)(**{name: getattr(seen, name)[rows] for name in seen.__dataclass_fields__})
        part = agent.act(few, {n: s[rows] for n, s in state.items()}, is_init=is_init[rows], uniform=uniform[rows])
        assert np.array_equal(part.action, whole.action[rows])
        np.testing.assert_allclose(part.log_prob, whole.log_prob[rows], atol=1e-5)
        np.testing.assert_allclose(part.value, whole.value[rows], atol=1e-5)
        torch.testing.assert_close(part.state["h"], whole.state["h"][rows])


def test_acting_draws_no_random_numbers_and_changes_no_state() -> None:
    agent, rng = make(), np.random.default_rng(0)
    seen, uniform, state = random_observation(SPEC, rng), rng.random((8, len(Head))), agent.start(8)
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    one = agent.act(seen, state, is_init=np.zeros(8, bool), uniform=uniform)
    two = agent.act(seen, state, is_init=np.zeros(8, bool), uniform=uniform)
    assert np.array_equal(one.action, two.action)
    np.testing.assert_array_equal(one.value, two.value)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    assert not any(tensor.any() for tensor in state.values())
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in one.state.values())


def test_greedy_actions_do_not_depend_on_noise() -> None:
    agent, rng = make(), np.random.default_rng(0)
    seen = random_observation(SPEC, rng)
    actions = [
        agent.act(seen, agent.start(8), is_init=np.ones(8, bool), uniform=rng.random((8, len(Head))), greedy=True).action
        for _ in range(3)
    ]
    assert (actions[0] == actions[1]).all()
    assert (actions[0] == actions[2]).all()


@pytest.mark.parametrize(
    ("layer", "what"),
    [("op", "probabilities"), ("slot_score", "probabilities"), ("parameter", "probabilities"), ("value", "values")],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_non_finite_weights_are_noticed_when_acting(layer: str, what: str, greedy: bool) -> None:
    agent, seen = make(wait_bias=-99.0), blank(SPEC)  # germinates, so that every head is drawn
    seen.legal_slots[:, Op.GERMINATE, 1:] = True
    getattr(agent.network, layer).weight.data[:, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=f"{what} are not finite"):
        agent.act(seen, agent.start(8), is_init=np.ones(8, bool), uniform=np.full((8, len(Head)), 0.99), greedy=greedy)
