"""Table of the README: other people's software that Esper works with, from the results of its examples.

`docs/open_ends.py` writes the results and the table.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from docs.tables.markdown import table

RECORD = Path(__file__).parents[1] / "open_ends.json"
README = Path(__file__).parents[2] / "README.md"
KINDS = {
    "drivers": ("learners of other libraries", "[example](examples/sb3_ppo.py), [how](docs/howto/libraries.md)"),
    "training loops": (
        "networks that grow in a loop of your own",
        "[example](examples/grow/plain_loop.py), [how](docs/howto/grow.md)",
    ),
    "exports": ("files of grown networks", "[how](docs/howto/export.md)"),
    "trackers": ("trackers", "[example](examples/trackers/mlflow_runs.py), [how](docs/howto/trackers.md)"),
    "launchers": ("launchers", "[example](examples/launchers/joblib.sh), [how](docs/howto/machines.md)"),
    "outside parts": ("parts of your own, by group", "[example](examples/plugin/README.md), [how](docs/extending.md)"),
}
NAMES = {
    "sb3_ppo": "stable-baselines3 PPO",
    "sb3_dqn": "stable-baselines3 DQN",
    "maskable_ppo": "sb3-contrib MaskablePPO",
    "recurrent_ppo": "RecurrentPPO",
    "torchrl_ppo": "TorchRL PPO",
    "single_file_ppo": "PPO in one file",
    "rllib_ppo": "RLlib PPO",
    "dacbench_ppo": "DACBench",
    "plain_loop": "PyTorch",
    "lightning_module": "Lightning",
    "hugging_face": "Hugging Face Trainer",
    "pytorch": "PyTorch source",
    "export": "torch.export",
    "onnx": "ONNX",
    "csv": "CSV",
    "mlflow": "MLflow",
    "wandb": "Weights & Biases",
    "aim": "Aim",
    "slurm": "Slurm",
    "ray": "Ray",
}
"""Names as their makers write them."""


def works_with() -> Iterator[str]:
    """Yield a row for each kind of software, with the examples that work and their number."""
    found: dict[str, dict[str, bool]] = json.loads(RECORD.read_text())

    def row(kind: str) -> tuple[str, str, str, str]:
        works, (what, where) = found[kind], KINDS[kind]
        names = ", ".join(NAMES.get(name, name) for name, one in works.items() if one)
        return what, names, f"{sum(works.values())} of {len(works)}", where

    return table(("", "with", "examples that run", "where"), map(row, KINDS))


TABLES = {"works_with": works_with}
"""The table by its name in the README."""
