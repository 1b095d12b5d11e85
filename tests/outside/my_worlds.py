"""An environment, a buffer and a host of somebody else's package."""

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import nn

from esper import register
from esper.buffer.base import BufferConfig
from esper.buffer.on_policy import RolloutBuffer
from esper.buffer.rollout import Rollout
from esper.env.actions import Head, Op, legal_values
from esper.env.base import EnvConfig, EnvParts
from esper.env.spec import EnvSpec
from esper.fusion.layout import Layout
from esper.hosts.base import Host, HostConfig, SlotSpec
from esper.seeding import stream


@dataclass(kw_only=True, slots=True)
class LampsConfig(EnvConfig):
    """Two lamps: germinating in the lit slot pays a prize, in the other it costs as much."""

    ignores: ClassVar[tuple[str, ...]] = ("task", "host", "blueprint", "devices", "reward", "reward_mode", "governor")
    prize: float = 1.0
    """Points."""

    def build(self, parts: EnvParts) -> "Lamps":
        return Lamps(self, parts)


@dataclass
class LampsRecord:
    return_N: Any
    instance: list[str]
    audit: None = None
    act_seconds: float = 0.0
    seconds: float = 0.0
    germinated: int = 0

    def add(self, info: Any, reward_N: Any) -> None:
        self.return_N += reward_N
        self.germinated += info["germinated"]

    def close(self, info: Any) -> None: ...

    def metrics(self) -> dict[str, float]:
        return {"policy/return": float(self.return_N.mean()), "host/seeds_germinated": self.germinated / len(self.return_N)}

    def summary(self) -> list[tuple[str, str]]:
        return [("lamps", f"{self.return_N.mean():.2f} points")]


@dataclass
class Lamps:
    config: LampsConfig
    parts: EnvParts
    episode: int = -1
    time: int = 0
    resets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = self.parts
        self.root, self.split, self.num_envs, self.num_steps = parts.seed, parts.split, parts.num_hosts, parts.num_steps
        self.chosen_S = np.ones(2, dtype=np.bool_)
        self.layout = EnvSpec(
            num_hosts=self.num_envs,
            num_steps=self.num_steps,
            slot_names=("left", "right"),
            blueprint_names=("lamp",),
            seed_params=((1, 1),),
            feature_names=("time_left",),
            slot_feature_names=("lit",),
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode = self.episode + 1 if options is None else options["episode"]
        names = [("lamps", self.split, self.episode, host) for host in range(self.num_envs)]
        self.lit_NT = np.stack([stream(self.root, *name).integers(2, size=self.num_steps + 1) for name in names])
        self.time = 0
        return self.observation(), {}

    def observation(self) -> dict[str, Any]:
        legal = np.zeros((self.num_envs, len(Op), 2), dtype=np.int8)
        legal[:, [Op.WAIT, Op.GERMINATE]] = 1
        return {
            "features": np.full((self.num_envs, 1), 1 - self.time / self.num_steps, np.float32),
            "slots": np.eye(2, dtype=np.float32)[self.lit_NT[:, self.time]][:, :, None],
            "blueprints": np.ones((self.num_envs, 2), dtype=np.int64),
            "legal_slots": legal,
            "legal_values": legal_values(self.num_envs, 1, self.parts.heads).astype(np.int8),
        }

    def step(self, actions: Any) -> Any:
        germinated_N = actions[:, Head.OP] == Op.GERMINATE
        right_N = actions[:, Head.SLOT] == self.lit_NT[:, self.time]
        reward_N = (germinated_N * np.where(right_N, 1, -1) * self.config.prize).astype(np.float32)
        self.time += 1
        over_N = np.full(self.num_envs, self.time == self.num_steps)
        observation = self.reset()[0] if over_N[0] else self.observation()
        return observation, reward_N, over_N, np.zeros_like(over_N), {"germinated": int(germinated_N.sum())}

    def record(self) -> LampsRecord:
        return LampsRecord(np.zeros(self.num_envs, np.float32), ["lamps"] * self.num_envs)

    def prepare(self, state: dict[str, Any] | None = None) -> None:
        self.born = state["born"] if state else time.time()

    def state_dict(self) -> dict[str, Any]:
        return {"born": self.born}

    def hparams(self) -> dict[str, Any]:
        return {"prize": self.config.prize}

    def costs_table(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


@dataclass(kw_only=True, slots=True)
class ArchiveConfig(BufferConfig):
    """The newest rollout, and every so many-th of the earlier ones, the last two of those."""

    reuses: ClassVar[bool] = True
    every: int = 2
    """Updates from one rollout that is kept to the next."""

    def build(self) -> "Archive":
        return Archive(self)


class Archive(RolloutBuffer):
    def __init__(self, config: ArchiveConfig) -> None:
        super().__init__(config)
        self.every, self.count, self.kept = config.every, 0, []

    def begin(self, spec: EnvSpec) -> None:
        if self.current is not None and self.current.full:
            self.count += 1
            if self.count % self.every == 0:
                self.kept = [self.current, *self.kept][:2]
        super().begin(spec)

    def rollouts(self) -> list[Rollout]:
        return [*super().rollouts(), *self.kept]

    def state_dict(self) -> dict[str, Any]:
        held = [self.current] if self.ready() else []
        return {"count": self.count, "rollouts": [rollout.state_dict() for rollout in (*held, *self.kept)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.current, *self.kept = [Rollout.from_state(one) for one in state["rollouts"]] or [None]


@dataclass(kw_only=True, slots=True)
class StripeConfig(HostConfig):
    """A convolution, one slot, and a linear map."""

    part: ClassVar[str] = "part; it has none"
    width: int = 6
    """Channels."""

    def build(self, shape: tuple[int, ...], num_classes: int, lesioned: Any) -> nn.Module:
        before = nn.Sequential(nn.Conv2d(shape[0], self.width, 3, stride=2), nn.ReLU())
        after = nn.Sequential(nn.Flatten(), nn.Linear(self.width * 3 * 3, num_classes))
        return Host([before, after], [SlotSpec("r0c0", self.width, Layout.IMAGES)])


register("env", "lamps", LampsConfig)
register("buffer", "archive", ArchiveConfig)
register("host", "stripe", StripeConfig)
