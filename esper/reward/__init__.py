"""What a controller is paid for."""

from esper.reward.modes import Reward, RewardConfig, ShapedConfig, SparseConfig
from esper.reward.signals import StepSignals

__all__ = ["Reward", "RewardConfig", "ShapedConfig", "SparseConfig", "StepSignals"]
