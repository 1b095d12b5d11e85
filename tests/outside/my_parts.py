"""A package from outside the tree, which Esper knows only as a plugin: a task, a host, a blueprint, a reward and more."""

import csv
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import nn

from esper import register
from esper.fusion.layout import Layout
from esper.governor.base import Cause, Governor, GovernorConfig, Verdict
from esper.hosts.base import SlotSpec
from esper.hosts.cnn import CNNConfig
from esper.reward.modes import RewardConfig
from esper.reward.table import TERMINAL, Pays, Term
from esper.seeds.blueprints.base import BlueprintConfig, born_as_zero
from esper.task.digits import DigitsConfig
from esper.telemetry.base import RunInfo, Writer, WriterConfig


@dataclass(kw_only=True, slots=True)
class NarrowConfig(CNNConfig):
    """A CNN host with few channels."""

    base_channels: int = 3
    """Channels of the first block."""


@dataclass(kw_only=True, slots=True)
class FaintConfig(DigitsConfig):
    """Digits for narrow hosts."""

    default_host = "narrow"

    batch_size: int = 500
    """Images per batch."""


@dataclass(kw_only=True, slots=True)
class SwishConfig(BlueprintConfig):
    """A map of the channels, SiLU, and a second map."""

    layouts = (Layout.IMAGES,)
    width: int = 4
    """Channels between the two maps."""

    def branch(self, slot: SlotSpec) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(slot.channels, self.width, 1), nn.SiLU(), born_as_zero(nn.Conv2d(self.width, slot.channels, 1))
        )


ONES = Term(
    name="present",
    unit="count",
    sign=1,
    formula="1 per step",
    make=lambda mode, gamma: lambda signals: np.ones(len(signals.accuracy_N), dtype=np.float32),
)


@dataclass(kw_only=True, slots=True)
class ThriftyConfig(RewardConfig):
    """Final accuracy, and pay for every step."""

    pays: ClassVar[Pays] = {"presence": ONES, "terminal": TERMINAL}
    presence: float = 1.0
    """Points per step."""
    terminal: float = 0.0
    """Points per percentage point of the committed network at the end."""


@dataclass(kw_only=True, slots=True)
class GrimConfig(GovernorConfig):
    """Rolls every host back in the epoch in which its validation loss exceeds a limit."""

    limit: float = 0.0
    """Highest loss of a healthy host [nats]."""

    def build(self, *, chance_loss: float) -> Governor:
        return Grim(self)


class Grim(Governor):
    def __init__(self, config: GrimConfig) -> None:
        self.config = config

    def judge(self, health: Any, train_loss_N: Any, loss_N: Any) -> Verdict:
        cause_N = np.where(loss_N > self.config.limit, Cause.DIVERGENCE, Cause.HEALTHY)
        return Verdict(cause_N=cause_N, suspect_N=cause_N > 0, penalty=1.0)


@dataclass(kw_only=True, slots=True)
class ReturnsConfig(WriterConfig):
    """One row per update in `returns.csv`."""

    delimiter: str = ","
    """Between the columns."""

    def build(self, run: RunInfo) -> Writer:
        return ReturnsWriter(self, run)


class ReturnsWriter(Writer):
    def __init__(self, config: ReturnsConfig, run: RunInfo) -> None:
        path = run.folder / "returns.csv"
        kept = path.read_text().splitlines()[: run.resume_update] if path.exists() else []
        self.file = path.open("w")
        self.file.writelines(f"{line}\n" for line in kept)
        self.rows = csv.writer(self.file, delimiter=config.delimiter)

    def write(self, update: int, metrics: Any) -> None:
        self.rows.writerow([update, metrics["policy/return"]])
        self.file.flush()

    def close(self) -> None:
        self.file.close()


register("host", "narrow", NarrowConfig)
register("task", "faint", FaintConfig)
register("blueprint", "swish", SwishConfig)
register("reward", "thrifty", ThriftyConfig)
register("governor", "grim", GrimConfig)
register("writer", "returns", ReturnsConfig)
