"""Costs: counted FLOPs compared with layer shapes and with the fused program."""

# M members, S slots, V variants

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper.fusion.layers import CausalAttention
from esper.growth.network import GrowingNetwork
from esper.hosts.base import slot_specs
from esper.hosts.cnn import CNNConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig
from esper.lifecycle import operations
from esper.lifecycle.roles import Blend, Incubation, Roles
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import Stage, empty
from esper.measure.costs import Meter, count_costs, count_flops
from esper.optimisers.sgd import SGDConfig
from esper.seeds.bank import seed_module
from esper.seeds.blueprints.attention import SelfAttention
from esper.seeds.blueprints.dense import LoraConfig, MLPSeedConfig
from esper.seeds.blueprints.registry import BLUEPRINTS
from tests.reference_host import variants

CLASSES, CONTEXT = 10, 6
HOSTS = {
    "cnn": lambda: CNNConfig(base_channels=4).build((1, 8, 8), CLASSES, [False, True, False]),
    "mlp": lambda: MLPConfig(width=8).build((64,), CLASSES, [False] * MLPConfig().layers),
    "transformer": lambda: TransformerConfig(width=8, context=CONTEXT).build((8,), CLASSES, [False, True]),
}
each_host = pytest.mark.parametrize("kind", list(HOSTS))
ALL = tuple(kind() for kind in BLUEPRINTS.values())


def samples(kind, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if kind == "transformer":
        return torch.randint(CLASSES, (count, CONTEXT), generator=generator)
    return torch.randn(count, 1, 8, 8, generator=generator)


def by_shapes(module, x):
    """Return the output of a module, and its FLOPs from the shapes of its layers; attention covers all positions."""
    total = 0

    def count(layer, args, out):
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += 2 * out.numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Linear):
            total += 2 * out.numel() * layer.in_features
        elif isinstance(layer, CausalAttention | SelfAttention):
            total += 4 * out.numel() * out.shape[1]

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        y = module(x)
    for hook in hooks:
        hook.remove()
    return y, total


def program_flops(run):
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


# ---- one sample


@each_host
def test_flops_and_parameters_follow_from_layer_shapes(kind):
    host, x = HOSTS[kind]().eval(), samples(kind, 1)
    costs = count_costs(host, ALL, x)
    forward, specs, grown = costs.flops.forward, slot_specs(host), 0
    for slot, segment in enumerate(host.segments):
        x, flops = by_shapes(segment, x)
        assert costs.flops.segment_R[slot] == flops
        if slot == len(specs):
            continue
        for number, blueprint in enumerate(ALL):
            for gated in (False, True):
                if blueprint.obstacle(specs[slot]):
                    assert forward.seed_KS[number, slot] == costs.params.seed_KS[number, slot] == 0
                    continue
                grown += 1
                module = seed_module(blueprint, specs[slot], gated=gated)
                extra = forward.gate_S[slot] if gated else 0
                assert forward.seed_KS[number, slot] + extra == by_shapes(module, x)[1]
                extra = costs.params.gate_S[slot] if gated else 0
                assert costs.params.seed_KS[number, slot] + extra == sum(p.numel() for p in module.parameters())
    assert forward.host == costs.flops.segment_R.sum() > 0
    assert costs.params.host == sum(parameter.numel() for parameter in host.parameters())
    assert grown >= 2 * 5 * len(specs)


def test_known_flops():
    """conv_light on 8x8 of 4 channels: 2 * 64 * 4 * 4 * (9 + 1); a first block 2 * 64 * 4 * 9."""
    costs = count_costs(HOSTS["cnn"](), (BLUEPRINTS["conv_light"](),), samples("cnn", 1))
    assert costs.flops.forward.seed_KS[0, 0] == 20480
    assert costs.flops.segment_R[0] == 4608


def test_counting_does_not_move_the_random_stream():
    host = HOSTS["mlp"]()
    before = torch.get_rng_state()
    count_costs(host, ALL, samples("mlp", 1))
    assert torch.equal(before, torch.get_rng_state())


def test_layers_from_outside_the_package_are_counted():
    layer = nn.ConvTranspose1d(3, 5, 4)
    assert count_flops(layer, torch.randn(1, 3, 7))[1] == 2 * 7 * 3 * 5 * 4


