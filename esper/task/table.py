"""The table of tasks."""

from esper.task.base import TaskConfig
from esper.task.cifar import Cifar10Config, Cifar100Config
from esper.task.diabetes import DiabetesConfig
from esper.task.digits import DigitsConfig
from esper.task.digits_drift import DigitsDriftConfig
from esper.task.fashion_mnist import FashionMnistConfig
from esper.task.image_arrays import ImageArraysConfig
from esper.task.image_folder import ImageFolderConfig
from esper.task.mnist5k import Mnist5kConfig
from esper.task.python_text import PythonTextConfig
from esper.task.python_text_drift import PythonTextDriftConfig
from esper.task.svhn import SvhnConfig
from esper.task.table_classes import TableClassesConfig
from esper.task.table_file import TableFileConfig
from esper.task.text_folder import TextFolderConfig
from esper.task.tinystories import TinyStoriesConfig

TASKS: dict[str, type[TaskConfig]] = {
    "digits": DigitsConfig,
    "digits_drift": DigitsDriftConfig,
    "mnist5k": Mnist5kConfig,
    "fashion_mnist": FashionMnistConfig,
    "python_text": PythonTextConfig,
    "python_text_drift": PythonTextDriftConfig,
    "diabetes": DiabetesConfig,
    "table": TableFileConfig,
    "table_classes": TableClassesConfig,
    "cifar10_baseline": Cifar10Config,
    "cifar100": Cifar100Config,
    "svhn": SvhnConfig,
    "image_folder": ImageFolderConfig,
    "image_arrays": ImageArraysConfig,
    "text_folder": TextFolderConfig,
    "tinystories": TinyStoriesConfig,
}
"""Option -> config. The presets in conf/task/ are based on these."""
