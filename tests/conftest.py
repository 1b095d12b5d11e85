"""Loads what tests share, and orders them."""

import pytest

SLOW = {
    "test_benchmarks",
    "test_example",
    "test_examples",
    "test_launch",
    "test_notebook",
    "test_packaging",
    "test_ray_cluster",
    "test_site",
    "test_trackers",
}
"""Modules with tests, or fixtures, of many seconds."""


def pytest_configure(config: pytest.Config) -> None:
    """Load tests/shared.py where tests run. It imports torch, for which xdist's controller would keep its workers waiting."""
    deals = config.getoption("numprocesses", 0) and not config.option.collectonly
    if not deals:
        config.pluginmanager.import_plugin("tests.shared")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let slow modules come first: of two processes, neither waits long for the other's last test."""
    items.sort(key=lambda item: item.path.stem not in SLOW)
