"""Start commands, each in a process of its own. The ratios to `import torch` say what Esper adds to a start.

    python benchmarks/start_time.py

`run` trains two hosts for one epoch and `run with PPO` four, which takes well under a second of their time: the rest is Python,
imports, and Hydra's composition of the config. Results: benchmarks/README.md.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from paired_timing import in_turn, print_comparison

ROOT = Path(__file__).parents[1]
TINY = ["steps=1", "updates=1", "telemetry=quiet", "devices=[cpu]", "hydra.run.dir=run"]
TRAIN = ["-m", "esper.train"]
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "help": [*TRAIN, "--help"],
    "mistake": [*TRAIN, "hosts=none"],
    "run": [*TRAIN, "hosts=2", "agent=wait", *TINY],
    "run with PPO": [*TRAIN, "hosts=4", *TINY],
}
"""Arguments of Python, by the name of the candidate."""


def start(arguments: list[str]) -> None:
    """Run one command in an empty folder, to its end."""
    with TemporaryDirectory() as folder:
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-W", "ignore", *arguments], cwd=folder, env=env, capture_output=True, check=False)
    expected = 2 if "hosts=none" in arguments else 0
    if done.returncode != expected:
        raise RuntimeError(f"{' '.join(arguments)} ended with exit code {done.returncode}: {done.stderr.decode()}")


def main() -> None:
    """Time all commands, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of the two shortest commands, to check this script")
    args = parser.parse_args()
    names = list(COMMANDS)[:2] if args.quick else list(COMMANDS)
    candidates: dict[str, Callable[[], object]] = {name: partial(start, COMMANDS[name]) for name in names}
    in_turn(candidates, 0 if args.quick else 1)  # the files are in memory then
    print_comparison(in_turn(candidates, 1 if args.quick else args.rounds), "import torch")


if __name__ == "__main__":
    main()
