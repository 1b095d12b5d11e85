"""Hydra's side of a tuning: hands the runs of each trial to the launcher, and asks what to try next.

It is our own because hydra-optuna-sweeper takes what one run returns for the objective, and here that is a difference between
runs of several seeds; it also wants an Optuna below 3.
"""

import warnings
from typing import Any

from omegaconf import open_dict

from esper.cli.command import in_one_sentence
from esper.config import ConfigError, typed
from esper.lab.launch import CellSweeper
from esper.lab.search_space import search_space
from esper.lab.tuning import FILE, Tuning


class TuneSweeper(CellSweeper):
    """Runs trials against a baseline; see `esper.config.TuneConfig` for what it is told."""

    def sweep(self, arguments: list[str]) -> Any:
        with in_one_sentence():
            planned = search_space(**self.asked, common=arguments)
            tuning = Tuning(planned, self.folder)
            self.save_config()
            results: list[Any] = []
            while trials := tuning.next():
                begun = len(tuning.trials)
                for trial in trials.values():
                    trial.fault = self._fault([*arguments, *trial.words])
                results += self.run_cells(f"trial {begun + len(trials)} of {planned.trials}", tuning.cells(trials))
                tuning.learn(trials)
                for number in range(begun, len(tuning.trials)):
                    print(tuning.line(number), flush=True)
            print("\n".join([*tuning.table(), f"all of it is in {self.folder / FILE}"]))
        return results

    def _fault(self, words: list[str]) -> str | None:
        """Why a run with these words cannot be, though each of them can; None where it can."""
        assert self.hydra_context is not None
        assert self.config is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, words)
        with open_dict(config):
            del config["hydra"]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself warns
                typed(config)
        except ConfigError as error:
            return str(error)
        return None
