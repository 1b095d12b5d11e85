"""Configs composed by Hydra once per process, and the error of overrides that are refused."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import config_loader_impl as hydra_loader
from hydra._internal import defaults_list as hydra_lists
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from esper.cli import overrides
from esper.cli.overrides import check, plan_sweep
from esper.config import GROUPS, Config, ConfigError
from esper.training import config_io

composed_anew = overrides._composed
_composed: dict[tuple[object, ...], bytes] = {}
_restore = config_io._restored
_restored: dict[bytes, bytes] = {}
_list = hydra_loader.create_defaults_list
_lists: dict[tuple[object, ...], DefaultsList] = {}
_merge = ConfigLoaderImpl._compose_config_from_defaults_list
_merged: dict[tuple[object, ...], bytes] = {}
_map = hydra_lists._create_interpolation_map
_CONF = f"file://{Path(__file__).parents[1] / 'conf'}"


def compose_once() -> None:
    """Compose equal choices of groups, and restore equal configs, once per process; those of plugins always.

    Hydra's own commands share the choices and what is merged for them, nine tenths of the time of a composition.
    """
    overrides._composed = _once
    config_io._restored = _restored_once
    hydra_loader.create_defaults_list = _listed_once
    ConfigLoaderImpl._compose_config_from_defaults_list = _merged_once
    hydra_lists._create_interpolation_map = _mapped


def _own() -> bool:
    """Return whether a test has registered options."""
    return any(not option.__module__.startswith("esper.") for options in GROUPS.values() for option in options.values())


def _once(groups: list[str], name: str) -> tuple[DictConfig, dict[str, Any]]:
    if _own() or any(group.startswith("hydra.searchpath") for group in groups):
        return composed_anew(groups, name)
    loader = GlobalHydra.instance().config_loader()
    key = (tuple(groups), name, *((one.provider, one.path) for one in loader.get_search_path().get_path()))
    if key not in _composed:
        _composed[key] = pickle.dumps(composed_anew(groups, name))
    return pickle.loads(_composed[key])


def _fixed(repo: Any) -> tuple[object, ...] | None:
    """Return what identifies the files and options that Hydra reads; None if a test has written or registered some."""
    places = [f"{source.scheme()}://{source.path}" for source in repo.get_sources()]
    if _own() or any(place.startswith("file:") and place != _CONF for place in places):
        return None
    return (*places, *((group, *options) for group, options in ConfigStore.instance().repo.items() if isinstance(options, dict)))


def _listed_once(repo: Any, config_name: str | None, overrides_list: list[Override], **how: bool) -> DefaultsList:
    """The options of all groups, for some overrides of which those of keys are not yet applied."""
    if (fixed := _fixed(repo)) is None:
        return _list(repo=repo, config_name=config_name, overrides_list=overrides_list, **how)
    chosen = [one for one in overrides_list if not one.is_sweep_override()]  # Hydra skips the others, too
    groups = [one for one in chosen if repo.group_exists(one.key_or_group) and not isinstance(one.value(), dict)]
    key = (config_name, *how.values(), *(one.input_line for one in groups), fixed)
    if key not in _lists:
        _lists[key] = _list(repo=repo, config_name=config_name, overrides_list=groups, **how)
    known = _lists[key]
    keys = [one for one in chosen if not any(one is group for group in groups)]
    return DefaultsList(
        defaults=known.defaults, config_overrides=keys, defaults_tree=known.defaults_tree, overrides=known.overrides
    )


def _mapped(overrides: Overrides, defaults_list: list[InputDefault], self_added: bool) -> DictConfig:
    """Hydra's map for interpolations in a list of options; an empty one, which takes no time, for a list without any."""
    if any(one.is_interpolation() for one in defaults_list):
        return _map(overrides, defaults_list, self_added)
    return DictConfig({})


def _merged_once(loader: ConfigLoaderImpl, defaults: Sequence[ResultDefault], repo: Any) -> DictConfig:
    if (fixed := _fixed(repo)) is None:
        return _merge(loader, defaults=[*defaults], repo=repo)
    key = (*((one.config_path, one.package, one.parent, one.is_self, one.primary) for one in defaults), fixed)
    if key not in _merged:
        _merged[key] = pickle.dumps(_merge(loader, defaults=[*defaults], repo=repo))
    return pickle.loads(_merged[key])


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


def check_sweep(overrides: list[str]) -> list[Config]:
    """Return the configs of all jobs of a sweep."""
    return plan_sweep(overrides)[0]
