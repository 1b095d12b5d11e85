"""Our formulas against those of well-kept libraries, where they are installed (the `oracles` extra)."""

# T steps, N hosts, W values of one head, R recurrent units

import numpy as np
import pytest
import torch
from test_gae import random_case
from toy_worlds import make_spec

from esper.agent.distribution import entropy_of, masked_log_softmax
from esper.agent.gae import gae
from esper.agent.losses import explained_variance
from esper.agent.network import PolicyNetwork
from esper.seeding import torch_stream

GAMMA, LAM = 0.97, 0.9


@pytest.mark.parametrize("name", ["generalized_advantage_estimate", "vec_generalized_advantage_estimate"])
def test_gae_of_torchrl(name: str) -> None:
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    reward, value, next_value, terminated, truncated = random_case(0, steps=40)
    ours = gae(reward, value, next_value, terminated, truncated, gamma=GAMMA, lam=LAM)
    # It wants [..., T, 1], and `done` for both kinds of end.
    rows = [tensor.T[..., None] for tensor in (value, next_value, reward, terminated | truncated, terminated)]
    advantage, target = getattr(functional, name)(GAMMA, LAM, *rows)
    np.testing.assert_allclose(ours.numpy(), advantage[..., 0].T.numpy(), atol=1e-5)
    np.testing.assert_allclose((ours + value).numpy(), target[..., 0].T.numpy(), atol=1e-5)


def test_gae_of_stable_baselines() -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    spaces = pytest.importorskip("gymnasium.spaces")
    reward, value, next_value, terminated, truncated = random_case(1, steps=40)
    ours = gae(reward, value, next_value, terminated, truncated, gamma=GAMMA, lam=LAM)
    done = (terminated | truncated).numpy()
    truncated = truncated & ~terminated
    box = spaces.Box(-1, 1, (1,))
    buffer = buffers.RolloutBuffer(40, box, box, device="cpu", gae_lambda=LAM, gamma=GAMMA, n_envs=5)
    # It knows one kind of end only: what a cut leads to is added to the reward of the cut step.
    buffer.rewards[:] = (reward + GAMMA * torch.where(truncated, next_value, 0.0)).numpy()
    buffer.values[:] = value.numpy()
    buffer.episode_starts[1:] = done[:-1]
    buffer.compute_returns_and_advantage(next_value[-1].float(), done[-1])
    np.testing.assert_allclose(ours.numpy(), buffer.advantages, atol=1e-5)


def test_explained_variance_of_stable_baselines() -> None:
    utils = pytest.importorskip("stable_baselines3.common.utils")
    rng = np.random.default_rng(0)
    value, target = rng.standard_normal(50), rng.standard_normal(50)
    ours = explained_variance(torch.from_numpy(value), torch.from_numpy(target))
    assert ours == pytest.approx(utils.explained_variance(value, target), abs=1e-9)


def test_masked_categorical_of_sb3_contrib() -> None:
    distributions = pytest.importorskip("sb3_contrib.common.maskable.distributions")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 7, generator=generator)
    legal = torch.rand(64, 7, generator=generator) < 0.5
    legal[:, 3] = True
    theirs = distributions.MaskableCategorical(logits=logits, masks=legal.numpy())
    ours = masked_log_softmax(logits, legal)
    np.testing.assert_allclose(ours[legal].numpy(), theirs.logits[legal].numpy(), atol=1e-6)
    np.testing.assert_allclose(entropy_of(ours).numpy(), theirs.entropy().numpy(), atol=1e-6)


def test_recurrent_replay_of_sb3_contrib() -> None:
    policies = pytest.importorskip("sb3_contrib.common.recurrent.policies")
    spec = make_spec(hosts=5, steps=11)
    network = PolicyNetwork(
        spec,
        hidden=8,
        slot_width=8,
        blueprint_width=4,
        slot_identity=False,
        wait_bias=0.0,
        generator=torch_stream(0, "policy_init"),
    )
    generator = torch.Generator().manual_seed(0)
    input_TNR = torch.randn(11, 5, 8, generator=generator)
    state = {name: torch.randn(5, 8, generator=generator) for name in ("h", "c")}
    is_init_TN = torch.rand(11, 5, generator=generator) < 0.2
    process = policies.RecurrentActorCriticPolicy._process_sequence
    with torch.no_grad():
        ours, end = network._recur(input_TNR, state, is_init_TN)
        # It wants rows laid end to end, each in the order of time.
        flat = input_TNR.transpose(0, 1).reshape(55, 8)
        starts = is_init_TN.T.reshape(55).float()
        theirs, (h, c) = process(flat, (state["h"][None], state["c"][None]), starts, network.core)
    torch.testing.assert_close(ours, theirs.view(5, 11, 8).transpose(0, 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(end["h"], h[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(end["c"], c[0], atol=1e-6, rtol=0)
