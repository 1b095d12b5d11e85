"""Esper's sweepers and launcher, made known to Hydra."""

from hydra.core.plugins import Plugins


def register_sweepers() -> None:
    """Register Esper's sweepers and launcher with Hydra, whose search of folders misses packages of an editable install."""
    from hydra_plugins import esper_sweeps

    for plugin in (esper_sweeps.BlockSweeper, esper_sweeps.TuneSweeper, esper_sweeps.RayLauncher):
        Plugins.instance().register(plugin)
