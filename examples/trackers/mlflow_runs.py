"""Train with two seeds, and find the better run in MLflow: python examples/trackers/mlflow_runs.py [OVERRIDES ...]"""

import subprocess
import sys

from mlflow.tracking import MlflowClient

STORE, EXPERIMENT = "sqlite:///mlflow.db", "two seeds"

writers = f"telemetry.writers=[jsonl,{{mlflow:{{tracking_uri:'{STORE}',experiment:'{EXPERIMENT}'}}}}]"
subprocess.run([sys.executable, "-m", "esper.train", "-m", "seed=1,2", writers, *sys.argv[1:]], check=True)

client = MlflowClient(tracking_uri=STORE)
experiment = client.get_experiment_by_name(EXPERIMENT)
runs = client.search_runs([experiment.experiment_id], order_by=["metrics.`policy/return` DESC"])
for run in runs:
    print(f"run {run.info.run_name}: seed {run.data.params['seed']}, return {run.data.metrics['policy/return']:.2f}")

curve = client.get_metric_history(runs[0].info.run_id, "policy/return")
print("the best by update:", ", ".join(f"{point.value:.2f}" for point in curve))
