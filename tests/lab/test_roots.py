"""Roots of experiments: repeated blocks are named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.config import ConfigError
from esper.lab.design import FILE, AnalysisPlan, Design, design
from esper.lab.plan import announce
from esper.lab.roots import check_pilot, repeated

REWARDS = "reward: shaped,sparse"


def made(arms: str = REWARDS, *, root: int = 0, **more: Any) -> Design:
    return design(arms, **({"blocks": 12, "root": root} | more))


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (made(blocks=48), True),
        (made("agent.hidden: 32,64"), True),
        (made("{a: task=digits_drift, b: agent=react}"), True),
        (made(root=1), False),
        (made(vary_split=True), False),
        (made(common=["task=mnist5k"]), False),
        (made(common=["task=digits"]), True),
        (made(common=["task.split_seed=3"]), False),
    ],
)
def test_an_experiment_with_the_blocks_of_its_neighbour_is_warned(other: Design, alike: bool, tmp_path: Path) -> None:
    other.save(tmp_path / "earlier")
    new = tmp_path / "new"
    found = repeated(made(), new)
    assert len(found) == alike
    assert all(f"root=0 and the task are also those of {tmp_path / 'earlier'}: this experiment repeats" in line for line in found)
    announced = [line for line in announce(made(), new) if "no new evidence; set another root, as in" in line]
    assert len(announced) == alike
    made().save(new)
    assert len(repeated(made(), new)) == alike, "its own folder is no neighbour"


def test_neighbours_are_counted_and_damaged_ones_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        made().save(tmp_path / name)
    (tmp_path / "a" / FILE).write_text("{")
    monkeypatch.chdir(tmp_path)
    assert "also those of b and 1 more beside it:" in repeated(made(), Path("new"))[0]
    monkeypatch.chdir(tmp_path / "b")
    assert f"also those of {tmp_path / 'c'}: " in repeated(made(), Path())[0]


def test_a_pilot_with_the_same_root_is_refused(tmp_path: Path) -> None:
    made().save(tmp_path)
    plan = AnalysisPlan(pilot=str(tmp_path))
    with pytest.raises(ConfigError, match=r"has root=0, too, so its blocks would be repeated .* set a new root, as in root=\d"):
        check_pilot(made(plan=plan))
    check_pilot(made(root=1, plan=plan))
    check_pilot(made(plan=replace(plan, pilot="another")))
