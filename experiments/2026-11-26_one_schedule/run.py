"""One schedule for all hosts, learned by `schedule_bandit` in the blocks of earlier studies.

    python experiments/2026-11-26_one_schedule/run.py WORLD FOLDER     trains and scores each block that WORLD.csv lacks
    python experiments/2026-11-26_one_schedule/run.py                  compares what is there

The runs have the random seeds of the study, so that they grow the same held-out hosts. `WORLD.csv` has a row per block.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from joblib import Parallel, delayed

from esper.checkpoint import write_whole
from esper.cli.overrides import check
from esper.env.shard_pool import limit_cores
from esper.lab.design import draw_seeds
from esper.lab.evaluation import Evaluation
from esper.stats.intervals import Interval
from esper.stats.sign_flip import sign_flip
from esper.training.trainer import Trainer

HERE = Path(__file__).parent
PLAN = yaml.safe_load((HERE / "plan.yaml").read_text())
ARM = "schedule_bandit"


def run(world: str, block: int, folder: Path) -> dict[str, object]:
    """Train and score one block, and return its row."""
    own = PLAN["worlds"][world]
    seed = draw_seeds(own["root"], own["blocks"])[block]
    common = [f"task={world}", f"seed={seed}", "telemetry=quiet"]
    limit_cores(1)
    trainer = Trainer(check([*own["overrides"].split(), *common]), folder / f"block-{block:02d}")
    trainer.run()
    ((_, schedule),) = trainer.agent.summary()
    evaluation = Evaluation.load(str(trainer.folder), hosts=PLAN["score_hosts"])
    found = evaluation.run(["policy"])["policy"]
    evaluation.env.close()
    means = {name: round(float(np.mean(found.values[name])), 4) for name in ("return", "accuracy")}
    return {"block": block, **means, "schedule": schedule}


def runs(world: str, folder: Path) -> None:
    """Add a row for each block that the file lacks, as soon as it is scored."""
    path = HERE / f"{world}.csv"
    done = set(pd.read_csv(path)["block"]) if path.exists() else set()
    left = [block for block in range(PLAN["worlds"][world]["blocks"]) if block not in done]
    for row in Parallel(n_jobs=2, return_as="generator_unordered")(delayed(run)(world, block, folder) for block in left):
        known = [pd.read_csv(path)] if path.exists() else []
        table = pd.concat([*known, pd.DataFrame([row])]).sort_values("block")
        write_whole(path, table.to_csv(index=False))


def own_runs(world: str) -> pd.DataFrame:
    """Return the runs of the schedule by block."""
    return pd.read_csv(HERE / f"{world}.csv").set_index("block").sort_index()


def differences(world: str, outcome: str = "return") -> dict[str, Interval]:
    """Return the mean of each arm of the study minus the schedule, over the blocks that both have."""
    own = own_runs(world)
    study = pd.read_csv(HERE.parent / PLAN["worlds"][world]["study"] / "comparison.csv")
    apart = {arm: (rows.set_index("block")[outcome] - own[outcome]).dropna() for arm, rows in study.groupby("arm")}
    return {str(arm): sign_flip(values.to_numpy()).interval for arm, values in apart.items()}


def compare(world: str) -> None:
    """Print what the schedules are and how far each arm of the study is from them."""
    own = own_runs(world)
    print(f"{world}: {len(own)} blocks, return {own['return'].mean():.2f}, test accuracy {own['accuracy'].mean():.1f} %")
    print(own["schedule"].value_counts().to_string())
    for arm, gap in differences(world).items():
        print(f"{arm} minus {ARM}: {gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        runs(sys.argv[1], Path(sys.argv[2]))
    else:
        for name in PLAN["worlds"]:
            if (HERE / f"{name}.csv").exists():
                compare(name)
