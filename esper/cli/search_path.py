"""Where Hydra finds the options of a command: in the YAML folder, and in the folder of --config-dir."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock

from hydra import initialize_config_dir, version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime

from esper.config import CONF

_own_options = ContextVar[str | None]("_own_options", default=None)
"""Folder of --config-dir of a command whose configs are composed one by one."""


def _uncopied(store: ConfigStore, _: object) -> ConfigStore:
    """Return the store of all groups itself: Hydra copies it several times a composition, half of the time, and copies every node
    again as it reads it."""
    return store


ConfigStore.__deepcopy__ = _uncopied  # pyright: ignore[reportAttributeAccessIssue]


_composing = RLock()
"""Held by the thread that uses Hydra, whose state all threads share."""


def _renew() -> None:
    """Replace the lock in a forked process, which lacks the thread that may hold it."""
    global _composing
    _composing = RLock()


os.register_at_fork(after_in_child=_renew)


@contextmanager
def hydra_at_conf() -> Generator[ConfigLoader]:
    """Initialise Hydra with the YAML folder and that of `options_in`, without running a command; inside a run, Hydra is ready.

    Inside a program that uses Hydra for itself, its Hydra is set aside meanwhile.
    """
    with _composing:
        hydra = GlobalHydra.instance()
        if hydra.is_initialized() and _reads_conf(hydra.config_loader()):
            yield hydra.config_loader()
        else:
            with _set_aside(), _initialised() as loader:
                yield loader


def _reads_conf(loader: ConfigLoader) -> bool:
    return any((entry.path or "").removeprefix("file://") == str(CONF) for entry in loader.get_search_path().get_path())


@contextmanager
def _set_aside() -> Generator[None]:
    """Put the state of Hydra back at the end of a `with` block."""
    outer, base, name = GlobalHydra.instance().hydra, version.getbase(), JobRuntime().conf.name
    GlobalHydra.instance().hydra = None
    try:
        yield
    finally:
        if outer is not None:
            GlobalHydra.instance().hydra = outer
            JobRuntime().set("name", name)
            version.VersionBase.instance().version_base = base


@contextmanager
def _initialised() -> Generator[ConfigLoader]:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        loader = GlobalHydra.instance().config_loader()
        if (folder := own_options()) is not None:
            assert isinstance(loader, ConfigLoaderImpl)
            path = loader.get_search_path()
            path.prepend("command-line", f"file://{os.path.abspath(folder)}", "schema")  # where Hydra puts it in a run
            loader.repository.initialize_sources(path)
        yield loader


@contextmanager
def options_in(config_dir: str | None) -> Generator[None]:
    """Let all configs that are composed in this context know the options in a folder, as in --config-dir; None: no others."""
    before = _own_options.set(config_dir)
    try:
        yield
    finally:
        _own_options.reset(before)


def own_options() -> str | None:
    """Return the folder of `options_in`, for other processes; None if there is none."""
    return _own_options.get()
