"""Trains a controller: python -m esper.train reward=shaped 'devices=[cuda:0,cuda:1]'"""

import hydra
from omegaconf import DictConfig

from esper.cli import in_one_sentence, run
from esper.config import CONF, typed


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(cfg: DictConfig) -> None:
    """Trains a controller that watches host networks train, and grows them."""
    with in_one_sentence():
        config = typed(cfg)
        print(config)


if __name__ == "__main__":
    run(main)
