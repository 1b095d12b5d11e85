"""How long scoring will take, as told after the last run of an experiment."""

import json
from pathlib import Path

from esper.lab.design import AnalysisPlan, design
from esper.lab.scoring_time import after

SETTINGS = {"hosts": 4, "updates": 3, "steps": 20}


def test_scoring_takes_as_long_as_growing_as_many_hosts_in_training(tmp_path: Path) -> None:
    found = design("reward: shaped,sparse", blocks=1, root=1, aa_control=False, plan=AnalysisPlan(score_hosts=10))
    assert "which takes a while" in after(found, SETTINGS, tmp_path)
    for cell, speeds in zip(found.cells, ([0.1, 40.0, 50.0], [80.0]), strict=True):
        folder = tmp_path / cell.folder
        folder.mkdir(parents=True)
        lines = [{"update": number, "time/host_epochs_per_second": speed} for number, speed in enumerate(speeds, 1)]
        (folder / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # 2 x 10 hosts of 20 epochs, at 40 and at 80 per second, and a second to build them; the first update of a process is slow
    assert "which takes about 17 s;" in after(found, SETTINGS, tmp_path)
