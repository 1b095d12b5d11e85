"""`esper.grow` in programs that do more: heads beside the network, named optimizers, restored weights, conversions, copies."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.config import GROUPS
from esper.growable.stored import decode
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.roles import Fossils, Incubation
from esper.lifecycle.slots import SlotsConfig
from esper.seeds.blueprints.base import BlueprintConfig
from tests.emulated import emulates, on_emulated_gpu
from tests.growable.test_grow import active, batch, grown, loss_of, moved
from tests.worlds import in_a_loop


def test_a_closed_loop_gives_no_gradient_to_what_is_beside_the_network() -> None:
    net, (x, y) = active(grown(incubation="closed_loop")), batch()
    head, x = nn.Linear(3, 3), x.requires_grad_()

    def loss() -> Tensor:
        return F.cross_entropy(head(net(x)), y)

    loss().backward()
    before = [parameter.grad.clone() for parameter in (*head.parameters(), x) if parameter.grad is not None]
    assert len(before) == 3
    net.incubate(loss)
    assert all(map(torch.equal, before, [parameter.grad for parameter in (*head.parameters(), x)]))
    seed = net.seed("early")
    assert seed is not None
    assert all(parameter.grad is not None for parameter in seed.parameters())


def test_an_optimizer_of_named_parameters_trains_seeds() -> None:
    net = grown()
    optimizer = torch.optim.Adam(net.module.named_parameters())
    net.attach(optimizer)
    seed = net.germinate("early", "conv_light")
    assert optimizer.param_groups[-1]["param_names"] == [name for name, _ in seed.named_parameters()]
    net.prune("early")
    assert len(optimizer.param_groups) == 1


def test_weights_that_are_restored_in_training_keep_the_optimizers_state() -> None:
    net = active(grown())
    optimizer = torch.optim.Adam(net.module.parameters(), lr=1e-2)
    net.attach(optimizer)
    seed, schedule = net.seed("early"), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    loss_of(net)().backward()
    optimizer.step()
    best = copy.deepcopy(net.state_dict())
    optimizer.step()
    schedule.step()
    net.load_state_dict(best)
    assert net.seed("early") is seed
    assert {group["lr"] for group in optimizer.param_groups} == {1e-3}
    assert all(parameter in optimizer.state for parameter in net.slots.parameters())
    assert all(torch.equal(value, best[name]) for name, value in net.state_dict().items() if isinstance(value, Tensor))
    other = grown()
    other.germinate("early", "norm")
    other.attach(torch.optim.Adam(other.module.parameters()))
    other.load_state_dict(best)
    assert [name for name, _ in other.slots.named_parameters()] == [name for name, _ in net.slots.named_parameters()]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.1),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
    ],
    ids=["warm_up", "steps", "cosine"],
)
@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
def test_schedulers_treat_a_late_seed_as_one_from_the_start(schedule: Callable[[torch.optim.Optimizer], Any]) -> None:
    net = grown()
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.2)
    net.attach(optimizer, lr=0.05)
    scheduler = schedule(optimizer)
    for epoch in range(8):
        if epoch == 3:
            net.germinate("early", "conv_light")
        scheduler.step()
    whole, seed = (group["lr"] for group in optimizer.param_groups)
    assert seed == pytest.approx(whole / 4)


def rates_after_planting(optimizer: torch.optim.Optimizer, schedule: Any, epochs: int, **settings: Any) -> list[float]:
    """Return the rates of all groups after a seed was planted when the scheduler had stepped for some epochs."""
    net, scheduler = grown(), schedule(optimizer)
    for _ in range(epochs):
        scheduler.step()
    net.attach(optimizer, **settings)
    net.germinate("early", "conv_light")
    return [float(group["lr"]) for group in optimizer.param_groups]


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
def test_the_rate_of_a_late_seed_with_tensors_and_several_groups() -> None:
    def groups(*rates: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates], lr=0.2)

    decay = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)  # noqa: E731
    one = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.2))
    assert rates_after_planting(one, decay, 2) == pytest.approx([0.002, 0.002]), "the default is the group's own tensor"
    assert isinstance(one.param_groups[1]["lr"], Tensor)
    assert rates_after_planting(groups(0.0, 0.1), decay, 3)[-1] == pytest.approx(0.0002), "a frozen group says nothing"
    floor = lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, 0.01)  # noqa: E731
    small, large, seed = rates_after_planting(groups(0.02, 0.2), floor, 8)
    assert seed == large != small
    cycle = lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20)  # noqa: E731
    assert rates_after_planting(groups(0.2), cycle, 4)[-1] <= 0.2


def test_a_checkpoint_of_another_incubation_is_refused() -> None:
    saved = active(grown()).state_dict()
    with pytest.raises(ValueError, match=r"incubation=none, but this module has incubation=closed_loop: call esper\.grow"):
        grown(incubation="closed_loop").load_state_dict(saved)
    kept = {key: value for key, value in decode(saved["_extra_state"]).items() if key != "incubation"}
    saved["_extra_state"] = kept  # as earlier versions wrote it
    grown(incubation="closed_loop").load_state_dict(saved)


def test_a_measurement_in_inference_mode_does_not_end_training() -> None:
    net, (x, _) = active(grown()), batch()
    with torch.inference_mode():
        net.contributions(lambda: net(x)[:, 0])
        with net.without("early"):
            net(x)
        net.begin_epoch()
    net(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.slots.parameters())


def test_layers_that_may_have_their_channels_in_the_middle_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"^slot after 1: its output is taken for sequences \[B, T, C\], but other layers"):
        esper.grow(nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU()), ["1"], torch.randn(2, 3, 9))


@dataclass(kw_only=True, slots=True)
class ScaledConfig(BlueprintConfig):
    """A seed with a parameter without axes, and one that is frozen."""

    def obstacle(self, slot: Any) -> str | None:
        return None

    def branch(self, slot: Any) -> nn.Module:
        return Scaled(slot.channels)


class Scaled(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.map = nn.Conv2d(channels, channels, 1)
        self.temperature = nn.Parameter(torch.tensor(0.0))
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.temperature * self.fixed * self.map(x)


def test_parameters_without_axes_train_and_frozen_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS["blueprint"], "scaled", ScaledConfig)
    net = grown()
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.1)
    net.attach(optimizer)
    seed: Any = net.germinate("early", "scaled")
    for _ in range(3):
        net.begin_epoch()
        loss_of(net)().backward()
        optimizer.step()
    assert seed.temperature != 0
    assert not seed.fixed.requires_grad
    assert seed.fixed.grad is None
    seed.map.requires_grad_(False)  # by the user
    net.contributions(lambda: 1.0)
    assert [one.requires_grad for one in (seed.temperature, seed.map.weight, seed.map.bias)] == [True, False, False]
    net.rules.fossils = Fossils.frozen
    net.begin_epoch()
    net.advance("early")
    net.fossilize("early")
    assert not any(parameter.requires_grad for parameter in seed.parameters())


def test_a_seed_after_a_layer_without_parameters_takes_the_precision_before_it() -> None:
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.float()

    backbone = nn.Linear(4, 8).bfloat16()
    net = esper.grow(nn.Sequential(backbone, Single(), nn.Linear(8, 8), nn.ReLU()), ["3"], torch.randn(2, 4).bfloat16())
    seed = net.germinate("3", "mlp_small")
    assert {parameter.dtype for parameter in seed.parameters()} == {torch.float32}
    net.begin_epoch()
    net(torch.randn(2, 4).bfloat16())


def test_potential_is_measured_in_double_precision_and_takes_a_list() -> None:
    net = grown()
    with pytest.raises(ValueError, match=r"^blueprints must be a list, got 'norm': write blueprints=\['norm'\]"):
        net.potential(loss_of(net), "norm")
    single = net.potential(loss_of(net), ["conv_light"])["early"]["conv_light"]
    torch.set_default_dtype(torch.float64)
    try:
        net.double()
        x, y = batch()
        double = net.potential(lambda: F.cross_entropy(net(x.double()), y), ["conv_light"])
        assert double["early"]["conv_light"] == pytest.approx(single, rel=0.9), "its first weights are others"
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_replaced_submodule_has_no_slot() -> None:
    net = esper.grow(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)), ["1"], batch()[0])
    net.module = nn.SyncBatchNorm.convert_sync_batchnorm(net.module)
    with pytest.raises(ValueError, match=r"^slot 1 no longer exists, because submodule 1 was replaced"):
        net.germinate("1", "norm")


def test_a_gate_that_needs_standard_errors_gets_them() -> None:
    net = active(grown(gates=GatesConfig(min_contribution=0.0, contribution_z=1.64)))
    moved(net.seed("early"))
    x, y = batch()
    with pytest.raises(ValueError, match=r"^gates\.contribution_z needs standard errors: let score\(\) return"):
        net.contributions(lambda: float((net(x).argmax(1) == y).float().mean()))
    net.contributions(lambda: (net(x).argmax(1) == y).float())


def test_a_copy_has_no_optimizer() -> None:
    net = active(grown())
    optimizer = torch.optim.Adam(net.module.parameters())
    net.attach(optimizer)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert again._groups is None, "nor its state of all parameters"
        again.prune("early")
    net.prune("early")
    assert len(optimizer.param_groups) == 1


class Masked(nn.Module):
    """Takes its inputs as keywords, as models for language do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, *, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head((self.embed(tokens) * mask[..., None]).mean(1))}


