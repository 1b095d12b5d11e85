"""Traces of a policy on held-out hosts, beside never growing on the same hosts."""

from collections.abc import Callable, Sequence
from pathlib import Path

from esper.cli.transfer import moved
from esper.config import Config
from esper.evaluation.held_out import POLICIES, Evaluation
from esper.telemetry.traces import NEVER, trace_of_evaluation, write_trace
from esper.text import counted
from esper.training.config_io import from_plain
from esper.training.play import play
from esper.training.resume import load_newest
from esper.training.trace import Trace


def untraced(folder: Path, config: Config, updates: int, hosts: int) -> dict[str, Path]:
    """Return the files of the traces that a page lacks, by controller: the policy with sampled actions, with the most probable
    ones, if it has probabilities, and never growing.

    Args:
        folder: folder of the run.
        config: its config.
        updates: number of updates of the policy.
        hosts: held-out hosts.
    """
    names = [*(POLICIES if config.agent.greedy else POLICIES[:1]), NEVER]
    paths = {name: trace_of_evaluation(folder, updates, hosts, name) for name in names}
    return {name: path for name, path in paths.items() if not path.exists()}


def trace_held_out(folder: Path, hosts: int, log: Callable[[str], None], paths: Sequence[str] = ()) -> None:
    """Grow held-out hosts with the newest policy of a run, and write the traces that its page lacks, see `untraced`.

    Args:
        folder: folder of the run, with at least one checkpoint.
        hosts: held-out hosts, at least 2.
        log: receives a line before each controller.
        paths: where the data of the run is now, as overrides, if it has moved.

    Raises:
        ConfigError: the hosts do not fit into memory, the checkpoint does not fit this version, or other data is under the paths.
        DiskError: a trace cannot be written.
    """
    if state := load_newest(folder):
        config = from_plain(state["config"])
        if not untraced(folder, config, state["update"], hosts):
            return  # it needs no data
        moved(config, paths, state["hparams"].get("data"))
    evaluation = Evaluation.load(str(folder), hosts=hosts, online=None, overrides=paths)
    try:
        for name, path in untraced(folder, evaluation.config, evaluation.updates, hosts).items():
            policy = f"with the policy after {counted(evaluation.updates, 'update')}"
            how = {"policy": policy, "policy_greedy": "with its most probable actions", NEVER: "that never grow"}[name]
            log(f"training {hosts} held-out hosts {how}")
            controller, trace = evaluation.controller(name), Trace(evaluation.env.layout)
            evaluation.env.reset(options={"episode": evaluation.episode})
            episode = play(evaluation.env, controller, greedy=name == "policy_greedy", record=trace.add)
            write_trace(path, trace.table(episode))
    finally:
        evaluation.env.close()
