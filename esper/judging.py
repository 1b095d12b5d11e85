"""What finished runs reach on fresh hosts, and others who grow the same hosts; grown once, and kept beside the run."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from esper.checkpoint import write_whole
from esper.config import ConfigError
from esper.evaluate import STATIC, Choice, EvaluateConfig, Evaluation, Outcome
from esper.runs import OUTCOMES, RIVALS, Run, records_of

Rows = dict[str, dict[str, list[float]]]
"""Controller -> outcome -> value of each fresh host."""
FRESH = ("accuracy", "validation", "return", "parameters", "flops", "training_flops")
"""Outcomes that are measured on fresh hosts."""
SEARCHED = RIVALS[1:]
"""Rivals that are chosen on other hosts."""


def judged_file(run: Run, hosts: int) -> Path:
    """Where the outcomes of a run on so many fresh hosts are kept."""
    return run.folder / f"judged_{run.updates:06d}_{hosts}_hosts.json"


def judge(run: Run, hosts: int) -> dict[str, float]:
    """Outcomes of a finished run by name; NaN where one does not apply."""
    greedy = "policy_greedy" if str(run.config["agent"]).startswith("ppo") else None
    rows = _grown(run, hosts, ["policy", greedy] if greedy else ["policy"])
    drawn = {name: float(np.mean(rows["policy"][name])) for name in FRESH}
    return {**drawn, "accuracy_greedy": float(np.mean(rows[greedy]["accuracy"])) if greedy else float("nan"), **_lived(run)}


def judge_rivals(run: Run, hosts: int, rivals: Sequence[str], kept: Path) -> dict[str, dict[str, float]]:
    """Outcomes of others who grow the fresh hosts of a run, by rival; NaN where one does not apply.

    Args:
        rivals: of `RIVALS`, or agents that need no training.
        kept: folder in which is written down which schedules were chosen, so that all runs of an experiment are met by the same.
    """
    rows = _grown(run, hosts, list(rivals), kept)
    missing = dict.fromkeys(OUTCOMES, float("nan"))
    return {rival: missing | {name: float(np.mean(rows[rival][name])) for name in FRESH} for rival in rivals}


def _grown(run: Run, hosts: int, names: Sequence[str], kept: Path | None = None) -> Rows:
    """The outcomes of some controllers on the fresh hosts of a run; what was not grown before is grown now.

    Raises:
        ConfigError: the file is damaged.
    """
    path = judged_file(run, hosts)
    rows: Rows = _read(path) if path.exists() else {}
    missing = [name for name in names if any(key not in rows.get(name, {}) for key in FRESH)]
    if not missing:
        return rows
    # What the policy kept is known only after it grew the hosts.
    told = ["policy", STATIC] if "static" in missing else []
    told += [name for name in missing if name not in RIVALS]
    config = EvaluateConfig(checkpoint=str(run.folder), hosts=hosts, controllers=list(dict.fromkeys(told)) or ["wait"])
    evaluation = Evaluation(config)
    outcomes = evaluation.run()
    if set(missing) & set(SEARCHED):
        assert kept is not None
        choice = _choice(evaluation, kept / f"schedules_{hosts}_hosts.json")
        outcomes |= dict(zip(SEARCHED, evaluation.grow_schedules(choice), strict=True))
    evaluation.env.close()
    rows |= {"static" if name == STATIC else name: _row(outcome) for name, outcome in outcomes.items()}
    write_whole(path, json.dumps(rows) + "\n")
    return rows


def _row(outcome: Outcome) -> dict[str, list[float]]:
    return {
        "accuracy": outcome.accuracy_N.tolist(),
        "validation": outcome.validation_N.tolist(),
        "return": outcome.return_N.tolist(),
        "parameters": outcome.params_N.tolist(),
        "flops": outcome.flops_N.tolist(),
        "training_flops": outcome.training_flops_N.tolist(),
    }


def _choice(evaluation: Evaluation, path: Path) -> Choice:
    """The schedules that all runs of an experiment are compared with."""
    if not path.exists():
        write_whole(path, json.dumps(asdict(evaluation.choose())) + "\n")
    return Choice(**_read(path))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: remove it, and the run is judged again") from error


def _lived(run: Run) -> dict[str, float]:
    """Outcomes that training itself wrote down."""
    records = records_of(run)
    accuracy = [record["host/committed_accuracy"] for record in records if "host/committed_accuracy" in record]
    panics = [sum(value for tag, value in record.items() if tag.startswith("governor/rollbacks")) for record in records]
    hosts = float(run.config["hosts"])
    return {"learning": float(np.nanmean(accuracy)), "catastrophes": float(np.sum(panics)) / hosts / run.updates}
