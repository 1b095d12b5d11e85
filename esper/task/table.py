"""All tasks by name."""

from esper.task.base import TaskConfig
from esper.task.cifar10 import Cifar10Config
from esper.task.cifar10_presets import (
    Cifar10DeepImpairedConfig,
    Cifar10DeepMultichannelConfig,
    Cifar10HighresConfig,
    Cifar10ImpairedConfig,
    Cifar10MinimalConfig,
    Cifar10MultichannelConfig,
    Cifar10PostpoolConfig,
    Cifar10ScaleConfig,
)
from esper.task.digits import DigitsConfig, DigitsMLPConfig
from esper.task.fashion_mnist import FashionMnistConfig
from esper.task.mnist5k import Mnist5kConfig
from esper.task.python_text import PythonTextConfig
from esper.task.tinystories import TinyStoriesConfig

TASKS: dict[str, type[TaskConfig]] = {
    "digits": DigitsConfig,
    "digits_mlp": DigitsMLPConfig,
    "mnist5k": Mnist5kConfig,
    "fashion_mnist": FashionMnistConfig,
    "python_text": PythonTextConfig,
    "cifar10_baseline": Cifar10Config,
    "cifar10_multichannel": Cifar10MultichannelConfig,
    "cifar10_postpool": Cifar10PostpoolConfig,
    "cifar10_highres": Cifar10HighresConfig,
    "cifar10_scale": Cifar10ScaleConfig,
    "cifar10_deep_multichannel": Cifar10DeepMultichannelConfig,
    "cifar10_impaired": Cifar10ImpairedConfig,
    "cifar10_minimal": Cifar10MinimalConfig,
    "cifar10_deep_impaired": Cifar10DeepImpairedConfig,
    "tinystories": TinyStoriesConfig,
}
"""A new task is one line here."""
