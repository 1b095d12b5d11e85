"""What a controller is paid for."""

from esper.reward.audit import Audit, Auditor
from esper.reward.modes import (
    MODES,
    AccuracyMinusRentConfig,
    BasicConfig,
    BasicPlusConfig,
    EscrowConfig,
    LossConfig,
    MinimalConfig,
    RewardConfig,
    ShapedConfig,
    SimplifiedConfig,
    SparseConfig,
)
from esper.reward.rewards import PerHost, Reward, WeightedReward
from esper.reward.signals import StepSignals

__all__ = [
    "MODES",
    "AccuracyMinusRentConfig",
    "Audit",
    "Auditor",
    "BasicConfig",
    "BasicPlusConfig",
    "EscrowConfig",
    "LossConfig",
    "MinimalConfig",
    "PerHost",
    "Reward",
    "RewardConfig",
    "ShapedConfig",
    "SimplifiedConfig",
    "SparseConfig",
    "StepSignals",
    "WeightedReward",
]
