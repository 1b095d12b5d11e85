"""Disturb many runs at places drawn at random: `python -m tests.faults --kills 1000 --faults 10000 --out FILE`.

A trial is a case that several faults strike one after another. Kills strike at lines of code and at operations of the disk. Only
faults that struck are counted. FILE is a table of case by fault in Markdown; beside it, FILE.tsv has a line per trial, from which
the same command goes on if it was cut off. Exit code 1 if the numbers of any case differ from those of an undisturbed one.
"""

import argparse
import gc
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from esper.training.provenance import code_version
from tests.faults.cases import CASES
from tests.faults.injector import FAULTS
from tests.faults.nonfinite import Nan
from tests.faults.trial import Reference, reference, trial

KILLS = tuple(fault for fault in FAULTS if fault.startswith("kill"))
OTHERS = tuple(fault for fault in FAULTS if fault not in KILLS)
NANS = ("nan_host", "nan_policy")
SHARES = {"sandbox": 0.2, "window": 0.55, "growth": 0.1, "diverging": 0.1, "sweep": 0.02, "workers": 0.015, "compare": 0.015}
"""Share of the trials of each case. Commands and workers take ten times as long as a run of the sandbox."""
NAN_SHARE = 0.25
"""Share of the trials of runs that compute with a NaN."""
LONGEST = 12
"""Faults of a trial at most."""


def draw(seed: str, kill_share: float, references: dict[str, Reference]) -> tuple[str, list[tuple[str, int]], Nan | None]:
    """Draw a trial: case, faults with their places, and a NaN or none.

    Places are dense at the start of a process, since the later ones of a resumed run are met only if it has far to go.
    """
    generator = random.Random(seed)
    case = generator.choices(list(CASES), [SHARES[name] for name in CASES])[0]
    counts, faults = references[case].counts, list[tuple[str, int]]()
    for _ in range(LONGEST):
        names = KILLS if generator.random() < kill_share else OTHERS
        fault = generator.choice([name for name in names if counts[FAULTS[name][0]]])
        faults.append((fault, math.ceil(counts[FAULTS[fault][0]] * generator.random() ** 3) or 1))
    return case, faults, draw_nan(case, generator) if generator.random() < NAN_SHARE else None


def draw_nan(case: str, generator: random.Random) -> Nan | None:
    """Draw the place of a NaN in a run; None in a sweep or a comparison."""
    if "updates=3" not in getattr(CASES[case], "overrides", ""):
        return None
    update, steps = generator.randrange(3), 4 if case == "diverging" else 3
    if CASES[case].grows and generator.random() < 0.7:
        return Nan(update, generator.randrange(steps), generator.randrange(4))
    return Nan(update, generator.randrange(4), None)


def table(lines: list[list[str]]) -> str:
    """Return the faults by case and kind as Markdown."""
    struck = Counter((case, fault.partition("@")[0]) for _, case, faults, _, _ in lines for fault in faults.split())
    trials = Counter(case for _, case, *_ in lines)
    columns = [*FAULTS, *NANS]
    rows = [f"| {' | '.join(['case', 'trials', *columns])} |", "|---" * (len(columns) + 2) + "|"]
    rows += [f"| {case} | {trials[case]} | {' | '.join(str(struck[case, name]) for name in columns)} |" for case in CASES]
    return "\n".join(rows)


def summary(lines: list[list[str]]) -> str:
    """Return the whole record as Markdown."""
    kills, others = tally(lines)
    problems = [line for line in lines if line[4]]
    seconds = sum(float(line[3]) for line in lines)
    title = f"{len(lines)} trials, {kills} kills, {others} other faults, {len(problems)} problems, {seconds:.0f} s"
    listed = [f"* trial {number}, {case}, {faults}: {problem}" for number, case, faults, _, problem in problems]
    return "\n".join([title, "", table(lines), "", *listed])


def tally(lines: list[list[str]]) -> tuple[int, int]:
    """Return the kills and the other faults that struck."""
    names = [fault.partition("@")[0] for line in lines for fault in line[2].split()]
    kills = sum(name in KILLS for name in names)
    return kills, len(names) - kills


def known(path: Path | None, header: str) -> list[list[str]]:
    """Return the trials of a record that was cut off; a new one starts with the header."""
    if path is None:
        return []
    if not path.exists():
        path.write_text(header + "\n")
    first, *rest = path.read_text().splitlines()
    if first != header:
        sys.exit(f"{path} is a record of {first}, and this would be one of {header}: choose another --out")
    return [line.split("\t") for line in rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--root", type=int, default=0, help="seed of the places")
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    asked = parser.parse_args()
    folder, out = Path(tempfile.mkdtemp(prefix="esper-faults-")), asked.out and asked.out.with_suffix(".tsv")
    lines = known(out, f"root {asked.root}, commit {code_version()['commit']}")
    references = {case: reference(case, folder / case) for case in CASES}
    gc.collect()
    gc.freeze()  # or every fork would copy the pages that it looks through
    while any(missing := [max(0, asked.kills - tally(lines)[0]), max(0, asked.faults - tally(lines)[1])]):
        number, begun = len(lines), time.perf_counter()
        case, faults, nan = draw(f"{asked.root} {number}", missing[0] / sum(missing), references)
        place = folder / str(number)
        place.mkdir()
        outcome = trial(case, faults, place / "run", references[case], nan)
        seconds = f"{time.perf_counter() - begun:.2f}"
        lines.append([str(number), case, " ".join(outcome.struck), seconds, " ".join(outcome.problem.split())])
        if out:
            with out.open("a") as file:
                file.write("\t".join(lines[-1]) + "\n")
        if outcome.problem:
            print(f"{place}: {lines[-1]}", flush=True)
        else:
            shutil.rmtree(place)
        if asked.out and number % 20 == 0:
            asked.out.write_text(summary(lines))
        if number % 100 == 0:
            print(summary(lines).splitlines()[0], flush=True)
    print(summary(lines))
    if asked.out:
        asked.out.write_text(summary(lines))
    problems = any(line[4] for line in lines)
    if not problems:
        shutil.rmtree(folder)
    sys.exit(problems)


if __name__ == "__main__":
    main()
