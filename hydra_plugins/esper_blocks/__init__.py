"""Hydra's side of an experiment in blocks: hands the cells of a design to the launcher, in order, without those already done.

Hydra looks for sweepers in the package hydra_plugins; what the cells are is in `esper.lab.design`.
"""

from typing import Any

from esper.cli.command import in_one_sentence
from esper.lab.design import design
from esper.lab.launch import CellSweeper


class BlockSweeper(CellSweeper):
    """Runs arms times blocks; see `esper.lab.design.design` for what it is told."""

    def sweep(self, arguments: list[str]) -> Any:
        with in_one_sentence():
            planned = design(**self.asked, common=arguments)
            planned.save(self.folder)
            self.save_config()
            results = self.run_cells(f"{len(planned.arms)} arms x {len(planned.seeds)} blocks", planned.cells)
        print(f"compare them with: python -m esper.compare {self.folder}")
        return [results]
