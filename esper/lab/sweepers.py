"""Hydra sweepers of experiments: `sweep=ab` runs arms times blocks, `sweep=tune` proposes trials against a baseline.

Hydra finds them through `hydra_plugins/esper_sweeps`. Its own sweepers do not fit: the basic one has no blocks, and
hydra-optuna-sweeper, whose grammar `sweep=tune` shares, maximises the return value of one run instead of a paired difference over
several seeds, and requires Optuna below 3.

Every sweep imports this file, so whatever imports the statistics, which takes seconds, is imported late.
"""

import logging
import shlex
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from esper.cli.command import in_one_sentence
from esper.cli.failures import Failure, end_if_failed, failures
from esper.cli.overrides import config_of
from esper.cli.refusals import refuse_another_plan
from esper.config import Config, ConfigError
from esper.files import write_whole
from esper.lab.cell import Cell
from esper.lab.design import FILE
from esper.lab.last_start import last_start
from esper.lab.launch import batches
from esper.lab.search_space import search_space
from esper.lab.sweep_progress import SweepProgress
from esper.sweeps import TuneConfig
from esper.text import counted
from esper.training.config_io import flat, to_plain


def _check_measured(outcome: str, configs: Sequence[Config]) -> None:
    from esper.lab.outcomes import check_measured

    samples = any(config.agent.greedy for config in configs)
    check_measured(
        outcome,
        without_hosts=[config.choice("env") for config in configs if not config.env.has_hosts],
        without_samples=None if samples else configs[0].choice("agent"),
    )


