"""Train with two seeds, and put their returns into one table: python examples/trackers/csv_runs.py [OVERRIDES ...]

Needs the extra compare.
"""

import subprocess
import sys
from pathlib import Path

import pandas

FOLDER = Path("csv_runs")

train = [sys.executable, "-m", "esper.train", "-m", "seed=1,2", "telemetry.writers=[jsonl,csv]"]
subprocess.run([*train, f"hydra.sweep.dir={FOLDER}", *sys.argv[1:]], check=True)

tables = {path.parent.name: pandas.read_csv(path, index_col="update") for path in sorted(FOLDER.glob("*/metrics.csv"))}
returns = pandas.DataFrame({f"run {name}": table["policy/return"] for name, table in tables.items()})
print(returns.round(2).to_string())
