"""`esper.grow`: seeds in a module of a user, against networks that autograd differentiates and against Esper's own hosts."""

import copy
import io
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.fusion.layout import Layout
from esper.growable.module import GrowableModule
from esper.growth.network import GrowingNetwork
from esper.hosts.base import Host, SlotSpec
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.roles import Incubation
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import Stage
from esper.measure.potential import PotentialSensor
from esper.optimisers.sgd import SGDConfig
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.dense import MLPSmallSeedConfig

ROOT = Path(__file__).parents[2]
SLOTS = {"early": "1", "late": "4"}


def module() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)]
    return nn.Sequential(*layers)


def batch(seed: int = 1, count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def loss_of(net: nn.Module, seed: int = 1) -> Callable[[], Tensor]:
    x, y = batch(seed)
    return lambda: F.cross_entropy(net(x), y)


def grown(**settings: Any) -> GrowableModule:
    return esper.grow(module(), SLOTS, batch()[0], **settings)


def moved(seed: nn.Module | None) -> None:
    """Give a newborn seed an effect."""
    assert seed is not None
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in seed.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def active(net: GrowableModule, slot: str = "early", blend: str = "add", **settings: Any) -> GrowableModule:
    """Plant a seed with an effect, and begin an epoch."""
    net.germinate(slot, "conv_light", blend=blend, **settings)
    moved(net.seed(slot))
    net.begin_epoch()
    return net


def by_hand(net: GrowableModule, x: Tensor, alpha: float, *, isolated: bool = False, blend: str = "add") -> Tensor:
    """Compute the network with a seed in the early slot by plain operations."""
    layers, seed = list(net.module.children()), net.seed("early")
    assert seed is not None
    h = layers[1].forward(layers[0](x))  # without its hook
    delta = seed(h.detach() if isolated else h)
    h = h * (1 + alpha * torch.tanh(delta)) if blend == "multiply" else h + alpha * delta
    return nn.Sequential(*layers[2:])(h)


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def assert_same(one: dict[str, Tensor | None], other: dict[str, Tensor | None], names: str = "") -> None:
    for name, grad in one.items():
        if name.startswith(names) and (grad is not None or other[name] is not None):
            torch.testing.assert_close(grad, other[name], rtol=1e-5, atol=1e-7, msg=name)


def test_slots_change_nothing_before_a_seed_and_nothing_at_its_birth() -> None:
    net, x = grown(), batch()[0]
    assert net(x).equal(module()(x))
    net.germinate("late", "conv_light")
    net.begin_epoch()
    assert net(x).equal(module()(x))


@pytest.mark.parametrize("blend", ["add", "gate", "multiply"])
@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_an_active_seed_is_what_autograd_makes_of_its_formula(blend: str, alpha: float) -> None:
    net, (x, y) = active(grown(), blend=blend, alpha=alpha), batch()
    F.cross_entropy(net(x), y).backward()
    found = gradients(net)
    net.zero_grad()
    F.cross_entropy(by_hand(net, x, alpha, blend=blend), y).backward()
    assert_same(found, gradients(net))
    assert found["slots.0.seed." + ("branch." if blend == "gate" else "") + "0.weight"] is not None or blend == "gate"
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), by_hand(net, x, alpha, blend=blend))


def test_straight_through_gives_the_seed_a_gradient_and_leaves_the_module_alone() -> None:
    net, alone, (x, y) = active(grown(incubation="straight_through")), module(), batch()
    F.cross_entropy(net(x), y).backward()
    F.cross_entropy(alone(x), y).backward()
    for name, parameter in alone.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.equal(gradients(net)["module." + name])
    found = gradients(net)
    net.zero_grad()
    again = copy.deepcopy(net)
    layers, seed = list(again.module.children()), again.seed("early")
    assert seed is not None
    h = layers[1].forward(layers[0](x))  # without its hook
    delta = seed(h.detach())
    F.cross_entropy(nn.Sequential(*layers[2:])(h + delta - delta.detach()), y).backward()
    assert_same(found, gradients(again), "slots.")


def test_a_closed_loop_teaches_the_seed_its_own_effect_and_leaves_the_module_alone() -> None:
    net, alone, (x, y) = active(grown(incubation="closed_loop")), module(), batch()
    F.cross_entropy(net(x), y).backward()
    F.cross_entropy(alone(x), y).backward()
    before = copy.deepcopy(net.state_dict())
    net.incubate(lambda: F.cross_entropy(net(x), y))
    for name, parameter in alone.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.equal(gradients(net)["module." + name])
    assert all(value.equal(before[name]) for name, value in net.state_dict().items() if isinstance(value, Tensor))
    assert net.training
    found = gradients(net)
    net.zero_grad()
    F.cross_entropy(by_hand(net.eval(), x, 1.0), y).backward()
    assert_same(found, gradients(net), "slots.")


