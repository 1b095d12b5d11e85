"""Damage to every file of a run, an experiment and a tuning: a command ends with the right numbers, or with one sentence.

By hand, all damages: python -m tests.faults.damages [PART OF A NAME]
"""

import json
import random
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from esper.checkpoint import Checkpoints, digest_of, encode, load
from esper.training.run_folder import CHECKPOINTS
from tests.faults.cases import ARMS, JSONL, SMALL_HOST, SWEEP, config_of
from tests.forked import run_forked
from tests.golden.record import numbers

TINY = (
    f"hosts=2 steps=6 gates.min_training=1 gates.min_blending=1 agent.minibatches=1 agent.epochs=1 agent.hidden=8 "
    f"blueprint=[norm,conv_light] {SMALL_HOST} {JSONL}"
)
TUNE = (
    "-m hydra.sweep.dir=FOLDER sweep=tune agent.learning_rate=1e-2,1e-3 blocks=1 score_hosts=2 outcome=validation "
    f"{TINY} updates=1"
)
COMPARE = "FOLDER hosts=2"
REPEAT = f"{SWEEP} '{ARMS}' {TINY} hydra.sweep.dir=FOLDER"
CASES = {
    "run": (
        ("esper.train", f"{TINY} updates=2 telemetry.decisions=true hydra.run.dir=FOLDER"),
        ("esper.train", "resume=FOLDER updates=3"),
        ("esper.evaluate", "checkpoint=FOLDER hosts=2"),
    ),
    "sweep": (("esper.train", REPEAT), ("esper.compare", COMPARE), ("esper.train", REPEAT)),
    "tuning": (
        ("esper.train", f"{TUNE} trials=1"),
        ("esper.train", f"{TUNE} trials=2"),
    ),
}
"""Commands: the first makes the folder, the others read it when it is damaged."""
READ = re.compile(r"\.(jsonl|json|pt|yaml)$")
WRITTEN = {"esper.train": "tuning.json", "esper.compare": "comparison_*.json", "esper.evaluate": "evaluation_*.json"}
"""File that a command writes."""
ASIDE = ("runs", "command", "folders", "sentences", "warnings", "sha256")
"""Entries of these files that are text, or paths."""
UNSEEN = "times.jsonl"
"""File in which another digit of a time is not detected."""


def _replaced(value: Any) -> Any:
    return 7 if isinstance(value, str) else "x" if isinstance(value, int | float) else None if value else [7]


def _mistype(path: Path, chance: random.Random) -> None:
    """Give one value another type; in a checkpoint, give one tensor of the policy another dtype."""
    if path.suffix == ".pt":
        state = load(path)
        agent = state["agent"]
        part, name = chance.choice([(part, name) for part in ("network", "popart") for name in agent[part]])
        agent[part][name] = agent[part][name].half()
        path.write_bytes(encode(state))
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = chance.randrange(len(lines))
    if path.suffix == ".yaml":
        path.write_text(re.sub(r"(?m)^(\w+):.*$", r"\1: [{}]", lines[0]))
        return
    whole = json.loads(lines[number])
    node = whole
    while True:
        key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], dict | list) or not node[key] or chance.random() < 0.3:
            node[key] = _replaced(node[key])
            break
        node = node[key]
    lines[number] = json.dumps(whole)
    path.write_text("\n".join(lines) + "\n")


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


