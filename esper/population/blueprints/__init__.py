"""What a seed may be."""

from esper.population.blueprints.attention import AttentionConfig, FlexAttentionConfig
from esper.population.blueprints.base import BlueprintConfig, Init, MapConfig, is_informed, num_groups
from esper.population.blueprints.cnn import BottleneckConfig, ConvHeavyConfig, ConvLightConfig, ConvSmallConfig, DepthwiseConfig
from esper.population.blueprints.dense import LoraConfig, LoraLargeConfig, MLPSeedConfig, MLPSmallSeedConfig
from esper.population.blueprints.plain import NoopConfig, NormConfig
from esper.population.blueprints.registry import BLUEPRINTS, check_blueprints

__all__ = [
    "BLUEPRINTS",
    "AttentionConfig",
    "BlueprintConfig",
    "BottleneckConfig",
    "ConvHeavyConfig",
    "ConvLightConfig",
    "ConvSmallConfig",
    "DepthwiseConfig",
    "FlexAttentionConfig",
    "Init",
    "LoraConfig",
    "LoraLargeConfig",
    "MLPSeedConfig",
    "MLPSmallSeedConfig",
    "MapConfig",
    "NoopConfig",
    "NormConfig",
    "check_blueprints",
    "is_informed",
    "num_groups",
]