def test_a_forgotten_second_pass_is_an_error() -> None:
    net = active(grown(incubation="closed_loop"))
    loss_of(net)().backward()
    with pytest.raises(RuntimeError, match=r"net.incubate\(loss\)"):
        net.begin_epoch()


def test_a_seed_lives_through_all_stages_as_in_a_host() -> None:
    net = grown(incubation="straight_through")
    net.germinate("early", "norm", ramp=2)
    stages = [net.stage("early")]
    for epoch in range(5):
        if epoch == 1:
            assert net.advance("early") is Stage.BLENDING
        net.begin_epoch()
        stages.append(net.stage("early"))
        net.contributions(lambda: -float(loss_of(net)()))
    assert [str(one) for one in stages] == ["germinated", "training", "blending", "holding", "holding", "holding"]
    assert net.alpha("early") == 1
    net.set_alpha("early", 0.5, ramp=1)
    net.begin_epoch()
    assert (net.stage("early"), net.alpha("early")) == (Stage.BLENDING, 0.5)
    with pytest.raises(ValueError, match="holds a seed in the stage blending, and only a holding seed can be kept"):
        net.fossilize("early")
    net.prune("early", ramp=2)
    net.begin_epoch()
    assert net.alpha("early") == 0.25
    net.begin_epoch()
    assert net.seed("early") is None
    net.begin_epoch()
    net.germinate("early", "norm")


def test_fossils_are_kept_and_can_be_frozen_and_switched() -> None:
    net = grown(rules=SlotsConfig(min_prune_age=0, incubation=Incubation.none, fossils="frozen", switchable=True))  # pyright: ignore[reportArgumentType]
    active(net)
    net.advance("early")
    with pytest.raises(ValueError, match="whose contribution was never measured"):
        net.fossilize("early")
    net.contributions(lambda: -float(loss_of(net)()))
    net.fossilize("early")
    loss_of(net)().backward()
    seed = net.seed("early")
    assert seed is not None
    assert all(parameter.grad is None for parameter in seed.parameters())
    with pytest.raises(ValueError, match="prune is not permitted: slot early holds a fossil"):
        net.prune("early")
    x = batch()[0]
    net.eval()
    with net.without("early"):
        alone = net(x)
    net.switch("early")
    assert net(x).equal(alone)
    net.switch("early")
    assert not net(x).equal(alone)


def test_gates_close_until_their_condition_is_met() -> None:
    net = active(grown(gates=GatesConfig(min_training=3)))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"holds a seed in training for . epochs?, and gates\.min_training is 3"):
            net.advance("early")
        net.begin_epoch()
    assert net.advance("early") is Stage.HOLDING


