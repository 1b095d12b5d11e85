"""Configs composed by Hydra once per process, and the error of overrides that are refused."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from omegaconf import DictConfig

from esper.cli import overrides
from esper.cli.overrides import check
from esper.config import ConfigError

_compose = overrides._composed


@cache
def _once(groups: tuple[str, ...], name: str) -> tuple[DictConfig, dict[str, Any]]:
    return _compose(list(groups), name)


@pytest.fixture(scope="module")
def composed_once() -> Iterator[None]:
    """Equal choices of groups are composed once; keys are applied to a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overrides, "_composed", lambda groups, name: deepcopy(_once(tuple(groups), name)))
        yield


def refusal(command: str) -> ConfigError:
    """Return the error that these overrides raise."""
    with pytest.raises(ConfigError) as raised:
        check(command.split())
    return raised.value
