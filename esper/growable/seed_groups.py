"""The seeds of a growable module as parameter groups of an optimizer."""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from esper.config import did_you_mean

OTHER = "attach another optimizer for them, such as torch.optim.Adam([{'params': []}])"
"""Remedy where an optimizer cannot train seeds."""


MODES = ("train_mode",)
"""Keys of a group that say in which state an optimizer is; `train()` of schedulefree sets it in every group."""


class SeedGroups:
    """One parameter group per seed, added when the seed is planted and removed with it."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> None:
        """
        Args:
            optimizer: optimizer of the module.
            settings: settings of the groups, such as `lr`; others are the optimizer's defaults.

        Raises:
            ValueError: the optimizer cannot have such groups, or has no such setting.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"attach needs a PyTorch optimizer, got a {type(optimizer).__name__}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(f"LBFGS takes a single parameter group, and seeds need their own: {OTHER}")
        if isinstance(optimizer, torch.optim.Muon):
            raise ValueError(f"Muon optimizes matrices only, and seeds have vectors and scalars too: {OTHER}")
        known = {"name", *optimizer.defaults, *optimizer.param_groups[0]} - {"params"}
        if unknown := [name for name in settings if name not in known]:
            meant, choices = did_you_mean(unknown[0], list(optimizer.defaults)), ", ".join(optimizer.defaults)
            raise ValueError(f"{type(optimizer).__name__} has no setting {unknown[0]}: choose from {choices}{meant}")
        rate = settings.get("lr", 0.0)
        if not isinstance(rate, Real | Tensor) or rate < 0:
            raise ValueError(f"lr must be a number of at least 0, got {rate!r}")
        self.optimizer, self._settings = optimizer, settings
        self._rate = _initial_rate(optimizer, settings)
        self._groups: dict[nn.Module, list[nn.Parameter]] = {}
        """Parameters of the group of each seed: `load_state_dict` of an optimizer replaces its groups, but keeps these lists."""

    def warn_of_others(self, module: nn.Module) -> None:
        """Warn if the optimizer trains something, but nothing of the module."""
        own = {id(parameter) for parameter in module.parameters()}
        trained = [id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]]
        if trained and not own & {*trained}:
            warnings.warn(
                "the attached optimizer has no parameters of the module, so it trains the seeds only: build it from "
                "net.module.parameters() to train both",
                stacklevel=3,
            )

    def check(self, seeds: Mapping[str, nn.Module | None], attached: "SeedGroups | None") -> None:
        """Raise ValueError if the optimizer already has parameters of a seed.

        Args:
            seeds: seeds by the names of their slots.
            attached: the groups so far.
        """
        if attached and attached.optimizer is self.optimizer and any(seeds.values()):
            raise ValueError(
                "this optimizer is attached already: to change settings of seeds, change their groups in its param_groups"
            )
        known = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        for name, seed in seeds.items():
            if seed is not None and any(id(parameter) in known for parameter in seed.parameters()):
                raise ValueError(
                    f"the optimizer has the parameters of the seed in slot {name} already: build it from those of the module, "
                    "net.module.parameters()"
                )

    def update(self, seeds: Sequence[nn.Module]) -> None:
        """Add the groups of new seeds, and remove those of seeds that are gone, with their state.

        Groups of seeds are in the given order, that of a checkpoint: `load_state_dict` of an optimizer goes by position.
        """
        for seed in [seed for seed in self._groups if seed not in seeds]:
            parameters = self._groups.pop(seed)
            self.optimizer.param_groups[:] = [one for one in self.optimizer.param_groups if one["params"] is not parameters]
            for parameter in parameters:
                self.optimizer.state.pop(parameter, None)
        for seed in seeds:
            if seed not in self._groups:
                named = any("param_names" in group for group in self.optimizer.param_groups)  # then every group has names
                parameters = list(seed.named_parameters() if named else seed.parameters())
                kept = {key: group[key] for group in self.optimizer.param_groups[:1] for key in MODES if key in group}
                self.optimizer.add_param_group({"params": parameters, **self._settings, **self._paced(), **kept})
                self._groups[seed] = self.optimizer.param_groups[-1]["params"]
        rank, groups = {id(self._groups[seed]): rank for rank, seed in enumerate(seeds)}, self.optimizer.param_groups
        places = [place for place, group in enumerate(groups) if id(group["params"]) in rank]
        ordered = sorted([groups[place] for place in places], key=lambda group: rank[id(group["params"])])
        for place, group in zip(places, ordered, strict=True):
            groups[place] = group

    def _paced(self) -> dict[str, Any]:
        """Return the learning rate of a new group: what schedulers would have made of it, had it been there from the start.

        It is that of a group with the same initial rate; without one, the rate is scaled as that of another group, but not above
        its initial value.
        """
        groups = [group for group in self.optimizer.param_groups if group.get("initial_lr")]
        if self._rate is None or not groups:  # there is no scheduler
            return {}
        alike = [group for group in groups if float(group["initial_lr"]) == self._rate]
        like = [*alike, *groups][0]
        share = float(like["lr"]) / float(like["initial_lr"])
        rate = self._rate * (share if alike else min(share, 1.0))
        return {"lr": torch.full_like(lr, rate) if isinstance(lr := like["lr"], Tensor) else rate, "initial_lr": self._rate}


def _initial_rate(optimizer: torch.optim.Optimizer, settings: dict[str, Any]) -> float | None:
    """Return the learning rate of a group with these settings before any scheduler changes it; None if it has none."""
    if "lr" in settings:
        return float(settings["lr"])
    default = optimizer.defaults.get("lr")
    for group in optimizer.param_groups:
        if isinstance(default, Tensor) and group.get("lr") is default and "initial_lr" in group:  # schedulers change it in place
            return float(group["initial_lr"])
    return None if default is None else float(default)
