"""Hydra's side of an experiment in blocks: hands the cells of a design to the launcher, in order, without those already done.

Hydra looks for sweepers in the package hydra_plugins; what the cells are is in `esper.design`.
"""

from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from omegaconf import OmegaConf

from esper.cli import in_one_sentence
from esper.design import design
from esper.launch import run_cells


class BlockSweeper(BasicSweeper):
    """Runs arms times blocks; see `esper.design.design` for what it is told."""

    def __init__(self, **asked: Any) -> None:
        super().__init__(max_batch_size=None)
        self.asked = asked

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        assert self.launcher is not None
        folder = Path(self.config.hydra.sweep.dir)
        with in_one_sentence():
            planned = design(**self.asked, common=arguments)
            planned.save(folder)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        title = f"{folder}: {len(planned.arms)} arms x {len(planned.seeds)} blocks"
        results = run_cells(title, planned.cells, folder, self.launcher, self.config.hydra.launcher)
        print(f"compare them with: python -m esper.compare {folder}")
        return [results]
