"""Traces of a policy on held-out hosts, beside never growing on the same hosts."""

from collections.abc import Callable
from pathlib import Path

from esper.lab.evaluation import POLICIES, Evaluation
from esper.telemetry.text import counted
from esper.telemetry.traces import trace_of_evaluation, write_trace
from esper.training.play import play
from esper.training.trace import Trace

NEVER = "wait"
"""Controller that never grows."""


def trace_held_out(folder: Path, hosts: int, log: Callable[[str], None]) -> int:
    """Grow held-out hosts with the newest policy of a run, and write one trace per controller: the policy with sampled actions,
    with the most probable ones, if it has probabilities, and never growing.

    Args:
        folder: folder of the run, with at least one checkpoint.
        hosts: held-out hosts, at least 2.
        log: receives a line before each controller.

    Returns:
        The number of updates of the policy.

    Raises:
        ConfigError: the hosts do not fit into memory, or the checkpoint does not fit this version.
        DiskError: a trace cannot be written.
    """
    evaluation = Evaluation.load(str(folder), hosts=hosts)
    try:
        names = [*(POLICIES if evaluation.config.agent.greedy else POLICIES[:1]), NEVER]
        for name in names:
            path = trace_of_evaluation(folder, evaluation.updates, hosts, name)
            if path.exists():
                continue
            policy = f"with the policy after {counted(evaluation.updates, 'update')}"
            how = {"policy": policy, "policy_greedy": "with its most probable actions", NEVER: "that never grow"}[name]
            log(f"training {hosts} held-out hosts {how}")
            controller, trace = evaluation.controller(name), Trace(evaluation.env.layout)
            evaluation.env.reset(options={"episode": evaluation.episode})
            episode = play(evaluation.env, controller, greedy=name == "policy_greedy", record=trace.add)
            write_trace(path, trace.table(episode))
    finally:
        evaluation.env.close()
    return evaluation.updates
