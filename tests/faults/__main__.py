"""Disturb many runs at places drawn at random: `python -m tests.faults --kills 1000 --faults 10000 --out FILE`.

Half of the kills strike at lines of code and half at operations of the disk; the other faults share the trials alike. Prints a
table of case by fault, and writes it as Markdown. Exit code 1 if the numbers of any run differ from those of an undisturbed one.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.injector import FAULTS
from tests.faults.trial import CASES, count, numbers, trial

KILLS = tuple(fault for fault in FAULTS if fault.startswith("kill"))
OTHERS = tuple(fault for fault in FAULTS if fault not in KILLS)


@dataclass
class Reference:
    """An undisturbed run of a case."""

    numbers: dict[str, Any]
    counts: dict[str, int]
    """Operations by class."""


def reference(case: str, folder: Path) -> Reference:
    """Run a case undisturbed, once per class of operations."""
    operations = sorted({operation for operation, _ in FAULTS.values()})
    counts = {operation: count(case, operation, folder / f"{case}-{operation}") for operation in operations}
    return Reference(numbers(folder / f"{case}-{operations[0]}"), counts)


def plan(kills: int, faults: int, root: int, references: dict[str, Reference]) -> Iterator[tuple[str, str, int]]:
    """Yield case, fault and place of every trial."""
    draw, cases = random.Random(root), list(CASES)
    for names, trials in ((KILLS, kills), (OTHERS, faults)):
        for number in range(trials):
            case = cases[number % len(cases)]
            able = [name for name in names if references[case].counts[FAULTS[name][0]]]
            fault = able[number // len(cases) % len(able)]
            yield case, fault, draw.randint(1, references[case].counts[FAULTS[fault][0]])


def work(trials: list[tuple[str, str, int]], references: dict[str, Reference], folder: Path, out: Path) -> None:
    """Run trials one after another and append a line about each."""
    with out.open("w", buffering=1) as file:
        for number, (case, fault, at) in enumerate(trials):
            place = folder / str(number)
            place.mkdir(parents=True)
            outcome = trial(case, fault, at, place / "run", references[case].numbers)
            file.write(f"{case}\t{fault}\t{at}\t{int(outcome.struck)}\t{outcome.problem}\n")
            if not outcome.problem:
                shutil.rmtree(place)


def table(lines: list[list[str]]) -> str:
    """Return trials, and problems if any, by case and fault, as Markdown."""
    cells = Counter((case, fault) for case, fault, *_ in lines)
    bad = Counter((case, fault) for case, fault, *_, problem in lines if problem)
    rows = [f"| {' | '.join(['case', *FAULTS])} |", "|---" * (len(FAULTS) + 1) + "|"]
    for case in CASES:
        shown = [f"{cells[case, fault]}{f' ({bad[case, fault]} failed)' if bad[case, fault] else ''}" for fault in FAULTS]
        rows.append(f"| {case} | {' | '.join(shown)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--root", type=int, default=0, help="seed of the places")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    asked = parser.parse_args()
    begun, folder = time.time(), Path(tempfile.mkdtemp(prefix="esper-faults-"))
    references = {case: reference(case, folder) for case in CASES}
    trials = list(plan(asked.kills, asked.faults, asked.root, references))
    outs = [folder / f"trials-{job}.tsv" for job in range(asked.jobs)]
    children: list[int] = []
    for job, out in enumerate(outs):
        child = os.fork()
        if child == 0:
            work(trials[job :: asked.jobs], references, folder / f"job-{job}", out)
            os._exit(0)
        children.append(child)
    crashed = any(os.waitpid(child, 0)[1] for child in children)
    lines = [line.split("\t") for out in outs for line in out.read_text().splitlines()]
    struck = sum(line[3] == "1" for line in lines)
    problems = [line for line in lines if line[4]]
    text = f"{len(lines)} trials, {struck} struck, {len(problems)} problems, {time.time() - begun:.0f} s\n\n{table(lines)}\n"
    text += "".join(f"\n* {case}, {fault} at {at}: {problem}" for case, fault, at, _, problem in problems)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")
    if problems:
        print(f"folders of the failed trials: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(bool(problems) or crashed or len(lines) < len(trials))


if __name__ == "__main__":
    main()
