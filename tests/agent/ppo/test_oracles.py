"""Formulas checked against reference libraries, where they are installed (the `oracles` extra)."""

# T steps, N hosts, W values of one head, R recurrent units

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import gae
from esper.agent.ppo.diagnostics import explained_variance
from esper.agent.ppo.distribution import ActionDistribution, Logits, entropy_of, masked_log_softmax
from esper.agent.ppo.losses import clip_fraction, clipped_surrogate, value_loss
from esper.agent.ppo.network import PolicyNetwork
from esper.env.actions import Head, Op, segments
from esper.seeding import torch_stream
from tests.agent.ppo.test_advantages import random_case
from tests.agent.toy_envs import make_spec

GAMMA, LAM = 0.97, 0.9


@pytest.mark.parametrize("name", ["generalized_advantage_estimate", "vec_generalized_advantage_estimate"])
def test_gae_of_torchrl(name: str) -> None:
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    reward, value, terminated = random_case(0, steps=40)
    ours = gae(reward, value, terminated, gamma=GAMMA, lam=LAM)
    next_value = torch.cat([value[1:], torch.zeros_like(value[:1])])
    rows = [tensor.T[..., None] for tensor in (value, next_value, reward, terminated, terminated)]  # it wants [..., T, 1]
    advantage, target = getattr(functional, name)(GAMMA, LAM, *rows)
    np.testing.assert_allclose(ours.numpy(), advantage[..., 0].T.numpy(), atol=1e-5)
    np.testing.assert_allclose((ours + value).numpy(), target[..., 0].T.numpy(), atol=1e-5)