class CellSweeper(Sweeper):
    """Base of Hydra sweepers whose runs are cells; subclasses define which."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        """Arguments of the sweep, as Hydra parsed them."""
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    @property
    def folder(self) -> Path:
        """Folder of the sweep."""
        assert self.config is not None
        return Path(self.config.hydra.sweep.dir)

    def save_config(self) -> None:
        """Write the config of the whole command into the folder, as Hydra's own sweepers do.

        Raises:
            DiskError: it cannot be written.
        """
        write_whole(self.folder / "multirun.yaml", OmegaConf.to_yaml(self.config))

    def run_cells(self, title: str, cells: Sequence[Cell], *, before: int = 0, later: int = 0) -> list[JobReturn]:
        """Launch the cells that are not finished, in order, and wait for them; see `end_if_failed` for those that failed.

        Args:
            title: title of the cells, for the progress line.
            cells: all cells, finished or not.
            before: number of further runs of the sweep that are finished.
            later: number of runs that will follow.
        """
        assert self.config is not None
        assert self.launcher is not None
        launcher = self.config.hydra.launcher
        pending = [(cell, overrides) for cell in cells if (overrides := cell.pending(self.folder)) is not None]
        jobs, folders = [overrides for _, overrides in pending], [self.folder / cell.folder for cell, _ in pending]
        done, total = before + len(cells) - len(jobs), before + len(cells) + later
        logs = f"; logs of the others are in {_logs(launcher)}" if jobs and _logs(launcher) else ""
        for name in ("hydra", "hydra_plugins"):  # launchers log all overrides of all runs, which the folder holds anyway
            logging.getLogger(name).setLevel(logging.WARNING)
        print(f"{self.folder}: {title}, {done} of {counted(total, 'run')} done{logs}", flush=True)
        results: list[JobReturn] = []
        with SweepProgress(folders, done=done, later=later):
            for batch in batches(jobs, launcher):
                results += self.launcher.launch(batch, initial_job_idx=len(cells) - len(jobs) + len(results))
        return results


def _logs(launcher: Any) -> str | None:
    """Return the folder to which runs redirect their output, if the launcher does so."""
    return str(Path(launcher.submitit_folder).parent) if "submitit_folder" in launcher else None


class BlockSweeper(CellSweeper):
    """Runs arms times blocks; see `esper.sweeps.BlocksConfig` for its arguments."""

    @staticmethod
    def preview(hydra: DictConfig, common: Sequence[str]) -> list[list[str]]:
        """Return the overrides of one run of every arm, then of later blocks' runs that have teachers of their own, so that all
        are checked before the first run starts."""
        if find_spec("pandas") is None:
            raise ConfigError(
                "experiments need pandas: install the extra compare, as in pip install -c constraints.txt -e '.[compare]'"
            )
        from esper.lab.plan import experiment

        refuse_another_plan(Path(hydra.sweep.dir), FILE)
        found = experiment(hydra, common)
        return [list(cell.overrides) for cell in (*found.firsts(), *found.taught_by_block())]

    @staticmethod
    def check(hydra: DictConfig, common: Sequence[str], configs: Sequence[Config]) -> None:
        """Raise ConfigError if the folder holds another experiment, or if runs with these configs do not measure the planned
        outcome, or cannot be compared by it."""
        from esper.lab.plan import check_arms, experiment

        folder = Path(hydra.sweep.dir)
        found = experiment(hydra, common).as_begun(folder)
        if not (folder / FILE).exists():  # an experiment that has begun is resumed as it is
            _check_measured(found.plan.outcome, configs)
            check_arms(found, configs[: len(found.arms)])

    def sweep(self, arguments: list[str]) -> Any:
        from esper.lab import scoring_time
        from esper.lab.plan import announce, experiment
        from esper.lab.power import expected_power

        with in_one_sentence():
            assert self.config is not None
            design = experiment(self.config.hydra, arguments)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.save_config()  # with the launcher and --config-dir, which commands in these lines repeat
            begun = design.as_begun(self.folder)
            lines = [*announce(begun, self.folder), *expected_power(begun), scoring_time.before(design)]
            design.save(self.folder)
            print("\n".join(lines), flush=True)
            results = self.run_cells(f"{len(design.arms)} arms x {counted(design.blocks, 'block')}", design.cells)
            end_if_failed(results, self.folder)
            moved = [one for one in last_start(self.folder).paths if one not in begun.common]
            print(f"compare them with: python -m esper.compare {shlex.join([str(self.folder), *moved])}")
            if line := scoring_time.after(design, self.folder):
                print(line, flush=True)
        return [results]


class TuneSweeper(CellSweeper):
    """Runs trials against a baseline; see `esper.sweeps.TuneConfig` for its arguments."""

    @staticmethod
    def preview(hydra: DictConfig, common: Sequence[str]) -> list[list[str]]:
        """Return the overrides of the baseline, and of every tuned key at the ends of its range."""
        from esper.lab.tuning import FILE

        refuse_another_plan(Path(hydra.sweep.dir), FILE)
        asked = cast(dict[str, Any], OmegaConf.to_container(hydra.sweeper))
        return search_space(TuneConfig(**asked), common).previews()

    @staticmethod
    def check(hydra: DictConfig, common: Sequence[str], configs: Sequence[Config]) -> None:
        """Raise ConfigError if runs with these configs do not measure the outcome of the tuning, or not the same one."""
        from esper.lab.outcomes import RETURNS, differing_reward

        outcome = str(hydra.sweeper.outcome)
        _check_measured(outcome, configs)
        if outcome in RETURNS and (key := differing_reward([flat(to_plain(config)) for config in configs])):
            raise ConfigError(
                f"outcome={outcome} cannot rank values with different rewards, and these have different {key}: choose "
                "outcome=validation"
            )

    def sweep(self, arguments: list[str]) -> Any:
        from esper.lab.tuning import FILE, Tuning

        with in_one_sentence():
            space = search_space(TuneConfig(**self.arguments), arguments)
            tuning, blocks = Tuning(space, self.folder), space.config.blocks
            self.save_config()
            if len(tuning.trials) >= space.config.trials:
                print(f"{self.folder}: {counted(len(tuning.trials), 'trial')} finished before; raise trials to add more")
            results: list[Any] = []
            while trials := tuning.next():
                known = len(tuning.trials)
                for trial in trials.values():
                    trial.fault = self._fault([*space.common, *trial.overrides])
                title = f"trial {known + len(trials)} of {space.config.trials}"
                later = int(max(0, min(space.config.trials, space.size) - known - len(trials)))
                ran = self.run_cells(title, tuning.cells(trials), before=known * blocks, later=later * blocks)
                failed = failures(ran)
                causes = {one.run.partition("/")[0]: one.reason.partition("; ")[0] for one in failed if not one.machine}
                if tuning.left_out(trials, causes) or any(one.machine for one in failed):
                    end_if_failed(ran, self.folder)
                results += [one for one in ran if not isinstance(one.return_value, Failure)]  # else left out
                tuning.learn(trials)
                for number in range(known, len(tuning.trials)):
                    print(tuning.line(number), flush=True)
            print("\n".join([*tuning.table(), f"all trials: {self.folder / FILE}"]))
        return results

    def _fault(self, overrides: list[str]) -> str | None:
        """Return the reason why these overrides, valid one by one, do not fit together; None if they do."""
        try:
            with warnings.catch_warnings(action="ignore"):  # the run itself warns
                config_of(overrides)
        except ConfigError as error:
            return str(error)
        return None
