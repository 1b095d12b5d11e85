"""The factored distribution: it sums to 1, never samples illegal actions, and has the exact entropy of whole actions."""

# B decisions, O operations, S slots, H heads, W values of one head, C composite actions

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.ppo.distribution import ActionDistribution, Logits, entropy_of, free_parameters, inverse_cdf, masked_log_softmax
from esper.buffer.rollout import TensorObservation
from esper.env.actions import PINNED, RELEVANT, Head, Op, parameters_legal
from esper.env.spec import EnvSpec
from tests.agent.ppo.enumeration import enumerated, row_of
from tests.agent.toy_envs import make_spec, random_observation

SPEC = make_spec(slots=3, blueprints=2)


def random_distribution(
    seed: int, *, spec: EnvSpec = SPEC, rows: int = 4, free: bool = False, scale: float = 2.0, dtype: torch.dtype = torch.float64
) -> tuple[ActionDistribution, TensorObservation]:
    rng = np.random.default_rng(seed)
    seen = TensorObservation.of(random_observation(spec, rng, hosts=rows, free=free))
    parameters = {
        (op, head): torch.from_numpy(scale * rng.standard_normal((rows, spec.num_slots, spec.head_sizes[head]))).to(dtype)
        for op, head in free_parameters(seen.legal_slots, seen.legal_values, spec.head_sizes)
    }
    logits = Logits(
        op_BO=torch.from_numpy(scale * rng.standard_normal((rows, len(Op)))).to(dtype),
        slot_BOS=torch.from_numpy(scale * rng.standard_normal((rows, len(Op), spec.num_slots))).to(dtype),
        parameters=parameters,
    )
    return ActionDistribution(logits, seen.legal_slots, seen.legal_values, spec.head_sizes), seen


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_enumeration_sums_to_one_and_entropy_is_exact(seed: int, free: bool) -> None:
    distribution, _ = random_distribution(seed, free=free)
    entropy_B = distribution.entropy()
    for row in range(4):
        action_CH, log_prob_C = enumerated(distribution, row)
        assert len(torch.unique(action_CH, dim=0)) == len(action_CH)
        assert log_prob_C.exp().sum().item() == pytest.approx(1, abs=1e-12)
        assert -(log_prob_C.exp() * log_prob_C).sum().item() == pytest.approx(entropy_B[row].item(), abs=1e-9)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_divergence_is_that_from_the_reference_enumerated(seed: int, free: bool) -> None:
    """The reference, written as a distribution: its operations by the bias, everything else uniform."""
    distribution, seen = random_distribution(seed, free=free)
    bias_O = torch.from_numpy(np.random.default_rng(seed).standard_normal(len(Op)))
    zeros = Logits(
        op_BO=bias_O.expand(4, -1),
        slot_BOS=torch.zeros_like(distribution.slot_BOS),
        parameters={key: torch.zeros_like(scores_BSW) for key, scores_BSW in distribution.parameters.items()},
    )
    reference = ActionDistribution(zeros, seen.legal_slots, seen.legal_values, SPEC.head_sizes)
    divergence_B = distribution.divergence(bias_O)
    for row in range(4):
        _, log_prob_C = enumerated(distribution, row)
        _, reference_C = enumerated(reference, row)
        expected = (log_prob_C.exp() * (log_prob_C - reference_C)).sum().item()
        assert divergence_B[row].item() == pytest.approx(expected, abs=1e-9)
        assert expected > 0 or len(log_prob_C) == 1
    assert reference.divergence(bias_O).abs().max() < 1e-9


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_each_head_equals_the_conditional_from_enumeration(seed: int, free: bool) -> None:
    """Given the operation, and for parameters the slot: log-probability, entropy and number of legal values of every head."""
    distribution, _ = random_distribution(seed, free=free)
    for row in range(4):
        action_CH, log_prob_C = enumerated(distribution, row)
        repeated, probability_C = row_of(distribution, row, len(action_CH)), log_prob_C.exp()
        heads = (repeated.head_log_probs(action_CH), repeated.head_entropies(action_CH), repeated.head_choices(action_CH))
        for c, action_H in enumerate(action_CH):
            for head in Head:
                found = [tensor_CH[c, head].item() for tensor_CH in heads]
                if not RELEVANT[action_H[Head.OP], head]:
                    assert found == [0.0, 0.0, 0]
                    continue
                given = min(int(head), 2)  # nothing for the operation, the operation for the slot, both for the others
                same_C = (action_CH[:, :given] == action_H[:given]).all(dim=1)
                values = action_CH[same_C, head].unique()
                mass_W = torch.stack([probability_C[same_C & (action_CH[:, head] == value)].sum() for value in values])
                chances_W = mass_W / mass_W.sum()
                assert found[0] == pytest.approx(chances_W[values == action_H[head]].log().item(), abs=1e-9)
                assert found[1] == pytest.approx(-(chances_W * chances_W.log()).sum().item(), abs=1e-9)
                assert found[2] == len(values)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), free=st.booleans(), scale=st.sampled_from([0.0, 1.0, 30.0]))
