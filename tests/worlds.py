"""What trains on a device: small environments of each kind, and an episode in which seeds are planted."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.base import Environment
from esper.lifecycle.gates import GatesConfig
from esper.lifecycle.stages import Stage
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

SMALL = ["hosts=4", "steps=7", "slots=every_block", "task.epoch_samples=512", "task.valid_samples=200", "telemetry=quiet"]
WORLDS = {
    "cnn": (["task=digits"], "conv_light"),
    "mlp": (["task=digits_mlp", "blueprint=[mlp_small]"], "mlp_small"),
    "transformer": (["task=python_text", "task.epoch_samples=128", "task.valid_samples=16"], "lora"),
    "numbers": (["task=diabetes", "task.epoch_samples=128", "task.valid_samples=0", "blueprint=[mlp_small]"], "mlp_small"),
    "deployed": (
        ["task=digits_drift", "task.events.count=[1]", "task.events.last=2", "task.pretrain=1", "task.pretrain_pool=2"],
        "conv_light",
    ),
}
"""Overrides and a blueprint, by what trains on the device."""


def environment(world: str, folder: Path, devices: Sequence[str] = ("cuda:0",), *more: str) -> Environment:
    """Return an environment of four hosts; deployed hosts are kept in the folder."""
    overrides = [*SMALL, *WORLDS[world][0], f"task.pretrain_folder={folder}", f"devices=[{','.join(devices)}]", *more]
    return build_env(check(overrides), split=Split.TRAINING, hosts=4)


def grown(world: str, env: Environment, watch: Callable[[], None] = lambda: None) -> np.ndarray:
    """Return the validation losses `[T, N]` of an episode in which two hosts germinate a seed and keep it.

    Args:
        watch: called after every step.
    """
    losses: list[np.ndarray] = []
    env.reset(options={"episode": 0})
    germinate = ActionConfig(slot=1, blueprint=WORLDS[world][1])
    lists = [[germinate], [], [germinate], []]

    def record(step: Transition) -> None:
        losses.append(step.signals.loss_N)
        watch()

    play(env, ActionLists(lists, env.layout), record=record)
    return np.array(losses)


LOOP = {"multiply": "straight_through", "gate": "none", "add": "closed_loop"}
"""How seeds join the features of a module of one's own, and how they incubate."""
EPOCHS = 6
"""Epochs in such a loop, more than a seed needs to be kept."""


def in_a_loop(device: torch.device, folder: Path) -> list[float]:
    """Return losses and contributions of modules in a loop of one's own, each with a seed that is kept; they are exported to the
    folder."""
    found: list[float] = []
    for blend, incubation in LOOP.items():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)]
        x, y = torch.randn(16, 1, 8, 8).to(device), torch.arange(16).remainder(3).to(device)
        gates = GatesConfig(min_contribution=-1.0)
        net = esper.grow(nn.Sequential(*layers).to(device), ["2"], x, incubation=incubation, gates=gates)
        optimizer = torch.optim.Adam(net.module.parameters(), lr=0.01)
        net.attach(optimizer)
        loss, score = partial(_loss, net, x, y), partial(_score, net, x, y)
        found += net.potential(loss)["2"].values()
        net.germinate("2", "conv_light", blend=blend)
        for _ in range(EPOCHS):
            net.begin_epoch()
            optimizer.zero_grad()
            now = loss()
            now.backward()
            net.incubate(loss)
            optimizer.step()
            found += [now.item(), *(one.value for one in net.contributions(score).values())]
            with suppress(ValueError):  # not yet, or kept already
                net.advance("2")
        assert net.stage("2") is Stage.FOSSILIZED
        net.load_state_dict(net.state_dict())
        found += [loss().item(), float(net.export(folder / blend, x) < 1e-4)]
    return found


def _loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def _score(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return -F.cross_entropy(net(x), y, reduction="none")  # rounding may decide a class, and with it an accuracy
