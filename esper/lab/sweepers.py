"""Hydra sweepers of experiments: `sweep=ab` runs arms times blocks, `sweep=tune` proposes trials against a baseline.

Hydra finds them through `hydra_plugins/esper_sweeps`. Its own sweepers do not fit: the basic one has no blocks, and
hydra-optuna-sweeper, whose grammar `sweep=tune` shares, maximises the return value of one run instead of a paired difference over
several seeds, and requires Optuna below 3.

Every sweep imports this file, so whatever imports the statistics, which takes seconds, is imported late.
"""

import shlex
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict

from esper.cli.command import in_one_sentence
from esper.cli.failures import Failure, end_if_failed, failures
from esper.config import Config, ConfigError, typed
from esper.lab.design import FILE
from esper.lab.launch import CellSweeper
from esper.lab.search_space import search_space
from esper.sweeps import TuneConfig
from esper.telemetry.text import counted
from esper.training.config_io import flat, to_plain


def _check_measured(outcome: str, configs: Sequence[Config]) -> None:
    for config in configs:
        if outcome != "return" and not config.env.has_hosts:
            raise ConfigError(
                f"outcome={outcome} is not measured with env={config.choice('env')}, which trains no hosts: add outcome=return"
            )
        if outcome == "accuracy_greedy" and not config.agent.greedy:
            raise ConfigError(
                f"outcome=accuracy_greedy needs a policy that samples its actions, and agent={config.choice('agent')} does not: "
                "choose outcome=accuracy"
            )


class BlockSweeper(CellSweeper):
    """Runs arms times blocks; see `esper.sweeps.BlocksConfig` for its arguments."""

    @staticmethod
    def preview(hydra: DictConfig, common: Sequence[str]) -> list[list[str]]:
        """Return the overrides of one run of every arm, then of later blocks' runs that have teachers of their own, so that all
        are checked before the first run starts."""
        if find_spec("pandas") is None:
            raise ConfigError("experiments need pandas: install the extra compare, as in pip install -e '.[compare]'")
        from esper.lab.plan import experiment

        found = experiment(hydra, common)
        return [list(cell.overrides) for cell in (*found.firsts(), *found.taught_by_block())]

    @staticmethod
    def check(hydra: DictConfig, common: Sequence[str], configs: Sequence[Config]) -> None:
        """Raise ConfigError if runs with these configs do not measure the planned outcome, or cannot be compared by it."""
        from esper.lab.plan import check_arms, experiment

        found = experiment(hydra, common)
        if not (Path(hydra.sweep.dir) / FILE).exists():  # an experiment that has begun is resumed as it is
            _check_measured(found.plan.outcome, configs)
            check_arms(found, configs[: len(found.arms)])

    def sweep(self, arguments: list[str]) -> Any:
        from esper.lab import scoring_time
        from esper.lab.plan import announce, experiment
        from esper.lab.power import expected_power

        with in_one_sentence():
            assert self.config is not None
            design = experiment(self.config.hydra, arguments)
            lines = [*announce(design, self.folder), *expected_power(design), scoring_time.before(design, self.config)]
            design.save(self.folder)
            self.save_config()
            print("\n".join(lines), flush=True)
            results = self.run_cells(f"{len(design.arms)} arms x {counted(design.blocks, 'block')}", design.cells)
            end_if_failed(results, self.folder)
            print(f"compare them with: python -m esper.compare {shlex.quote(str(self.folder))}")
            print(scoring_time.after(design, self.config, self.folder), flush=True)
        return [results]


class TuneSweeper(CellSweeper):
    """Runs trials against a baseline; see `esper.sweeps.TuneConfig` for its arguments."""

    @staticmethod
    def preview(hydra: DictConfig, common: Sequence[str]) -> list[list[str]]:
        """Return the overrides of the baseline, and of every tuned key at the ends of its range."""
        asked = cast(dict[str, Any], OmegaConf.to_container(hydra.sweeper))
        return search_space(TuneConfig(**asked), common).previews()

    @staticmethod
    def check(hydra: DictConfig, common: Sequence[str], configs: Sequence[Config]) -> None:
        """Raise ConfigError if runs with these configs do not measure the outcome of the tuning, or not the same one."""
        from esper.lab.runs import paid_by

        outcome = str(hydra.sweeper.outcome)
        _check_measured(outcome, configs)
        if outcome == "return" and (key := paid_by([flat(to_plain(config)) for config in configs])):
            raise ConfigError(
                f"outcome=return cannot rank values with different rewards, and these have different {key}: choose "
                "outcome=validation"
            )

    def sweep(self, arguments: list[str]) -> Any:
        from esper.lab.tuning import FILE, Tuning

        with in_one_sentence():
            space = search_space(TuneConfig(**self.arguments), arguments)
            tuning = Tuning(space, self.folder)
            self.save_config()
            results: list[Any] = []
            while trials := tuning.next():
                known = len(tuning.trials)
                for trial in trials.values():
                    trial.fault = self._fault([*space.common, *trial.overrides])
                ran = self.run_cells(f"trial {known + len(trials)} of {space.config.trials}", tuning.cells(trials))
                if tuning.left_out(trials, {one.run.partition("/")[0]: one.reason.partition("; ")[0] for one in failures(ran)}):
                    end_if_failed(ran, self.folder)
                results += [one for one in ran if not isinstance(one.return_value, Failure)]  # else left out
                tuning.learn(trials)
                for number in range(known, len(tuning.trials)):
                    print(tuning.line(number), flush=True)
            print("\n".join([*tuning.table(), f"all trials: {self.folder / FILE}"]))
        return results

    def _fault(self, overrides: list[str]) -> str | None:
        """Return the reason why these overrides, valid one by one, do not fit together; None if they do."""
        assert self.hydra_context is not None
        assert self.config is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            del config["hydra"]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself warns
                typed(config)
        except ConfigError as error:
            return str(error)
        return None