def test_the_optimizer_trains_each_seed_while_it_lives() -> None:
    net = grown()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    net.attach(optimizer, lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    seed = active(net).seed("early")
    assert seed is not None
    before = nn.utils.parameters_to_vector(seed.parameters()).clone()
    loss_of(net)().backward()
    optimizer.step()
    scheduler.step()
    assert not nn.utils.parameters_to_vector(seed.parameters()).equal(before)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.001, 0.5 * 0.1])
    assert len(optimizer.state) == len(list(net.parameters()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    net.prune("early")
    assert len(optimizer.param_groups) == 1, "also after a checkpoint was loaded"
    assert len(optimizer.state) == len(list(net.parameters()))


def train(net: GrowableModule, optimizer: torch.optim.Optimizer, epochs: range) -> None:
    for epoch in epochs:
        if epoch == 1:
            net.germinate("late", "conv_light", ramp=3)
        if epoch == 2:
            net.germinate("early", ConvLightConfig(kernel=5), blend="gate", alpha=0.5, ramp=2)
        if epoch == 4:
            net.advance("late")
        net.begin_epoch()
        for step in range(3):
            loss = loss_of(net, 10 * epoch + step)
            optimizer.zero_grad()
            loss().backward()
            net.incubate(loss)
            optimizer.step()


def test_a_checkpoint_goes_on_bit_for_bit() -> None:
    def fresh() -> tuple[GrowableModule, torch.optim.Optimizer]:
        net = grown(incubation="closed_loop")
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        net.attach(optimizer)
        return net, optimizer

    whole, optimizer = fresh()
    train(whole, optimizer, range(4))
    file = io.BytesIO()
    torch.save({"net": whole.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(whole, optimizer, range(4, 7))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, optimizer = fresh()
    resumed.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    train(resumed, optimizer, range(4, 7))
    assert resumed.stage("late") is whole.stage("late") is Stage.HOLDING
    one, other = whole.state_dict(), resumed.state_dict()
    assert one.keys() == other.keys()
    assert all(value.equal(other[name]) for name, value in one.items() if isinstance(value, Tensor))


def test_copies_and_pickles_are_networks_of_their_own() -> None:
    net, x = active(grown()).eval(), batch()[0]
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other(x).equal(net(x))
        moved(other.seed("early"))
        assert not other(x).equal(net(x))


def test_contributions_are_paired_differences() -> None:
    net, (x, y) = active(active(grown()), "late"), batch(3, 50)

    def score() -> Tensor:
        assert not net.training
        assert not torch.is_grad_enabled()
        return -F.cross_entropy(net(x), y, reduction="none")

    net.train()
    found = net.contributions(score)
    assert net.training
    net.eval()
    with torch.no_grad():
        whole = score()
        with net.without("early"):
            less = score()
    assert found["early"].value == pytest.approx(float((whole - less).mean()), rel=1e-5)
    assert found["early"].error == pytest.approx(float((whole - less).std() / 50**0.5))
    assert found.keys() == {"early", "late"}
    one = net.contributions(lambda: float(score().mean()))["early"]
    assert one.error is None
    assert one.value == pytest.approx(found["early"].value, rel=1e-4)


def test_the_growth_potential_is_that_of_a_host() -> None:
    """Oracle: the same layers as one of Esper's fused hosts."""
    layers = list(module().children())
    host = Host(
        [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:5]), nn.Sequential(*layers[5:])],
        [SlotSpec("early", 4, Layout.IMAGES), SlotSpec("late", 8, Layout.IMAGES)],
    )
    blueprints = [ConvLightConfig(), esper_blueprint("norm")]
    network = GrowingNetwork([host], blueprints, optimiser=SGDConfig())
    x, y = batch(count=32)
    captured = network.capture(x, y[None])
    wanted = PotentialSensor(blueprints, host.slots, "cpu").measure(captured)[0]
    net = grown()
    found = net.potential(lambda: F.cross_entropy(net(x), y), ["conv_light", "norm"])
    got = torch.tensor([list(found[slot].values()) for slot in SLOTS])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-12)
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert "lora" not in net.potential(lambda: F.cross_entropy(net(x), y))["early"]
    both = net.potential(lambda: F.cross_entropy(net(x), y), [ConvLightConfig(), ConvLightConfig(kernel=5)])["early"]
    assert list(both) == ["conv_light", "conv_light(kernel=5)"]
    assert both["conv_light"] == pytest.approx(found["early"]["conv_light"]) != both["conv_light(kernel=5)"]


def esper_blueprint(name: str) -> Any:
    from esper.seeds.blueprints.registry import BLUEPRINTS

    return BLUEPRINTS[name]()


def test_an_informed_seed_starts_with_a_larger_gradient() -> None:
    def first(init: str) -> float:
        net = grown()
        torch.manual_seed(5)
        seed = net.germinate("late", ConvLightConfig(init=init), loss=loss_of(net))  # pyright: ignore[reportArgumentType]
        net.begin_epoch()
        net.eval()
        loss_of(net)().backward()
        return sum(float(parameter.grad.square().sum()) for parameter in seed.parameters() if parameter.grad is not None)

    assert first("informed") > first("default")


class Encoder(nn.Module):
    """A network with an input of several tensors, and sequences within."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens), src_key_padding_mask=mask))


def test_seeds_grow_in_sequences_and_vectors_and_beside_autocast() -> None:
    tokens, mask = torch.randint(0, 11, (3, 5)), torch.zeros(3, 5, dtype=torch.bool)
    net = esper.grow(Encoder(), ["layer"], (tokens, mask))
    for blueprint in ("lora", "attention"):
        seed = net.germinate("layer", blueprint)
        net.begin_epoch()
        net(tokens, mask).sum().backward()
        assert any(parameter.grad is not None and parameter.grad.any() for parameter in seed.parameters())
        net.prune("layer")
        for _ in range(2):
            net.begin_epoch()
    rows = esper.grow(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), ["1"], torch.randn(2, 4))
    rows.germinate("1", MLPSmallSeedConfig())
    moved(rows.seed("1"))
    rows.begin_epoch()
    with torch.autocast("cpu", torch.bfloat16):
        rows(torch.randn(5, 4)).float().sum().backward()
    assert all(parameter.grad is not None for parameter in rows.parameters())


def test_a_grown_network_can_be_taken_away(tmp_path: Any) -> None:
    net, x = active(grown(), blend="multiply"), batch()[0]
    assert net.export(tmp_path, x) < 1e-5
    names: dict[str, Any] = {"__file__": str(tmp_path / "network.py")}
    exec((tmp_path / "network.py").read_text(), names)
    torch.testing.assert_close(names["load"](tmp_path)(x), net.eval()(x))
    assert "esper" not in (tmp_path / "network.py").read_text().replace("grown by Esper", "")
    about = json.loads((tmp_path / "topology.json").read_text())
    assert [seed["name"] for seed in about["seeds"]] == ["conv_light"]
    assert about["input"] == {"shape": ["batch", *x.shape[1:]], "dtype": "float32"}


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/grow.md").read_text(), re.DOTALL)
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["dormant"] * 2 + ["training"] * 2 + ["holding"] * 2
