"""Where Hydra's discovery finds Esper's sweepers and its Ray launcher: Hydra takes only classes of this package."""

from hydra.core.config_store import ConfigStore

from esper.lab import ray_launcher, sweepers


class BlockSweeper(sweepers.BlockSweeper):
    """See `esper.lab.sweepers`."""


class TuneSweeper(sweepers.TuneSweeper):
    """See `esper.lab.sweepers`."""


class RayLauncher(ray_launcher.RayLauncher):
    """See `esper.lab.ray_launcher`."""


ConfigStore.instance().store(group="hydra/launcher", name="esper_ray", node=ray_launcher.RayConfig)
