"""Esper: a controller watches host networks train, and grows modules in them."""

import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

try:
    distribution("esper")  # an entity-component library; this project is distributed as esper-growth
except PackageNotFoundError:
    pass
else:
    warnings.warn(
        "another distribution named esper is installed and writes into the same folder: run pip uninstall "
        "esper, then reinstall esper-growth",
        stacklevel=2,
    )

PUBLIC = {
    "register": "esper.plugins",
    "make_env": "esper.wrappers.hosts",
    "make_vec_env": "esper.wrappers.hosts",
    "grow": "esper.growable.grow",
    "grown_network": "esper.evaluation.regrow",
    "save_policy": "esper.evaluation.bundle",
    "load_policy": "esper.wrappers.policy",
}
"""Public name -> module that defines it, imported on first use, so that `import esper` stays light."""


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(import_module(PUBLIC[name]), name)
    raise AttributeError(f"module esper has no attribute {name}")