def test_head_log_probs_and_entropies_add_up_to_the_whole_action(seed: int, free: bool, scale: float) -> None:
    """Their log-probabilities exactly; their entropies on average, by the chain rule; and one legal value adds nothing."""
    distribution, _ = random_distribution(seed, free=free, scale=scale)
    for row in range(2):
        action_CH, log_prob_C = enumerated(distribution, row)
        repeated = row_of(distribution, row, len(action_CH))
        head_CH, entropy_CH, choices_CH = (
            tell(action_CH) for tell in (repeated.head_log_probs, repeated.head_entropies, repeated.head_choices)
        )
        torch.testing.assert_close(head_CH.sum(dim=1), log_prob_C, rtol=0, atol=1e-9)
        expected = (log_prob_C.exp() * entropy_CH.sum(dim=1)).sum()
        torch.testing.assert_close(expected, distribution.entropy()[row], rtol=0, atol=1e-9)
        certain_CH = choices_CH <= 1
        assert (head_CH[certain_CH] == 0).all()
        assert (entropy_CH[certain_CH] == 0).all()
        assert (entropy_CH <= choices_CH.clamp(min=1).log() + 1e-9).all()


@pytest.mark.parametrize("seed", range(3))
def test_mean_kl_estimate_over_all_actions_is_the_exact_divergence(seed: int) -> None:
    """The estimator ratio - 1 - ln ratio, averaged under the old policy, is KL(old || new) without error."""
    old, seen = random_distribution(seed, free=True)
    shifted = Logits(
        op_BO=old.op_BO + 0.3 * torch.randn(old.op_BO.shape, generator=torch.Generator().manual_seed(seed)),
        slot_BOS=old.slot_BOS,
        parameters={key: 0.5 * tensor for key, tensor in old.parameters.items()},
    )
    new = ActionDistribution(shifted, seen.legal_slots, seen.legal_values, SPEC.head_sizes)
    for row in range(4):
        action_CH, old_C = enumerated(old, row)
        new_C = row_of(new, row, len(action_CH)).log_prob(action_CH)
        estimate = (old_C.exp() * (torch.expm1(new_C - old_C) - (new_C - old_C))).sum()
        exact = torch.distributions.kl_divergence(
            torch.distributions.Categorical(logits=old_C), torch.distributions.Categorical(logits=new_C)
        )
        assert estimate.item() == pytest.approx(exact.item(), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), free=st.booleans(), scale=st.sampled_from([0.0, 1.0, 30.0]))
def test_illegal_actions_are_never_drawn(seed: int, free: bool, scale: float) -> None:
    distribution, seen = random_distribution(seed, rows=16, free=free, scale=scale, dtype=torch.float32)
    rng = np.random.default_rng(seed)
    uniforms = [rng.random((16, len(Head))), np.zeros((16, len(Head))), np.full((16, len(Head)), np.nextafter(1, 0))]
    row_B = torch.arange(16)
    for action_BH in [distribution.mode(), *(distribution.sample(torch.from_numpy(uniform)) for uniform in uniforms)]:
        assert seen.legal_slots[row_B, action_BH[:, Head.OP], action_BH[:, Head.SLOT]].all()
        assert parameters_legal(action_BH.numpy(), seen.legal_values.numpy(), SPEC.head_sizes).all()
        irrelevant = ~torch.from_numpy(RELEVANT)[action_BH[:, Head.OP]]
        assert (action_BH[irrelevant] == 0).all(), "heads without effect are stored as 0"
        assert (distribution.log_prob(action_BH) > -1e8).all()
    for op in Op:
        illegal_BS = ~seen.legal_slots[:, op]
        assert (distribution.slot_BOS[:, op].exp()[illegal_BS & seen.legal_slots[:, op].any(1, keepdim=True)] == 0).all()
    assert (distribution.op_BO.exp()[~seen.legal_slots.any(2)] == 0).all()


