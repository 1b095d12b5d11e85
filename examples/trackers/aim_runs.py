"""Train with two seeds, and read their returns from Aim: python examples/trackers/aim_runs.py [OVERRIDES ...]"""

import subprocess
import sys

from aim import Repo
from aim.sdk.types import QueryReportMode

train = [sys.executable, "-m", "esper.train", "-m", "seed=1,2", "telemetry.writers=[jsonl,{aim:{repo:.,experiment:seeds}}]"]
subprocess.run([*train, *sys.argv[1:]], check=True)
subprocess.run(["aim", "storage", "--repo", ".", "reindex", "-y"], check=True)  # queries find indexed runs; `aim up` indexes too

query = "run.experiment == 'seeds' and metric.name == 'policy/return'"
for metrics in Repo(".").query_metrics(query, report_mode=QueryReportMode.DISABLED).iter_runs():
    for metric in metrics:
        steps, (values, *_) = metric.data.items_list()
        print(f"seed {metric.run['hparams']['seed']}:", ", ".join(f"{u}: {v:.2f}" for u, v in zip(steps, values, strict=True)))
