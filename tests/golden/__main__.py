"""Compare two trees bit for bit: `python -m tests.golden REVISION [CASE...]`.

Runs the golden cases at a git revision and in the work tree, on this machine, and compares every number: policy weights and
optimiser state, returns, rewards by term, decisions, and all metrics except times. The results of the revision are cached in the
temporary folder. This is the proof of a refactoring; see CONTRIBUTING.md.
"""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.cases import TRAIN

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RENAMED = {
    "again/block": "aa_control/block",
    "shaped/block-00": "shaped/seed-1793218286",
    "shaped/block-01": "shaped/seed-436482421",
    "sparse/block-00": "sparse/seed-1793218286",
    "sparse/block-01": "sparse/seed-436482421",
}
"""Part of a path in the earlier tree -> its name in this one."""
DROPPED = {"/agent/returns", "policy/core_c", "host/all_off_accuracy", "/watch/streaks/", "aa_control/block"}
"""Parts of paths that were removed on purpose and may be missing."""
ADDED = {
    "policy/skipped_fraction",
    "/watch/streaks/",
    "/drift/",
    "host/loss_scale",
    "governor/overflows",
    "seeds_",
    "gradient_norm",
    "_drift",
    "/agent/context[",
    "/agent/slots[",
}
"""Parts of paths that the earlier tree may lack."""


def record(tree: Path, out: Path, names: list[str]) -> None:
    """Run cases with the `esper` of a tree and its own list of cases."""
    out.mkdir(parents=True, exist_ok=True)
    script = tree / "tests/golden/record.py"
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, str(script), str(out), *names], cwd=out, env=environment, check=True)


def renamed(path: str) -> str:
    """Return the path in this tree of a number in the earlier one."""
    for old, new in RENAMED.items():
        path = path.replace(old, new)
    return path


def compare(before: Path, after: Path, names: list[str]) -> int:
    """Print what differs, except paths of `DROPPED` and `ADDED`; return the number of cases that differ."""
    failed = 0
    for name in names:
        a, b = (pickle.loads((place / f"{name}.pickle").read_bytes()) for place in (before, after))
        a = {renamed(path): value for path, value in a.items()}
        missing = sorted(path for path in a.keys() - b.keys() if not any(part in path for part in DROPPED))
        new = sorted(path for path in b.keys() - a.keys() if not any(part in path for part in ADDED))
        other = [path for path in a.keys() & b.keys() if a[path] != b[path]]
        if missing or new or other:
            failed += 1
            print(f"{name}: {len(other)} of {len(a)} numbers differ, {len(missing)} are missing, {len(new)} are new")
            print("  ", *other[:4], *missing[:4], *new[:4])
        else:
            print(f"{name}: {len(a)} numbers, equal bits")
    return failed


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit("name the revision to compare with, as in python -m tests.golden main")
    revision = subprocess.run(
        ["git", "rev-parse", "--short", arguments[0]], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    names = arguments[1:] or [*TRAIN, "sweep"]
    base = Path(tempfile.gettempdir()) / f"esper_golden_{revision}"
    todo = [name for name in names if not (base / f"{name}.pickle").exists()]
    if todo:
        tree = base / "tree"
        if not tree.exists():
            subprocess.run(["git", "worktree", "add", "--force", "--detach", str(tree), revision], cwd=ROOT, check=True)
        record(tree, base, todo)
    after = Path(tempfile.mkdtemp(prefix="esper_golden_"))
    record(ROOT, after, names)
    failed = compare(base, after, names)
    shutil.rmtree(after)
    sys.exit(f"{failed} of {len(names)} cases differ" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
