"""What all tests share: one thread a process (more make small tensors slower), and the fixtures of several folders.

tests/conftest.py loads it, as a plugin of pytest.
"""

import gc
import os
import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.config_store import ConfigStore

import esper.cli.command  # noqa: F401  (with it, Hydra composes faster)
from esper import plugins
from esper.config import ALIASES, GROUPS
from esper.hosts.custom import IMPORTED
from esper.telemetry.writers import WRITERS
from tests.composed import compose_once
from tests.env_fixtures import gamma, make_env, plan_actions, random_actions, small_task  # noqa: F401  (fixtures)
from tests.reference_host import float64, grown  # noqa: F401  (fixtures)

torch.set_num_threads(1)
compose_once()
os.environ.pop("HYDRA_FULL_ERROR", None)  # with it, mistakes show their traceback instead of one sentence


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the half million objects of libraries, here and in forks, and look less often:
    it took a tenth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same random numbers, whichever tests ran before it in its process."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def own_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Options that the test registers, and plugins and custom hosts that it imports, are gone after it."""
    store = ConfigStore.instance()
    tables = [*GROUPS.values(), WRITERS, IMPORTED, *(store.repo[group] for group in (*GROUPS, *ALIASES))]
    before = [copy(table) for table in tables]
    imported: list[str] = []
    load = plugins._import
    monkeypatch.setattr(plugins, "_import", lambda name: (imported.append(name), load(name)))
    monkeypatch.setattr(plugins, "_named", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)
    for name in imported:
        sys.modules.pop(Path(name).stem if name.endswith(".py") else name, None)
