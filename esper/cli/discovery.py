"""Esper's sweepers and launcher, made known to Hydra."""

from hydra.core.plugins import Plugins


def register_sweepers() -> None:
    """Tell Hydra of Esper's sweepers and launcher: it searches folders, and finds no package of an editable install."""
    from hydra_plugins import esper_sweeps  # takes a while to import, and only sweeps need it

    for plugin in (esper_sweeps.BlockSweeper, esper_sweeps.TuneSweeper, esper_sweeps.RayLauncher):
        Plugins.instance().register(plugin)