def test_a_network_of_keyword_arguments_grows() -> None:
    inputs = {"tokens": torch.randint(5, (8, 6)), "mask": torch.ones(8, 6)}
    net = esper.grow(Masked(), slots=["embed"], example=inputs)
    net.germinate("embed", "norm")
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.1)
    net.attach(optimizer)
    net.begin_epoch()
    net(**inputs)["logits"].square().sum().backward()
    seed = net.seed("embed")
    assert seed is not None
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in seed.parameters())
    with pytest.raises(ValueError, match=r"with this example \(TypeError: .*unexpected keyword argument 'x'\)"):
        esper.grow(Masked(), slots=["embed"], example={"x": inputs["tokens"]})


@pytest.mark.slow
@emulates
def test_a_module_grows_on_an_emulated_gpu_as_on_the_cpu(tmp_path: Path) -> None:
    """Parameters, features, seeds and scores are on the device; what meets a tensor of the CPU fails there."""
    (emulated,) = on_emulated_gpu(["loop", "cuda:0"])
    assert emulated["found"] == pytest.approx(in_a_loop(torch.device("cpu"), tmp_path), rel=0.02, abs=2e-3)


@pytest.mark.parametrize("assign", [False, True])
def test_roles_reach_the_parameters_that_a_checkpoint_brought(assign: bool) -> None:
    rules = SlotsConfig(incubation=Incubation.closed_loop, fossils=Fossils.frozen, min_prune_age=0)
    net = grown(rules=rules, gates=GatesConfig(min_contribution=-1.0))
    net.load_state_dict(active(grown(rules=rules)).state_dict(), assign=assign)
    net.incubate(loss_of(net))
    seed = net.seed("early")
    assert seed is not None
    assert all(parameter.grad is not None for parameter in seed.parameters())
    net.advance("early")
    net.begin_epoch()
    net.contributions(lambda: 1.0)
    net.fossilize("early")
    assert not any(parameter.requires_grad for parameter in seed.parameters())
