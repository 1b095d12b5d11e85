"""Train a controller: python -m esper.train reward=shaped 'devices=[cuda:0,cuda:1]'"""

import sys
import traceback
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from esper.checkpoint import load
from esper.cli.command import in_one_sentence, run, warn_plainly
from esper.config import CONF, typed
from esper.env.shard_pool import limit_cores
from esper.lab.launch import run_context
from esper.plugins import load_plugins
from esper.training.config_io import from_plain, resumed


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(cfg: DictConfig) -> None:
    """Train a controller that watches host networks train, and grows them."""
    from esper.lab.tuning import score_tuned
    from esper.seeds.errors import SeedError
    from esper.training.interrupt import Stopped
    from esper.training.trainer import Trainer, find_checkpoint  # late, to keep --help and error messages fast

    folder = Path(HydraConfig.get().runtime.output_dir)
    context = run_context(HydraConfig.get())
    limit_cores(context.cores)
    warn_plainly()  # the process may be a launcher's
    with in_one_sentence():
        try:
            load_plugins(cfg.plugins)  # the process may be a launcher's
            config = typed(cfg, HydraConfig.get().runtime.choices)
            if config.resume is not None:
                saved = from_plain(load(find_checkpoint(config.resume, "resume"))["config"])
                overrides = [one for one in HydraConfig.get().overrides.task if not one.startswith("sweep=")]
                config = resumed(saved, config, overrides)
            Trainer(config, folder, name=context.name, shared=context.shared).run()
            score_tuned(HydraConfig.get().sweeper, folder)
        except Stopped as stopped:
            print(f"esper: {stopped}; resume with: python -m esper.train resume={folder}", file=sys.stderr)
            sys.exit(130)
        except SeedError as error:  # a bug in a blueprint: the traceback shows where
            traceback.print_exception(error.__cause__)
            print(
                f"esper: {error}; all earlier updates are saved: fix the blueprint, and resume with: "
                f"python -m esper.train resume={folder}",
                file=sys.stderr,
            )
            sys.exit(1)


if __name__ == "__main__":
    run(main)
