"""Train a controller: python -m esper.train reward=shaped 'devices=[cuda:0,cuda:1]'"""

import shlex
import sys
import traceback
from functools import partial
from pathlib import Path

from esper.cli import rehearsal

if __name__ == "__main__":
    rehearsal.rehearse(sys.argv[1:])

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from esper.cli.command import in_one_sentence, run, warn_plainly
from esper.cli.failures import Failure, end, go_on, tolerate
from esper.cli.quoting import typed_as
from esper.cli.readiness import ready
from esper.cli.sweep_position import position_of
from esper.config import CONF, Config, typed
from esper.files import FULL, DiskError
from esper.lab.launch import end_with_parent, run_context
from esper.memory import memory_shortage
from esper.notices import StatusLine, listen
from esper.plugins import load_plugins
from esper.pool.devices import take_turn
from esper.pool.local import limit_cores
from esper.sweeps import TUNE_SWEEPER
from esper.telemetry.writers import check_writers
from esper.training.config_io import is_path
from esper.training.resume import continued
from esper.training.run_folder import CHECKPOINTS, PAGE, files_after


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(cfg: DictConfig) -> Failure | None:
    """Train a controller that watches host networks train, and grows them."""
    if HydraConfig.get().mode is RunMode.MULTIRUN:
        return tolerate(partial(train, cfg), str(HydraConfig.get().sweep.subdir))
    return train(cfg)


def train(cfg: DictConfig) -> None:
    """Run one training, alone or in a sweep."""
    from esper.seeds.errors import SeedError
    from esper.training.interrupt import Stopped
    from esper.training.trainer import Trainer  # late, to keep --help and error messages fast

    folder = Path(HydraConfig.get().runtime.output_dir)
    warn_plainly()  # the process may be a launcher's
    with in_one_sentence():
        context = run_context(HydraConfig.get())
        given = HydraConfig.get().overrides.task
        extended = [one for one in given if one.startswith("updates=")] if any(one.startswith("resume=") for one in given) else []
        remedy = " ".join(["resume with: python -m esper.train", typed_as("resume", folder), *extended])
        if context.name:
            remedy = go_on(HydraConfig.get().sweep.dir)
        limit_cores(context.cores)
        take_turn(context.number)
        end_with_parent()
        load_plugins(cfg.plugins)  # the process may be a launcher's
        config = typed(cfg, HydraConfig.get().runtime.choices)
        config = continued(config, HydraConfig.get().overrides.task)
        if context.shared:  # nobody has checked this machine
            ready(config, folder=folder)
        try:
            shown, named = rehearsal.announced, context.name
            display = "console" in check_writers(config.telemetry.writers)
            if display and named and (place := position_of(HydraConfig.get().job.num, shared=context.shared)):
                print(f"{place}: {' '.join(HydraConfig.get().overrides.task)}", flush=True)
            listen(StatusLine(sys.stdout, f"{named}: " if named else "") if display else None)
            worked = Trainer(
                config, folder, name=named, shared=context.shared, plan=context.plan, announced=shown, overrides=given
            ).run()
            others = f"; {remedy}" if named else ""
            remedy = f"the run is finished; write its page with: python -m esper.report {shlex.quote(str(folder))}{others}"
            _after(folder, config, lead=f"{named}: " if named else "", worked=worked)
        except (Stopped, KeyboardInterrupt) as stopped:
            saved, what = any((folder / CHECKPOINTS).glob("*.pt")), str(stopped) or "interrupted"
            print(f"esper: {what}; {remedy if saved else 'nothing was saved yet: repeat the command'}", file=sys.stderr)
            sys.exit(130)
        except SeedError as error:  # a bug in a blueprint: the traceback shows where
            traceback.print_exception(error.__cause__)
            end(1, f"{error}; all earlier updates are saved: fix the blueprint, and {remedy}")
        except DiskError as error:
            if error.errno not in FULL or not any((folder / CHECKPOINTS).glob("*.pt")):
                raise
            end(2, f"{error}; then {remedy}", machine=True)
        except Exception as error:
            shortage = memory_shortage(error)
            if shortage is None or not any((folder / CHECKPOINTS).glob("*.pt")):
                raise
            smaller = "hosts or steps" if "task" in config.env.ignores else "hosts or task.batch_size"
            saved = f"all earlier updates are saved: free some memory and {remedy}"
            end(2, f"{shortage}; {saved}, or start a new run with smaller {smaller}")


def _after(folder: Path, config: Config, *, lead: str, worked: bool) -> None:
    """Write the page of a run, hand it to the writers that keep files, and score the run if it belongs to a tuning. The page of
    a run that was finished before stays."""
    page = config.telemetry.page_hosts and (worked or not (folder / PAGE).exists())
    if page:
        from esper.page.page import page_at_the_end

        typed = [] if worked else HydraConfig.get().overrides.task  # a run that trained has stored where its data is
        paths = [one for one in typed if is_path(one)]
        page_at_the_end(folder, lead=lead, paths=paths)
    if page or worked:
        config.telemetry.attach(folder, files_after(folder))
    if str((sweeper := HydraConfig.get().sweeper).get("_target_")) == TUNE_SWEEPER:
        from esper.lab.tuning import score_tuned  # late: it imports the statistics

        score_tuned(sweeper, folder)


if __name__ == "__main__":
    run(main)
