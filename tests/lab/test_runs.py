"""Arms and blocks of runs."""

from pathlib import Path
from typing import Any

import pytest

from esper.config import ConfigError
from esper.lab import runs as R
from esper.lab.design import FILE, design
from esper.lab.runs import Run, find_runs
from esper.notices import UserNotice


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes folders of runs, whose checkpoints are faked by a config."""
    configs: dict[Path, dict[str, Any]] = {}

    def read(folder: Path, arm: str, block: int, seed: int = 0) -> Run:
        known = folder in configs
        return Run(
            arm=arm, block=block, folder=folder, seed=seed, update=int(known), updates=int(known), config=configs.get(folder, {})
        )

    def make(folder: str, **config: Any) -> Path:
        place = tmp_path / folder
        (place / R.CHECKPOINTS).mkdir(parents=True)
        configs[place] = {key.replace("__", "."): value for key, value in config.items()}
        return place

    monkeypatch.setattr(R, "_read", read)
    return make


def cells(found: list[Run]) -> set[tuple[str, int]]:
    return {(run.arm, run.block) for run in found}


def test_arms_are_named_over_all_folders(on_disk: Any, tmp_path: Path) -> None:
    for place, rate, seed in (("x", 1e-3, 1), ("y", 1e-2, 2)):
        for reward in ("shaped", "sparse"):
            more = {"hosts": int(1000 * rate), "blueprint": ["norm", "conv_light"][:seed]}
            on_disk(f"{place}/run/{reward}", reward=reward, agent="ppo", agent__rate=rate, seed=seed, **more)
    found = find_runs([tmp_path / "x/run", tmp_path / "y/run"])
    assert {run.arm for run in found} == {
        "shaped,agent.rate=0.001,hosts=1,blueprint=[norm]",
        "sparse,agent.rate=0.001,hosts=1,blueprint=[norm]",
        "shaped,agent.rate=0.01,hosts=10,blueprint=[norm,conv_light]",
        "sparse,agent.rate=0.01,hosts=10,blueprint=[norm,conv_light]",
    }


def test_a_folder_of_experiments_is_refused(tmp_path: Path) -> None:
    for name in ("x", "my y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text("{}")
    with pytest.raises(
        ConfigError, match=r"is not an experiment, but holds 2 experiments: .* as in python -m esper.compare '.*/my y' "
    ):
        find_runs([tmp_path])


def test_folders_name_the_arms_where_each_holds_one(on_disk: Any, tmp_path: Path) -> None:
    for seed in (1, 2):
        on_disk(f"forest/{seed}", agent="react_bandit", agent__model="forest", seed=seed)
        on_disk(f"taught/{seed}", agent="ppo", agent__teacher=f"forest/{seed}", seed=seed)
        on_disk(f"2026-11-29/{seed}", agent="ppo", agent__rate=0.1, seed=seed)
        on_disk(f"both/{seed}_1", agent="bandit", seed=seed)
        on_disk(f"both/{seed}_2", agent="wait", seed=seed)

    def arms(*folders: str) -> set[str]:
        return {run.arm for run in find_runs([tmp_path / folder for folder in folders])}

    assert arms("forest", "taught") == {"forest", "taught"}
    assert arms("forest", "2026-11-29") == {"react_bandit", "ppo"}, "a date says nothing"
    assert arms("forest", "both") == {"react_bandit", "bandit", "wait"}
    assert arms("forest") == {"forest"}


def test_teachers_name_an_arm_as_one_where_each_seed_has_its_own(on_disk: Any, tmp_path: Path) -> None:
    for seed in (1, 2):
        for share in (0.25, 0.5):
            on_disk(f"own/{seed}_{share}", agent__teacher=f"teachers/{seed}", agent__imitation=share, seed=seed)
        for teacher in ("a", "b"):
            on_disk(f"shared/{seed}_{teacher}", agent__teacher=teacher, seed=seed)
        on_disk(f"mixed/{seed}_taught", agent__teacher=f"teachers/{seed}", seed=seed)
        on_disk(f"mixed/{seed}", agent__teacher=None, seed=seed)
        on_disk(f"rule/{seed}_taught", agent__teacher="heuristic", seed=seed)
        on_disk(f"rule/{seed}", agent__teacher=None, seed=seed)
    assert {run.arm for run in find_runs([tmp_path / "own"])} == {"agent.imitation=0.25", "agent.imitation=0.5"}
    assert {run.arm for run in find_runs([tmp_path / "shared"])} == {"agent.teacher=a", "agent.teacher=b"}
    assert {run.arm for run in find_runs([tmp_path / "mixed"])} == {"agent.teacher=of_each_seed", "agent.teacher=null"}
    assert {run.arm for run in find_runs([tmp_path / "rule"])} == {"agent.teacher=heuristic", "agent.teacher=null"}


def test_arm_names_hold_keys_that_differ_within_an_option(on_disk: Any, tmp_path: Path) -> None:
    for reward in ("shaped", "sparse"):
        for rent in (0.1, 0.2):
            on_disk(f"all/{reward}{rent}", reward=reward, reward__rent=rent, reward__own=reward, seed=1)
    assert cells(find_runs([tmp_path / "all"])) == {
        (f"{reward},reward.rent={rent}", 1) for reward in ("shaped", "sparse") for rent in (0.1, 0.2)
    }


def test_strata_make_blocks_not_arms(on_disk: Any, tmp_path: Path) -> None:
    for reward in ("shaped", "sparse"):
        for task in ("digits", "mnist5k"):
            for seed in (7, 9):
                on_disk(f"all/{reward}{task}{seed}", reward=reward, task=task, task__size=len(task), seed=seed)
    found = find_runs([tmp_path / "all"], ["task"])
    assert cells(found) == {(reward, block) for reward in ("shaped", "sparse") for block in range(4)}
    assert {run.block: (run.stratum, run.seed) for run in found} == {
        0: ("digits", 7),
        1: ("digits", 9),
        2: ("mnist5k", 7),
        3: ("mnist5k", 9),
    }
    with pytest.raises(ConfigError, match="strata=tusk is not a key of these runs"):
        find_runs([tmp_path / "all"], ["tusk"])


def test_several_experiments_are_paired_by_seed(on_disk: Any, tmp_path: Path) -> None:
    planned = {
        "d": design("reward: shaped,sparse", blocks=2, root=1, aa_control=False),
        "e": design("reward: simplified,basic", blocks=2, root=1, aa_control=False),
        "f": design("reward: shaped,sparse", blocks=2, root=2, aa_control=False),
    }
    for name, one in planned.items():
        one.save(tmp_path / name)
        for cell in one.cells:
            on_disk(f"{name}/{cell.folder}", reward=cell.arm)
    assert cells(find_runs([tmp_path / "d"])) == {(arm, block) for arm in ("shaped", "sparse") for block in range(2)}
    both = find_runs([tmp_path / "d", tmp_path / "e"])
    assert cells(both) == {(run.arm, seed) for run in both for seed in planned["d"].seeds}
    pooled = find_runs([tmp_path / "d", tmp_path / "f"])
    assert cells(pooled) == {(arm, seed) for arm in ("shaped", "sparse") for seed in planned["d"].seeds + planned["f"].seeds}


def test_runs_without_a_design_are_arms_by_their_differences(experiment: Path) -> None:
    loose = find_runs([experiment / "shaped", experiment / "sparse"])
    assert {run.block for run in loose} == set(design("reward: shaped,sparse", blocks=2, root=1).seeds)
    whole = {run.arm for run in find_runs([experiment / "shaped"])}
    assert whole == {"shaped"}  # only seeds differ: the folder names the arm


def test_a_folder_without_runs_is_told_beside_others(on_disk: Any, tmp_path: Path) -> None:
    on_disk("x", reward="shaped", seed=1)
    (tmp_path / "policy").mkdir()
    with pytest.warns(UserNotice, match="policy holds no run that has saved anything, and is left out"):
        assert len(find_runs([tmp_path / "x", tmp_path / "policy"])) == 1
