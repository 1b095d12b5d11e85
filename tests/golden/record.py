"""Run golden cases with the `esper` on the path, and record every number: `python record.py OUT [CASE...]`.

Each case runs in a fork of one warm process, so that imports are paid for once. All numbers but times are recorded.
"""

import json
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))
from cases import SUBDIR, SWEEP, TRAIN

TIMES = ("time/", "seconds", "latency")


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested dicts and lists, by path."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from numbers(part, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from numbers(part, f"{path}[{index}]")
    elif isinstance(value, torch.Tensor):
        yield path, (str(value.dtype), tuple(value.shape), value.contiguous().view(-1).numpy().tobytes())
    elif isinstance(value, float):
        yield path, value.hex()
    else:
        yield path, value


def of_run(folder: Path) -> dict[str, Any]:
    """Return the results of a run: agent and watch of its newest checkpoint, metrics, decisions and costs."""
    from esper.checkpoint import Checkpoints, load

    newest = Checkpoints(folder / "checkpoints").latest()
    assert newest is not None, folder
    state = load(newest)
    found = dict(numbers({name: state[name] for name in ("update", "agent", "watch")}))
    for name in ("metrics.jsonl", "decisions.jsonl", "events.jsonl"):
        if (folder / name).exists():
            found |= numbers([json.loads(line) for line in (folder / name).read_text().splitlines()], name)
    found |= numbers(json.loads((folder / "costs.json").read_text()), "costs.json")
    return {path: value for path, value in found.items() if not any(part in path for part in TIMES)}


def train(overrides: list[str]) -> None:
    sys.argv = ["esper.train", *overrides]
    runpy.run_module("esper.train", run_name="__main__", alter_sys=True)


def record(out: Path, names: list[str]) -> None:
    """Run each case in a fork, and pickle its results."""
    import esper.train  # noqa: F401  (before the forks)

    for name in names:
        folder = out / "runs" / name
        if name == "sweep":
            overrides = ["-m", *SWEEP.split(), SUBDIR, f"hydra.sweep.dir={folder}"]
        else:
            overrides = [*TRAIN[name].split(), f"hydra.run.dir={folder}"]
        child = os.fork()
        if not child:
            code = 1
            try:
                sys.stdout = sys.stderr = (out / f"{name}.txt").open("w")
                train(overrides)
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"golden run {name} failed: see {out / name}.txt")
        runs = sorted(path.parent for path in folder.rglob("checkpoints")) if name == "sweep" else [folder]
        found = {f"{run.relative_to(folder)}:{path}": value for run in runs for path, value in of_run(run).items()}
        (out / f"{name}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "runs").mkdir(parents=True, exist_ok=True)
    record(place, sys.argv[2:] or [*TRAIN, "sweep"])
