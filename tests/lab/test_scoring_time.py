"""How long scoring will take, as told after the last run of an experiment."""

import json
from dataclasses import replace
from pathlib import Path

from esper.lab.design import AnalysisPlan, Design
from esper.lab.scoring_time import after, before


def test_scoring_takes_as_long_as_growing_as_many_hosts_in_training(tmp_path: Path) -> None:
    arms = {"ppo": ["updates=3", "agent.minibatches=1"], "bandit": ["agent=bandit", "updates=2"]}
    common, plan = ["hosts=4"], AnalysisPlan(score_hosts=10, looks=[5])
    found = Design(arms=arms, blocks=1, root=1, common=common, plan=plan)
    # PPO is scored with sampled and with its most probable actions, the bandit once; they train 4 x 3 and 4 x 2 hosts.
    assert "scores 2 policies on 10 held-out hosts each, which takes about 1.5 times as long as training them" in before(found)
    longer = replace(found, plan=replace(plan, score_overrides=["steps=40"]))
    assert "which takes about 3 times as long as training them, if hosts of score_overrides" in before(longer)
    assert "which takes a while" in after(found, tmp_path)
    for cell in found.cells:
        speeds = {"ppo": [0.1, 40.0, 50.0], "bandit": [80.0]}[cell.arm]
        folder = tmp_path / cell.folder
        folder.mkdir(parents=True)
        lines = [{"update": number, "time/host_epochs_per_second": speed} for number, speed in enumerate(speeds, 1)]
        (folder / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # 2 x 10 hosts of 20 epochs at 40 per second, and 10 at 80, and a second to build them; the first update of a process is slow
    assert "which takes about 14 s;" in after(found, tmp_path)
    planned = replace(found, plan=replace(plan, baselines=["wait"]))
    assert "which takes about 14 s, without the baselines; workers" in after(planned, tmp_path)
    for cell in found.cells:
        (tmp_path / cell.folder / "scored_000003_10_hosts.json").touch()
    assert after(found, tmp_path) == ""
