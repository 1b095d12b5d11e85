"""Configs composed by Hydra once per process, and the error of overrides that are refused."""

import pickle
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from esper.cli import overrides
from esper.cli.overrides import check
from esper.config import GROUPS, Config, ConfigError
from esper.training import config_io

_compose = overrides._composed
_composed: dict[tuple[object, ...], bytes] = {}
_restore = config_io._restored
_restored: dict[bytes, bytes] = {}


def compose_once() -> None:
    """Compose equal choices of groups, and restore equal configs, once per process; those of plugins always."""
    overrides._composed = _once
    config_io._restored = _restored_once


def _own() -> bool:
    """Return whether a test has registered options."""
    return any(not option.__module__.startswith("esper.") for options in GROUPS.values() for option in options.values())


def _once(groups: list[str], name: str) -> tuple[DictConfig, dict[str, Any]]:
    if _own() or any(group.startswith("hydra.searchpath") for group in groups):
        return _compose(groups, name)
    loader = GlobalHydra.instance().config_loader()
    key = (tuple(groups), name, *((one.provider, one.path) for one in loader.get_search_path().get_path()))
    if key not in _composed:
        _composed[key] = pickle.dumps(_compose(groups, name))
    return pickle.loads(_composed[key])


def _restored_once(plain: dict[str, Any]) -> Config:
    if _own():
        return _restore(plain)
    key = pickle.dumps(plain)
    if key not in _restored:
        _restored[key] = pickle.dumps(_restore(plain))
    return pickle.loads(_restored[key])


def refusal(command: str) -> ConfigError:
    """Return the error that these overrides raise."""
    with pytest.raises(ConfigError) as raised:
        check(command.split())
    return raised.value
