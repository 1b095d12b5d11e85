"""Blocks with splits of their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from esper.config import ConfigError
from esper.lab import cautions as R
from esper.lab.design import Design, design
from esper.lab.runs import Run


def splits(planned: Design) -> dict[tuple[str, int], list[str]]:
    return {(cell.arm, cell.block): [one for one in cell.overrides if "split_seed" in one] for cell in planned.cells}


def test_every_block_has_a_split_that_does_not_depend_on_the_number_of_blocks(tmp_path: Path) -> None:
    few, many = (design("reward: shaped,sparse", blocks=blocks, root=1, vary_split=True) for blocks in (3, 5))
    assert splits(few).items() <= splits(many).items()
    assert len({tuple(found) for found in splits(many).values()}) == 5
    for block in range(5):
        assert len({tuple(splits(many)[arm, block]) for arm in many.arms}) == 1, "all arms of a block share its split"
    plain = design("reward: shaped,sparse", blocks=3, root=1)
    assert not any(splits(plain).values())
    assert plain.digest != few.digest
    few.save(tmp_path)
    assert Design.load(tmp_path) == few


def test_a_split_cannot_be_set_and_drawn() -> None:
    with pytest.raises(ConfigError, match=r"task\.split_seed=3 has no effect, since vary_split=true draws it"):
        design("reward: shaped,sparse", blocks=3, root=1, vary_split=True, common=["task.split_seed=3"])


def test_splits_of_blocks_are_not_different_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(R, "records_of", lambda _: [])
    runs = [
        Run(
            arm=arm, block=block, folder=Path(f"{arm}{block}"), update=1, updates=1, config={"hosts": 2, "task.split_seed": block}
        )
        for arm in "ab"
        for block in range(2)
    ]
    assert R.anomalies(runs) == []
    other = replace(runs[0], config={"hosts": 2, "task.split_seed": 7})
    (warning,) = R.anomalies([other, *runs[1:]])
    assert warning.startswith("runs see different data: task.split_seed is a")