def _to_folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _text(text: str) -> Callable[[Path, random.Random], None]:
    return lambda path, _: _write(path, text.encode())


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "empty": _text(""),
    "cut": lambda path, _: _write(path, path.read_bytes()[: path.stat().st_size // 2]),
    "flip": _flip,
    "noise": lambda path, chance: _write(path, chance.randbytes(300)),
    "list": _text("[]\n"),
    "object": _text('{"a": 1}\n'),
    "null": _text("null\n"),
    "types": _mistype,
    "deep": _text("[" * 100_000),
    "gone": _remove,
    "folder": _to_folder,
}


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One damage to one file of a case."""

    case: str
    file: str
    kind: str

    def __str__(self) -> str:
        return f"{self.case}/{self.file} {self.kind}"

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the answers of the commands."""
        for number, (module, arguments) in enumerate(CASES[self.case][1:]):
            with tempfile.TemporaryDirectory(prefix="esper-damage-") as place:
                folder = Path(place) / "folder"
                shutil.copytree(whole(self.case), folder)
                DAMAGES[self.kind](folder / self.file, random.Random(str(self)))
                done = run_forked(module, *_spelled(arguments, folder), cwd=Path(place))
                if found := self._judge(folder, done.returncode, done.stderr, number):
                    yield f"{self}: {module}: {found}"

    def _judge(self, folder: Path, code: int, err: str, number: int) -> str | None:
        sentences = [line for line in err.splitlines() if line.startswith("esper: ")]
        if "Traceback" in err or code not in (0, 2):
            return f"exit code {code}: {err[-600:]}"
        if code == 2:
            named = any(name in sentences[-1] for name in (Path(self.file).name, "checkpoint")) if sentences else False
            return None if len(sentences) == 1 and named and ": " in sentences[0][7:] else f"not one sentence: {err}"
        other_run = self.kind in ("gone", "types") and self.file.endswith(".pt")  # nothing says which checkpoint was the newest
        silent = not err and not other_run and not (self.kind == "flip" and self.file.endswith(UNSEEN))
        if silent and (other := difference(result(folder, CASES[self.case][1 + number][0]), expected(self.case, number))):
            return f"another number, silently: {other}"
        return None


def _spelled(arguments: str, folder: Path) -> list[str]:
    return [argument.replace("FOLDER", str(folder)) for argument in shlex.split(arguments)]


@cache
def whole(case: str) -> Path:
    """Return the undamaged folder of a case; an experiment is scored."""
    config_of(f"{TINY} updates=1")
    folder = Path(tempfile.mkdtemp(prefix=f"esper-damages-{case}-")) / "folder"
    commands = CASES[case][: 2 if case == "sweep" else 1]
    for module, arguments in commands:
        done = run_forked(module, *_spelled(arguments, folder), cwd=folder.parent)
        assert done.returncode == 0, done.stderr
    return folder


@cache
def expected(case: str, number: int) -> dict[str, Any]:
    """Return the result of a command in an undamaged folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"esper-damages-{case}-")) / "folder"
    shutil.copytree(whole(case), folder)
    module, arguments = CASES[case][1 + number]
    done = run_forked(module, *_spelled(arguments, folder), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return result(folder, module)


def result(folder: Path, module: str) -> dict[str, Any]:
    """Return the numbers that a command wrote into a folder, and the digests of the newest checkpoints."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob(CHECKPOINTS)):
        newest = Checkpoints(path).latest()
        found[str(path.relative_to(folder))] = newest and digest_of(newest)
    for path in sorted(folder.glob(WRITTEN[module])):
        content = json.loads(path.read_text())
        found |= numbers({path.name: {key: value for key, value in content.items() if key not in ASIDE}})
    return found


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return the first entry in which two results differ, except times and costs in seconds."""
    for key in {**one, **other}:
        a, b = one.get(key), other.get(key)
        if "seconds" not in key and a != b and not (a != a and b != b):
            return f"{key} is {a}, not {b}"
    return None


def all_damages() -> list[Damage]:
    """Return every damage of every file; newer of the checkpoints, and the files of one arm of a sweep."""
    found: list[Damage] = []
    for case in CASES:
        folder = whole(case)
        files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        files = [file for file in files if READ.search(file) and not file.startswith(("b/", "trial-"))]
        found += [Damage(case=case, file=file, kind=kind) for file in files for kind in DAMAGES]
    outputs = ("comparison_hosts=2.json", "looks.jsonl", "costs.json")
    return [one for one in found if not one.file.endswith(outputs) or one.kind in ("gone", "folder")]


if __name__ == "__main__":
    chosen = [one for one in all_damages() if all(part in str(one) for part in sys.argv[1:])]
    wrong = 0
    for one in chosen:
        for fault in one.faults():
            wrong += 1
            print(fault, flush=True)
    print(f"{len(chosen)} damages, {wrong} wrong answers")
