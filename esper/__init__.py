"""Esper: a controller watches networks train, and grows them."""

import warnings
from importlib.metadata import PackageNotFoundError, distribution

try:
    distribution("esper")  # an entity-component library; this project is distributed as esper-growth
except PackageNotFoundError:
    pass
else:
    warnings.warn(
        "another distribution named esper is installed and writes into the same folder: pip uninstall esper, and install "
        "esper-growth again",
        stacklevel=2,
    )
