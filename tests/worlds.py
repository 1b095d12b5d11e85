"""What trains on a device: small environments of each kind, and an episode in which seeds are planted."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.base import Environment
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
