"""Train with two seeds, and look at the offline runs of W&B: python examples/trackers/wandb_runs.py [OVERRIDES ...]

Afterwards `wandb sync wandb_runs/*/wandb/offline-run-*` sends both, grouped by their sweep.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path("wandb_runs")

train = [sys.executable, "-m", "esper.train", "-m", "seed=1,2", "telemetry.writers=[jsonl,{wandb:{mode:offline}}]"]
subprocess.run([*train, f"hydra.sweep.dir={FOLDER}", *sys.argv[1:]], check=True)

for file in sorted(FOLDER.glob("*/wandb/offline-run-*/*.wandb")):
    print(file.parent)
    subprocess.run([sys.executable, "-m", "wandb", "leet", "inspect", "--summary", str(file.parent)], check=True)