def test_attention_of_pytorch_counts_in_evaluation_as_in_training():
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(1, 5, 8)
    whole = 2 * 5 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 2 * 5 * 5 * 8  # projections and MLP; scores and their use
    assert [count_flops(layer.train(mode), x)[1] for mode in (True, False)] == [whole, whole]
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_seed_and_its_gate_cost_from_germination_on():
    costs = count_costs(HOSTS["cnn"](), ALL, samples("cnn", 1))
    state = empty(2, 3)
    state.stage[0], state.blueprint[0] = (Stage.GERMINATED, Stage.PRUNED, Stage.FOSSILIZED), (3, 3, 4)
    state.blend[0, 2] = Blend.GATE
    for price in (costs.params, costs.flops.forward):
        expected = [price.seed_KS[3, 0], 0, price.seed_KS[4, 2] + price.gate_S[2]]
        assert price.of(state).tolist() == [expected, [0, 0, 0]]
    committed = costs.committed(np.array([[-1, -1, 4], [-1, -1, -1]]), state.blend)
    assert committed["params"].tolist() == [costs.params.host + costs.params.of(state)[0, 2], costs.params.host]
    assert np.isnan(committed["latency"]).all()


# ---- the fused program


def network_of(kind, seed, incubation=Incubation.straight_through, *, learning=False, frozen=False, stopped=False):
    """Return one host with seeds, its roles, and its costs; if `stopped`, some seeds behind it no longer learn."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    host = HOSTS[kind]()
    specs = slot_specs(host)
    usable = [one for one in ALL if not any(one.obstacle(spec) for spec in specs)]
    if learning:  # linear maps: torch miscounts the backward pass of grouped convolutions
        usable = [LoraConfig(), MLPSeedConfig()]
    costs = count_costs(host, usable, samples(kind, 1))
    network = GrowingNetwork([host], usable, optimiser=SGDConfig(), incubation=incubation, frozen=frozen)
    shape = (1, len(specs))
    planted = rng.random(shape) < 0.8
    behind, learns = planted & (rng.random(shape) < 0.4), rng.random(shape) < 0.7
    roles = Roles(
        blueprint=np.where(planted, rng.integers(len(usable), size=shape), -1),
        blend=rng.integers(len(Blend), size=shape),
        alpha=np.where(behind, 0.0, rng.choice([0.5, 1.0], shape)).astype(np.float32),
        behind=behind,
        open=planted & ~behind & (rng.random(shape) < 0.5),
        learns=planted & (learns | (behind & (not stopped))),
        fossil=np.zeros(shape, bool),
    )
    for slot in np.flatnonzero(planted[0]):
        generator = torch.Generator().manual_seed(int(slot))
        blend = Blend(int(roles.blend[0, slot]))
        network.plant(0, int(slot), int(roles.blueprint[0, slot]), generator, blend)
    network.arrange(roles)
    return network, roles, costs, rng


@each_host
@pytest.mark.parametrize("incubation", [Incubation.straight_through, Incubation.closed_loop])
def test_measuring_equals_the_flops_of_the_branching_forward(kind, incubation):
    shared = 0
    for seed in range(4):
        network, roles, costs, rng = network_of(kind, seed, incubation)
        alpha_VMS = np.where(rng.random((7, *roles.alpha.shape)) < 0.5, roles.alpha, 0.0).astype(np.float32)
        network.train(False)
        done = program_flops(lambda: variants(network, samples(kind, 5), alpha_VMS))  # noqa: B023
        counted = costs.flops.measuring(roles, incubation, alpha_VMS)
        assert 5 * counted[0] == done
        shared += 7 * costs.flops.measuring(roles, incubation, alpha_VMS[:1])[0] > counted[0]
    assert shared == 4


def test_training_equals_the_flops_of_forward_and_backward():
    for seed in range(8):
        network, roles, costs, _ = network_of("transformer", seed, learning=True)
        network.train()
        x, y = samples("transformer", 5), torch.randint(CLASSES, (1, 5, CONTEXT))
        done = program_flops(lambda: network.backward(x, y))  # noqa: B023
        assert 5 * costs.flops.training(roles, Incubation.straight_through)[0] == done


def test_training_of_a_frozen_host_equals_its_flops_but_for_the_input_of_the_first_seed_that_learns():
    """Gradients of the features before that seed are not computed."""
    for seed in range(8):
        network, roles, costs, _ = network_of("mlp", seed, learning=True, frozen=True)
        if not seed % 4:
            roles = replace(roles, learns=np.zeros_like(roles.learns))
            network.arrange(roles)
        network.train()
        x, y = samples("mlp", 5), torch.randint(CLASSES, (1, 5))
        done = program_flops(lambda: network.backward(x, y))  # noqa: B023
        counted = costs.flops.training(roles, Incubation.straight_through, frozen=True)[0]
        learners = np.flatnonzero(roles.learns[0])
        first = costs.flops.forward.at(roles.blueprint, roles.blend)[0, learners[0]] if len(learners) else 0
        assert 5 * (counted - first) <= done <= 5 * counted
        assert counted < costs.flops.training(roles, Incubation.straight_through)[0]
        assert network.host.flat.grad is None


def test_training_equals_the_flops_of_the_closed_loop_pass_but_for_its_ends():
    """The features where the pass starts need no gradient, and both factors of attention need one."""
    passes = 0
    for seed in range(16):
        network, roles, costs, _ = network_of("transformer", seed, Incubation.closed_loop, learning=True, stopped=seed >= 8)
        network.train()
        x, y = samples("transformer", 5), torch.randint(CLASSES, (1, 5, CONTEXT))
        done = program_flops(lambda: network.backward(x, y))  # noqa: B023
        off = 0
        if network.closed_loop is not None:
            passes += 1
            first = int(np.argmax(roles.behind[0] & roles.learns[0]))
            segments = list(network.host.module.segments)[first + 1 :]
            attentions = sum("Attention" in type(layer).__name__ for segment in segments for layer in segment.modules())
            off += attentions * 4 * CONTEXT**2 * 8
            if isinstance(network.blueprints[roles.blueprint[0, first]], LoraConfig):  # a layer norm needs the gradient
                off -= 2 * CONTEXT * 8 * 8
            if roles.blend[0, first] == Blend.GATE:
                off -= 2 * CONTEXT * 8 * 8
        assert 5 * (costs.flops.training(roles, Incubation.closed_loop)[0] + off) == done
    assert passes >= 8


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), hosts=st.integers(1, 5), variants=st.integers(1, 6))
def test_costs_of_a_host_do_not_depend_on_others(seed, hosts, variants):
    rng, costs = np.random.default_rng(seed), count_costs(HOSTS["cnn"](), (LoraConfig(), *ALL[:4]), samples("cnn", 1))
    shape = (hosts, 3)
    behind, learns, is_open = (rng.random(shape) < 0.5 for _ in range(3))
    roles = Roles(
        blueprint=rng.integers(-1, 5, size=shape),
        blend=rng.integers(3, size=shape),
        alpha=rng.random(shape, np.float32),
        behind=behind,
        open=is_open,
        learns=learns,
        fossil=np.zeros(shape, bool),
    )
    alpha_VNS = rng.choice([0.0, 0.5, 1.0], (variants, *shape)).astype(np.float32)
    for incubation in Incubation:
        training_N = costs.flops.training(roles, incubation)
        measuring_N = costs.flops.measuring(roles, incubation, alpha_VNS)
        for host in range(hosts):
            rows = slice(host, host + 1)
            assert costs.flops.training(roles.of(rows), incubation) == training_N[rows]
            assert costs.flops.measuring(roles.of(rows), incubation, alpha_VNS[:, rows]) == measuring_N[rows]
            # Brute force: every distinct path up to a slot is computed once.
            inside_S = (roles.blueprint[host] >= 0) & ~(behind[host] & (incubation is Incubation.closed_loop))
            seed_S = costs.flops.forward.at(roles.blueprint, roles.blend)[host] * inside_S
            paths = [{tuple(path[:slot]) for path in (alpha_VNS[:, host] * inside_S).tolist()} for slot in range(4)]
            total = sum(len(path) * flops for path, flops in zip(paths, costs.flops.segment_R.tolist(), strict=True))
            for slot, flops in enumerate(seed_S.tolist()):
                for path in paths[slot]:
                    alphas = {longer[slot] for longer in paths[slot + 1] if longer[:slot] == path}
                    forks = len(paths[slot]) > 1 or len(alphas) > 1
                    total += flops * bool(alphas - {0.0} or behind[host, slot] or not forks)
            assert measuring_N[host] == total


def test_meter_adds_up_and_restarts():
    costs = count_costs(HOSTS["cnn"](), ALL, samples("cnn", 1))
    meter, roles = Meter(costs.flops, Incubation.straight_through), operations.roles(empty(2, 3), SlotsConfig())
    meter.start(2)
    meter.train(roles, 10, 5)
    meter.train(roles, 10, 5)
    meter.measure(roles, np.zeros((3, 2, 3), np.float32), 7)
    assert meter.training_N.tolist() == [60 * costs.flops.forward.host] * 2
    assert meter.measuring_N.tolist() == [7 * costs.flops.forward.host] * 2
    meter.start(1)
    assert meter.training_N.tolist() == meter.measuring_N.tolist() == [0.0]
    idle = Meter(costs.flops, Incubation.none, frozen=True)
    idle.start(2)
    idle.train(roles, 10, 5)
    assert idle.training_N.tolist() == [5 * costs.flops.forward.host] * 2, "a frozen host without seeds sees one batch"
