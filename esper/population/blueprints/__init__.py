"""What a seed may be."""

from esper.population.blueprints.base import BlueprintConfig, num_groups
from esper.population.blueprints.cnn import ConvHeavyConfig, ConvLightConfig, DepthwiseConfig, NormConfig

__all__ = ["BlueprintConfig", "ConvHeavyConfig", "ConvLightConfig", "DepthwiseConfig", "NormConfig", "num_groups"]
