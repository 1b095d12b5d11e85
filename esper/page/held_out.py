"""Traces of a policy on held-out hosts, beside never growing on the same hosts."""

from collections.abc import Callable
from pathlib import Path

from esper.config import Config
from esper.evaluation.held_out import POLICIES, Evaluation
from esper.telemetry.traces import NEVER, trace_of_evaluation, write_trace
from esper.text import counted
from esper.training.play import play
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


def trace_held_out(folder: Path, hosts: int, log: Callable[[str], None]) -> None:
    """Grow held-out hosts with the newest policy of a run, and write the traces that its page lacks, see `untraced`.

    Args:
        folder: folder of the run, with at least one checkpoint.
        hosts: held-out hosts, at least 2.
        log: receives a line before each controller.

    Raises:
        ConfigError: the hosts do not fit into memory, or the checkpoint does not fit this version.
        DiskError: a trace cannot be written.
    """
    evaluation = Evaluation.load(str(folder), hosts=hosts, online=None)
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
