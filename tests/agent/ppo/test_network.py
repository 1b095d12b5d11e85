"""The network: unrolling equals single steps, and slots are treated by their contents."""

# T steps, N hosts, S slots

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.agent.ppo.network import PolicyNetwork
from esper.buffer.rollout import TensorObservation
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec
from esper.seeding import torch_stream
from tests.agent.toy_envs import make_spec, random_observation

SPEC = make_spec(hosts=6, steps=9)


def make_network(
    spec: EnvSpec = SPEC, *, seed: int = 0, identity: bool = False, depth: bool = False, wait_bias: float = 1.0
) -> PolicyNetwork:
    return PolicyNetwork(
        spec,
        hidden=24,
        slot_width=16,
        blueprint_width=4,
        slot_identity=identity,
        slot_depth=depth,
        wait_bias=wait_bias,
        generator=torch_stream(seed, "policy_init"),
    )


def grown(network: PolicyNetwork) -> PolicyNetwork:
    """With weights that are not small anywhere, so that differences would show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def random_sequence(*, resets: float, seed: int = 0) -> tuple[TensorObservation, torch.Tensor]:
    rng = np.random.default_rng(seed)
    steps = [TensorObservation.of(random_observation(SPEC, rng)) for _ in range(SPEC.num_steps)]
    tensors = {name: torch.stack([step.tensors()[name] for step in steps]) for name in steps[0].tensors()}
    is_init = torch.from_numpy(rng.random((SPEC.num_steps, SPEC.num_hosts)) < resets)
    return TensorObservation(**tensors), is_init


@pytest.mark.parametrize("resets", [0.0, 0.15, 1.0])
def test_unrolling_equals_single_steps(resets: float) -> None:
    network = grown(make_network())
    seen, is_init = random_sequence(resets=resets)
    generator = torch.Generator().manual_seed(2)
    start = {name: torch.randn(6, 24, generator=generator) for name in ("h", "c")}
    action = torch.zeros(6, len(Head), dtype=torch.int64)
    with torch.no_grad():
        at_once, end = network.unroll(seen, start, is_init)
        state = start
        for t in range(SPEC.num_steps):
            outputs, state = network.step(seen[t], state, is_init[t])
            rows = slice(6 * t, 6 * (t + 1))
            for name in ("op_BO", "slot_BOS"):
                step, whole = getattr(outputs.distribution, name), getattr(at_once.distribution, name)[rows]
                torch.testing.assert_close(step, whole, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(outputs.value_B, at_once.value_B[rows], atol=1e-5, rtol=1e-5)
            wait = outputs.distribution.log_prob(action)
            torch.testing.assert_close(wait, at_once.distribution.log_prob(action.repeat(9, 1))[rows], atol=1e-5, rtol=1e-5)
    for name, tensor in end.items():
        torch.testing.assert_close(state[name], tensor, atol=1e-5, rtol=1e-5)


def test_a_reset_clears_the_memory_of_its_host_only() -> None:
    network = grown(make_network())
    seen, is_init = random_sequence(resets=0.0)
    is_init[4, 2] = True
    changed = TensorObservation(**(seen.tensors() | {"features": seen.features.clone()}))
    changed.features[:4, 2] += 1.0
    with torch.no_grad():
        before, _ = network.unroll(seen, network.start(6), is_init)
        after, _ = network.unroll(changed, network.start(6), is_init)
        without, _ = network.unroll(changed, network.start(6), torch.zeros_like(is_init))
    before, after, without = (outputs.value_B.view(9, 6) for outputs in (before, after, without))
    assert (after[:4, 2] != before[:4, 2]).all()
    torch.testing.assert_close(after[4:], before[4:])
    assert (without[4:, 2] != before[4:, 2]).all(), "without a reset the past matters"


def test_permuting_slots_permutes_their_scores_and_changes_nothing_else() -> None:
    network = grown(make_network())
    seen = TensorObservation.of(random_observation(SPEC, np.random.default_rng(0), legal=1.0))
    order = torch.tensor([2, 0, 1])
    swapped = TensorObservation(
        features=seen.features,
        slots=seen.slots[:, order],
        blueprints=seen.blueprints[:, order],
        legal_slots=seen.legal_slots[:, :, order],
        legal_values=seen.legal_values,
    )
    first = torch.ones(6, dtype=torch.bool)
    with torch.no_grad():
        one, _ = network.step(seen, network.start(6), first)
        two, _ = network.step(swapped, network.start(6), first)
    torch.testing.assert_close(two.distribution.slot_BOS, one.distribution.slot_BOS[:, :, order])
    torch.testing.assert_close(two.distribution.op_BO, one.distribution.op_BO)
    torch.testing.assert_close(two.value_B, one.value_B)
    for key, tensor in one.distribution.parameters.items():
        torch.testing.assert_close(two.distribution.parameters[key], tensor[:, order])


@pytest.mark.parametrize(("identity", "depth"), [(False, False), (True, False), (False, True)])
def test_equal_slots_differ_only_by_identity_or_depth(identity: bool, depth: bool) -> None:
    seen = TensorObservation.of(random_observation(SPEC, np.random.default_rng(0), legal=1.0))
    seen.slots[:], seen.blueprints[:] = seen.slots[:, :1].clone(), seen.blueprints[:, :1].clone()
    network = make_network(identity=identity, depth=depth)
    with torch.no_grad():
        at_birth, _ = network.step(seen, network.start(6), torch.ones(6, dtype=torch.bool))
        outputs, _ = grown(network).step(seen, network.start(6), torch.ones(6, dtype=torch.bool))
    spread = outputs.distribution.slot_BOS.std(dim=2).max()
    assert at_birth.distribution.slot_BOS.std(dim=2).max() < 1e-6
    assert (spread > 1e-3) == (identity or depth)


def test_the_depth_of_first_and_last_slot_is_the_same_in_every_host() -> None:
    few, many = SPEC.num_slots, 2 * SPEC.num_slots - 1  # every second of the many is as deep as one of the few
    seen = TensorObservation.of(random_observation(SPEC, np.random.default_rng(0)))
    stretched = TensorObservation(
        **(
            seen.tensors()
            | {"slots": seen.slots[:, :1].expand(-1, many, -1), "blueprints": seen.blueprints[:, :1].expand(-1, many)}
        )
    )
    alike = TensorObservation(
        **(seen.tensors() | {"slots": stretched.slots[:, :few], "blueprints": stretched.blueprints[:, :few]})
    )
    network = grown(make_network(depth=True))
    with torch.no_grad():
        torch.testing.assert_close(network.encode(stretched)[:, ::2], network.encode(alike))
    assert not torch.equal(network.encode(alike)[:, 0], network.encode(alike)[:, -1])


def test_slot_identity_and_depth_change_no_other_initial_weight() -> None:
    plain = make_network().state_dict()
    both = make_network(identity=True, depth=True).state_dict()
    assert set(both) - set(plain) == {"identity", "depth"}
    assert all(both[name].equal(tensor) for name, tensor in plain.items())


@pytest.mark.parametrize("slots", [1, 5])
def test_any_number_of_slots(slots: int) -> None:
    spec = make_spec(hosts=6, slots=slots)
    network = make_network(spec)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in make_network().parameters())
    seen = TensorObservation.of(random_observation(spec, np.random.default_rng(0)))
    outputs, _ = network.step(seen, network.start(6), torch.ones(6, dtype=torch.bool))
    assert outputs.distribution.slot_BOS.shape == (6, len(Op), slots)


def test_outputs_depend_on_blueprints_and_slot_features() -> None:
    network = grown(make_network())
    seen = TensorObservation.of(random_observation(SPEC, np.random.default_rng(0)))
    first = torch.ones(6, dtype=torch.bool)
    with torch.no_grad():
        base, _ = network.step(seen, network.start(6), first)
        for name, other in (
            ("blueprints", (seen.blueprints + 1) % 5),
            ("slots", seen.slots + 1),
            ("features", seen.features + 1),
        ):
            outputs, _ = network.step(replace(seen, **{name: other}), network.start(6), first)
            assert (outputs.value_B != base.value_B).all(), name


def test_a_new_policy_is_uniform_except_for_the_bias_of_waiting() -> None:
    network = make_network(wait_bias=2.0)
    seen = TensorObservation.of(random_observation(SPEC, np.random.default_rng(0), legal=1.0))
    with torch.no_grad():
        outputs, _ = network.step(seen, network.start(6), torch.ones(6, dtype=torch.bool))
    probability = outputs.distribution.op_BO.exp()
    expected = np.exp(2.0) / (np.exp(2.0) + len(Op) - 1)
    assert (probability[:, Op.WAIT] - expected).abs().max() < 0.02
    assert (outputs.distribution.slot_BOS.exp() - 1 / 3).abs().max() < 0.02


def test_forget_bias_is_one_in_total() -> None:
    core = make_network().core
    total = core.bias_ih_l0 + core.bias_hh_l0
    assert total.view(4, 24).tolist() == [[float(gate == 1)] * 24 for gate in range(4)]


def test_the_seed_determines_initial_weights_and_no_global_stream_is_used() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = make_network(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    two, other = make_network(seed=3), make_network(seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.op.weight, other.op.weight)