def test_an_illegal_action_has_no_probability_and_gives_no_nan() -> None:
    distribution, seen = random_distribution(0, free=True, dtype=torch.float32)
    row, op, slot = torch.nonzero(~seen.legal_slots)[0].tolist()
    action = torch.zeros(4, len(Head), dtype=torch.int64)
    action[:, Head.OP], action[:, Head.SLOT] = op, slot
    assert distribution.log_prob(action)[row] < -1e8
    assert torch.isfinite(distribution.entropy()).all()


def test_an_illegal_value_is_noticed_by_a_free_head_and_not_by_a_held_one() -> None:
    _, seen = random_distribution(0, rows=1)  # every head but the blueprint is held
    seen.legal_values[:, 0] = False  # of two blueprints, one stays
    legal_slots = torch.ones_like(seen.legal_slots)
    action = torch.zeros(1, len(Head), dtype=torch.int64)
    action[:, Head.OP] = Op.GERMINATE
    for parameters, noticed in (({(Op.GERMINATE, Head.BLUEPRINT): torch.zeros(1, 3, 2)}, True), ({}, False)):
        logits = Logits(op_BO=torch.zeros(1, len(Op)), slot_BOS=torch.zeros(1, len(Op), 3), parameters=parameters)
        log_prob = ActionDistribution(logits, legal_slots, seen.legal_values, SPEC.head_sizes).log_prob(action)
        assert bool(log_prob < -1e8) == noticed


def test_sampled_frequencies_match_probabilities() -> None:
    distribution, _ = random_distribution(3, rows=1, free=True, scale=1.0)
    action_CH, log_prob_C = enumerated(distribution, 0)
    draws = 20_000
    uniform = torch.from_numpy(np.random.default_rng(0).random((draws, len(Head))))
    drawn = row_of(distribution, 0, draws).sample(uniform)
    counts = (drawn[:, None] == action_CH[None]).all(dim=2).sum(dim=0)
    assert counts.sum() == draws
    probability = log_prob_C.exp()
    likely = probability * draws > 5
    chi2 = ((counts - draws * probability).square() / (draws * probability))[likely].sum()
    assert chi2 < likely.sum() + 5 * (2 * likely.sum()) ** 0.5


def test_inversion_takes_the_first_value_beyond_the_uniform_number() -> None:
    log_prob = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).log().clamp(min=-1e9).expand(6, -1)
    uniform = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.999999], dtype=torch.float64)
    assert inverse_cdf(log_prob, uniform).tolist() == [0, 0, 2, 2, 3, 3]


def test_pinned_heads_need_no_logits() -> None:
    distribution, seen = random_distribution(1, rows=32)
    assert {head for _, head in distribution.parameters} <= {Head.BLUEPRINT}
    assert {head for _, head in free_parameters(seen.legal_slots, seen.legal_values, SPEC.head_sizes)} <= {Head.BLUEPRINT}
    action_BH = distribution.sample(torch.rand(32, len(Head), generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    for head, value in PINNED.items():
        relevant = torch.from_numpy(RELEVANT)[action_BH[:, Head.OP], head]
        assert (action_BH[relevant, head] == value).all()


def test_one_legal_value_is_exactly_certain() -> None:
    legal = torch.tensor([[False, True, False]])
    log_prob = masked_log_softmax(torch.tensor([[3.0, -7.0, 900.0]]), legal)
    assert log_prob[0, 1].item() == 0.0
    assert entropy_of(log_prob).item() == 0.0


def test_half_precision_logits_are_normalised_in_single_precision() -> None:
    scores = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    assert masked_log_softmax(scores, torch.ones(1, 2, dtype=torch.bool)).dtype == torch.float32


def test_gradients_stay_finite_where_almost_everything_is_masked() -> None:
    distribution, _ = random_distribution(5, dtype=torch.float64)
    scores = torch.zeros(4, len(Op), requires_grad=True)
    legal = torch.zeros(4, len(Op), dtype=torch.bool)
    legal[:, Op.WAIT] = True
    legal[0, Op.PRUNE] = True
    entropy_of(masked_log_softmax(scores, legal)).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[~legal] == 0).all()
    assert distribution.entropy().isfinite().all()
