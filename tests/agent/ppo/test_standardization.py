"""Standardized observations: exact statistics, replays, checkpoints, and a choice that is hard without them."""

# T steps, N hosts, F features

import io

import numpy as np
import pytest
import torch

from esper.agent.ppo.standardization import LEAST_DEVIATION, LIMIT, Standardization
from esper.buffer.transition import Decision
from esper.env.actions import Head, Op
from esper.env.spec import Observation
from tests.agent.small_policy import SPEC, make, update
from tests.agent.toy_envs import ToyEnv, blank, learn, make_spec, mean_return, random_observation, random_rollout


def test_the_statistics_are_those_of_all_values_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 7, 4, generator=generator) * torch.tensor([1e-4, 0.05, 1.0, 100.0]) + torch.tensor([0.5, 1, 0, -5])
    scale = Standardization(4)
    assert torch.equal(scale(values), values), "nothing is known before the first values"
    for part in values.split(2):
        scale.update(part)
    rows = values.flatten(0, 1).double()
    expected = (rows - rows.mean(0)) / rows.std(0, correction=0).clamp(min=LEAST_DEVIATION)
    torch.testing.assert_close(scale(values).flatten(0, 1).double(), expected.clamp(-LIMIT, LIMIT), atol=1e-4, rtol=1e-4)
    assert scale(values + 1e6).max() == scale(values + 1e6).min() == LIMIT


def test_an_update_learns_with_the_statistics_of_its_rollout_and_then_adds_them() -> None:
    """The replay checks would fail if the statistics changed between acting and learning."""
    agent, rows = make(standardize=True), SPEC.num_steps * SPEC.num_hosts
    seen = random_rollout(agent, np.random.default_rng(0)).seen
    for count in (1, 2, 3):
        update(agent, 0)
        counts = [float(scale.get_buffer("count")) for scale in agent.network.scales]
        assert counts == [count * rows, count * rows * SPEC.num_slots]
    scale = agent.network.scales[0]
    mean_F = scale.get_buffer("mean_F")
    torch.testing.assert_close(mean_F, seen.features.flatten(0, 1).double().mean(0))


def test_a_checkpoint_restores_the_statistics() -> None:
    agent, other, file = make(standardize=True), make(standardize=True), io.BytesIO()
    update(agent, 0)
    torch.save(agent.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    observation, uniform = random_observation(SPEC, np.random.default_rng(1)), np.full((8, len(Head)), 0.5)
    found, expected = (one.act(observation, one.start(8), is_init=np.ones(8, bool), uniform=uniform) for one in (other, agent))
    np.testing.assert_array_equal(found.log_prob, expected.log_prob)


class FaintCue(ToyEnv):
    """One step. Germinating is right where a feature of the host, or of a slot, is slightly above its mean."""

    of_slot = False

    def observe(self, t: int) -> Observation:
        seen = blank(self.spec)
        self.cue = self.rng.random(self.spec.num_hosts) < 0.5
        (seen.slots[:, 0] if self.of_slot else seen.features)[:, 1] = np.where(self.cue, 0.51, 0.49)
        seen.legal_slots[:, Op.GERMINATE, 0] = True
        return seen

    def pay(self, t: int, decision: Decision) -> tuple[np.ndarray, np.ndarray]:
        right = (decision.action[:, Head.OP] == Op.GERMINATE) == self.cue
        return right.astype(np.float32), np.zeros(len(right), np.bool_)


@pytest.mark.slow
@pytest.mark.parametrize("of_slot", [False, True])
def test_faint_cues_are_learned(of_slot: bool) -> None:
    env = FaintCue(make_spec(hosts=64, steps=1, slots=1, blueprints=1), np.random.default_rng(0))
    env.of_slot = of_slot
    assert mean_return(learn(env, 15, standardize=True, until=0.98), env) > 0.95
    assert mean_return(learn(env, 15), env) < 0.9
