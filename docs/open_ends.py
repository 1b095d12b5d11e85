"""Run every example of other people's software, record which work in docs/open_ends.json, and write the table of the README.

    python docs/open_ends.py        takes some minutes

RLlib needs gymnasium 1.2, and DACBench many packages: put an environment with them on PYTHONPATH, as .ci/run does, or their old
results are kept.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from docs.tables.markdown import filled
from docs.tables.open_ends import README, RECORD, TABLES

ROOT = Path(__file__).parents[1]
TESTS = {
    "drivers": ("tests/wrappers/test_examples.py", "test_examples_run"),
    "training loops": ("tests/wrappers/test_examples.py", "test_networks_of_other_loops_grow"),
    "exports": ("tests/evaluation/test_exported.py", "test_files_compute_the_same_without_esper"),
    "trackers": ("tests/telemetry/test_tracker_examples.py", "test_an_example_runs"),
    "launchers": ("tests/lab/test_launch.py", "test_launchers_run_alike_and_a_failure_ends_no_other_run"),
    "outside parts": ("tests/outside/test_example.py", "test_a_part_ran"),
}
"""Kind of open end -> file, and the parametrized test whose cases are its examples."""


def results() -> dict[str, dict[str, bool]]:
    """Run the tests, and return for each kind which examples work; skipped ones are left out."""
    found: dict[str, dict[str, bool]] = {kind: {} for kind in TESTS}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "results.xml"
        names = [f"{file}::{test}" for file, test in TESTS.values()]
        subprocess.run([sys.executable, "-m", "pytest", f"--junitxml={report}", *names], cwd=ROOT, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        test, _, example = (case.get("name") or "").removesuffix("]").partition("[")
        kind = next(kind for kind, (_, name) in TESTS.items() if name == test)
        if case.find("skipped") is None:
            name = example.rpartition("-")[2]  # of an export: its format, for several networks
            works = case.find("failure") is None and case.find("error") is None
            found[kind][name] = found[kind].get(name, True) and works
    return found


def main() -> None:
    """Write the record, and fail if an example failed."""
    old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = {kind: dict(sorted((old.get(kind, {}) | works).items())) for kind, works in results().items()}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    README.write_text(filled(README.read_text(), TABLES))
    failed = [f"{kind}: {name}" for kind, works in found.items() for name, one in works.items() if not one]
    if failed:
        sys.exit(f"these do not work: {', '.join(failed)}")


if __name__ == "__main__":
    main()
