"""One schedule for all hosts, learned in the blocks of earlier studies.

    python experiments/2026-11-26_one_schedule/run.py WORLD ARM FOLDER
    python experiments/2026-11-26_one_schedule/run.py

The first command trains and scores each block that `WORLD_ARM.csv` lacks, which has a row per block; the second compares what
is there. The runs have the random seeds of the study, so that they grow the same held-out hosts.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from joblib import Parallel, delayed

from esper.cli.overrides import check
from esper.evaluation.held_out import Evaluation
from esper.files import write_whole
from esper.lab.design import draw_seeds
from esper.pool.local import limit_cores
from esper.stats.intervals import Interval
from esper.stats.sign_flip import sign_flip
from esper.training.trainer import Trainer

HERE = Path(__file__).parent
PLAN = yaml.safe_load((HERE / "plan.yaml").read_text())


def run(world: str, arm: str, block: int, folder: Path) -> dict[str, object]:
    """Train and score one block, and return its row."""
    own = PLAN["worlds"][world]
    seed = draw_seeds(own["root"], own["blocks"])[block]
    limit_cores(1)
    overrides = [f"task={world}", *own["arms"][arm].split(), *own["common"].split(), f"seed={seed}", "telemetry=quiet"]
    trainer = Trainer(check(overrides), folder / f"block-{block:02d}")
    trainer.run()
    ((_, learned),) = trainer.agent.summary()
    evaluation = Evaluation.load(str(trainer.folder), hosts=PLAN["score_hosts"])
    found = evaluation.run(["policy"])["policy"]
    evaluation.env.close()
    means = {name: round(float(np.mean(found.values[name])), 4) for name in ("return", "accuracy")}
    return {"block": block, **means, "learned": learned}


def runs(world: str, arm: str, folder: Path) -> None:
    """Add a row for each block that the file lacks, as soon as it is scored."""
    path = HERE / f"{world}_{arm}.csv"
    done = set(pd.read_csv(path)["block"]) if path.exists() else set()
    left = [block for block in range(PLAN["worlds"][world]["blocks"]) if block not in done]
    for row in Parallel(n_jobs=2, return_as="generator_unordered")(delayed(run)(world, arm, block, folder) for block in left):
        known = [pd.read_csv(path)] if path.exists() else []
        write_whole(path, pd.concat([*known, pd.DataFrame([row])]).sort_values("block").to_csv(index=False))


def own_runs(world: str, arm: str) -> pd.DataFrame:
    """Return the runs of an arm by block."""
    return pd.read_csv(HERE / f"{world}_{arm}.csv").set_index("block").sort_index()


def differences(world: str, arm: str, outcome: str = "return") -> dict[str, Interval]:
    """Return the mean of each arm of the study minus this one, over the blocks that both have."""
    own = own_runs(world, arm)
    study = pd.read_csv(HERE.parent / PLAN["worlds"][world]["study"] / "comparison.csv")
    apart = {name: (rows.set_index("block")[outcome] - own[outcome]).dropna() for name, rows in study.groupby("arm")}
    return {str(name): sign_flip(values.to_numpy()).interval for name, values in apart.items()}


def compare(world: str, arm: str) -> None:
    """Print what an arm learned and how far each arm of the study is from it."""
    own = own_runs(world, arm)
    print(f"{world}, {arm}: {len(own)} blocks, return {own['return'].mean():.2f}, accuracy {own['accuracy'].mean():.1f} %")
    print(own["learned"].value_counts().to_string())
    for name, gap in differences(world, arm).items():
        print(f"{name} minus it: {gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        runs(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    else:
        for name in PLAN["worlds"]:
            for one in PLAN["worlds"][name]["arms"]:
                if (HERE / f"{name}_{one}.csv").exists():
                    compare(name, one)
