"""Parts for Esper, one for every group. The entry point in pyproject.toml makes Esper import this module."""

import esper
from esper_example.agent import PlateauConfig
from esper_example.blueprint import DilatedConfig
from esper_example.buffer import BestConfig
from esper_example.env import HintsConfig
from esper_example.governor import CeilingConfig
from esper_example.host import MixerConfig
from esper_example.optimiser import LionConfig
from esper_example.reward import DoublingsConfig
from esper_example.rules import LastConfig, ProvenConfig
from esper_example.task import GratingsConfig
from esper_example.writer import MarkdownConfig

PARTS = {
    "agent": ("plateau", PlateauConfig),
    "blueprint": ("dilated", DilatedConfig),
    "buffer": ("best", BestConfig),
    "env": ("hints", HintsConfig),
    "gates": ("proven", ProvenConfig),
    "governor": ("ceiling", CeilingConfig),
    "host": ("mixer", MixerConfig),
    "optimiser": ("lion", LionConfig),
    "reward": ("doublings", DoublingsConfig),
    "slots": ("last", LastConfig),
    "task": ("gratings", GratingsConfig),
    "writer": ("markdown", MarkdownConfig),
}
"""Group -> name and config of the part."""

for group, (name, config) in PARTS.items():
    esper.register(group, name, config)