def test_gae_of_stable_baselines() -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    spaces = pytest.importorskip("gymnasium.spaces")
    reward, value, terminated = random_case(1, steps=40)
    ours = gae(reward, value, terminated, gamma=GAMMA, lam=LAM)
    box = spaces.Box(-1, 1, (1,))
    buffer = buffers.RolloutBuffer(40, box, box, device="cpu", gae_lambda=LAM, gamma=GAMMA, n_envs=5)
    buffer.rewards[:] = reward.numpy()
    buffer.values[:] = value.numpy()
    buffer.episode_starts[1:] = terminated[:-1].numpy()
    buffer.compute_returns_and_advantage(torch.zeros(5), terminated[-1].numpy())
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
        ours, end = network.core.unroll(input_TNR, state, is_init_TN)
        # It wants rows laid end to end, each in the order of time.
        flat = input_TNR.transpose(0, 1).reshape(55, 8)
        starts = is_init_TN.T.reshape(55).float()
        theirs, (h, c) = process(flat, (state["h"][None], state["c"][None]), starts, network.core)
    torch.testing.assert_close(ours, theirs.view(5, 11, 8).transpose(0, 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(end["h"], h[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(end["c"], c[0], atol=1e-6, rtol=0)


def test_heads_of_many_of_sb3_contrib() -> None:
    """Where one operation is legal and no head depends on the slot, heads are independent, as they are there."""
    distributions = pytest.importorskip("sb3_contrib.common.maskable.distributions")
    spec, rows = make_spec(slots=4, blueprints=5), 64
    generator = torch.Generator().manual_seed(1)
    places = segments(spec.head_sizes)
    heads = [Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET]
    scores = {head: 2 * torch.randn(rows, spec.head_sizes[head], generator=generator, dtype=torch.float64) for head in heads}
    legal = {head: torch.rand(scores[head].shape, generator=generator) < 0.5 for head in heads}
    for mask in legal.values():
        mask[:, 1] = True
    legal_slots = torch.zeros(rows, len(Op), 4, dtype=torch.bool)
    legal_slots[:, Op.GERMINATE] = legal[Head.SLOT]
    legal_values = torch.zeros(rows, sum(spec.head_sizes[Head.BLUEPRINT :]), dtype=torch.bool)
    for head, place in places.items():
        legal_values[:, place] = legal.get(head, torch.ones(1, dtype=torch.bool))
    logits = Logits(
        op_BO=torch.zeros(rows, len(Op), dtype=torch.float64),
        slot_BOS=scores[Head.SLOT][:, None].repeat(1, len(Op), 1),
        parameters={(Op.GERMINATE, head): scores[head][:, None].repeat(1, 4, 1) for head in heads[1:]},
    )
    ours = ActionDistribution(logits, legal_slots, legal_values, spec.head_sizes)
    theirs = distributions.MaskableMultiCategoricalDistribution([spec.head_sizes[head] for head in heads])
    theirs.proba_distribution(torch.cat(list(scores.values()), dim=1))
    theirs.apply_masking(torch.cat(list(legal.values()), dim=1).numpy())
    action = ours.sample(torch.rand(rows, len(Head), generator=generator, dtype=torch.float64))
    assert (action[:, Head.OP] == Op.GERMINATE).all()
    np.testing.assert_allclose(ours.log_prob(action).numpy(), theirs.log_prob(action[:, heads]).numpy(), atol=1e-6)
    np.testing.assert_allclose(ours.entropy().numpy(), theirs.entropy().numpy(), atol=1e-6)


def test_objective_of_torchrl() -> None:
    """Clipped surrogate, critic's loss, entropy, clipped share, and the gradient of all of them together."""
    objectives = pytest.importorskip("torchrl.objectives")
    modules, tensordict = pytest.importorskip("tensordict.nn"), pytest.importorskip("tensordict")
    rng = np.random.default_rng(0)
    seen, action = torch.from_numpy(rng.standard_normal((64, 4))), torch.from_numpy(rng.integers(0, 5, 64))
    old, advantage, target = (torch.from_numpy(rng.standard_normal(64)) for _ in range(3))
    old = 0.3 * old - 1.6
    torch.manual_seed(0)
    policy, critic = torch.nn.Linear(4, 5).double(), torch.nn.Linear(4, 1).double()
    weights = [*policy.parameters(), *critic.parameters()]

    log_prob = masked_log_softmax(policy(seen), torch.ones(64, 5, dtype=torch.bool))
    log_ratio, everywhere = log_prob[torch.arange(64), action] - old, torch.ones(64, dtype=torch.bool)
    surrogate = clipped_surrogate(log_ratio, advantage, everywhere, clip=0.25)
    fit, spread = value_loss(critic(seen)[:, 0], target), entropy_of(log_prob).mean()
    ours = torch.autograd.grad(surrogate + fit - 0.125 * spread, weights)

    actor = modules.ProbabilisticTensorDictSequential(
        modules.TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        modules.ProbabilisticTensorDictModule(
            in_keys=["logits"], out_keys=["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ),
    )
    value = modules.TensorDictModule(critic, in_keys=["observation"], out_keys=["state_value"])
    loss = objectives.ClipPPOLoss(
        actor,
        value,
        clip_epsilon=0.25,  # it keeps the logarithms of its bounds in float32, and the next one too
        entropy_bonus=True,
        entropy_coeff=0.125,
        critic_coeff=0.5,  # its squared error has no half in front
        loss_critic_type="l2",
        normalize_advantage=False,
    )
    batch = {"observation": seen, "action": action, "action_log_prob": old}
    batch |= {"advantage": advantage[:, None], "value_target": target[:, None]}
    out = loss(tensordict.TensorDict(batch, [64]))
    theirs = torch.autograd.grad(out["loss_objective"] + out["loss_critic"] + out["loss_entropy"], list(loss.parameters()))

    assert out["loss_objective"].item() == pytest.approx(surrogate.item(), abs=1e-7)
    assert out["loss_critic"].item() == pytest.approx(fit.item(), abs=1e-9)
    assert out["entropy"].item() == pytest.approx(spread.item(), abs=1e-9)
    assert out["clip_fraction"].item() == pytest.approx(clip_fraction(log_ratio, everywhere, clip=0.25).item(), abs=1e-6)
    assert 0.1 < out["clip_fraction"].item() < 0.9
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, atol=1e-9, rtol=1e-9)
