"""The seeds of a growable module as parameter groups of an optimizer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class SeedGroups:
    """One parameter group per seed, added when the seed is planted and removed with it."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> None:
        """
        Args:
            optimizer: optimizer of the module.
            settings: settings of the groups, such as `lr`; others are the optimizer's defaults.
        """
        self.optimizer, self._settings = optimizer, settings
        self._groups: dict[nn.Module, dict[str, Any]] = {}

    def update(self, seeds: Sequence[nn.Module]) -> None:
        """Add the groups of new seeds, in the given order, and remove those of seeds that are gone, with their state."""
        for seed in [seed for seed in self._groups if seed not in seeds]:
            group = self._groups.pop(seed)
            self.optimizer.param_groups[:] = [one for one in self.optimizer.param_groups if one is not group]
            for parameter in group["params"]:
                self.optimizer.state.pop(parameter, None)
        for seed in seeds:
            if seed not in self._groups:
                self.optimizer.add_param_group({"params": list(seed.parameters()), **self._settings})
                self._groups[seed] = self.optimizer.param_groups[-1]
