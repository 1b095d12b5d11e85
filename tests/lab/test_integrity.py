"""Integrity of experiments: changed, moved, copied, lost and added runs are named."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from esper import compare as C
from esper.config import ConfigError
from esper.lab.advise import states
from esper.lab.design import FILE, AnalysisPlan, design
from esper.lab.integrity import check_runs, mixed
from esper.lab.runs import Run, find_runs, records_of
from tests.lab.small_runs import TINY


def swap(one: Path, other: Path) -> None:
    """Let two folders change places."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def edit(run: Path) -> None:
    """Raise the accuracy in training of a run that looks like a killed one: half a line follows its last update."""
    (line,) = (run / "metrics.jsonl").read_text().splitlines()
    record = json.loads(line)
    record["host/committed_accuracy"] += 20
    (run / "metrics.jsonl").write_text(json.dumps(record) + '\n{"upd')


def forge(folder: Path) -> None:
    """Replace the plan by one with another margin and a matching digest."""
    (folder / FILE).unlink()
    design("reward: shaped,sparse", blocks=2, root=1, common=TINY, plan=AnalysisPlan(score_hosts=2, margin=0.1)).save(folder)


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (
            lambda place: swap(place / "shaped/block-00", place / "shaped/block-01"),
            "holds the run of shaped/block-0.: move it back",
        ),
        (lambda place: swap(place / "shaped/block-00", place / "sparse/block-00"), "holds the run of s.*/block-00: move it back"),
        (
            lambda place: swap(place / "shaped/block-00/checkpoints", place / "sparse/block-00/checkpoints"),
            "shaped/block-00 was trained with reward=sparse, and design.json says reward=shaped",
        ),
        (
            lambda place: swap(place / "shaped/block-00/checkpoints", place / "shaped/block-01/checkpoints"),
            "shaped/block-00 was trained with seed=.*, and design.json says seed=",
        ),
        (
            lambda place: swap(place / "shaped/block-00/checkpoints", place / "aa_control/block-00/checkpoints"),
            "aa_control/block-00 was trained with policy_seed=None, and design.json says policy_seed=",
        ),
        (
            lambda place: shutil.copytree(place / "shaped/block-01", place / "sparse/block-01"),
            "is a copy of .*: remove one of them",
        ),
        (
            lambda place: edit(place / "shaped/block-01"),
            "block-01/metrics.jsonl was changed after training: update 1 does not have its checksum in times.jsonl; restore",
        ),
        (forge, "run.json names .*, and design.json holds plan .*: restore the changed file, or remove the run"),
        (lambda place: (place / "sparse/block-00/run.json").unlink(), "sparse/block-00/run.json names no plan"),
    ],
)
def test_tampered_experiments_are_refused(
    tamper: Callable[[Path], object], sentence: str, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    tamper(copy)
    with pytest.raises(SystemExit) as ended:
        C.main([str(copy)])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert re.search(sentence, shown)
    assert len(shown.splitlines()) == 1


def test_an_untouched_copy_is_accepted(experiment: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    assert check_runs(find_runs([copy]), [copy]) == []
    assert all(records_of(run) for run in find_runs([copy]) if run.finished)


@pytest.mark.usefixtures("no_figures")
def test_what_is_gone_or_was_added_is_named(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy, ignore=shutil.ignore_patterns("comparison*", "looks*"))

    def sentences() -> list[str]:
        C.main([str(copy)])
        capsys.readouterr()
        return json.loads((copy / "comparison.json").read_text())["sentences"]

    named = [f"warning: {copy}/shaped/block-07 is not a run of this experiment and was left out: move it elsewhere"]
    named.append("shaped, block 1: lost: an earlier comparison found it finished")
    named.append(f"warning: {copy} was compared before and has no looks.jsonl: its earlier looks are unknown")
    assert not {*named} & {*sentences()}
    shutil.copytree(copy / "shaped/block-01", copy / "shaped/block-07")
    shutil.rmtree(copy / "shaped/block-01")
    found = sentences()
    assert [line for line in found if line in named] == named[:2]
    assert "sparse, block 1: never started" in found
    (copy / "looks.jsonl").unlink()
    assert [line for line in sentences() if line in named] == [named[0], named[2]]


def test_a_resumed_run_counts_once_among_code_versions() -> None:
    old, new = ({"commit": letter * 9, "source": letter} for letter in "ab")
    (line,) = mixed({"x": [old, old, old], "y": [old], "z": [new]}, "trained", "remedy")
    assert line.endswith("(aaaaaaaaa: x and 1 more; bbbbbbbbb: z): remedy")


def test_runs_that_share_a_state_share_a_line() -> None:
    begun = [Run(arm="ppo", block=block, folder=Path(), updates=4, update=2) for block in (5, 0)]
    waiting = [Run(arm="ppo", block=block, folder=Path()) for block in (9, 1, 2, 3, 8)]
    assert states([*begun, *waiting, Run(arm="fixed", block=7, folder=Path())]) == [
        "ppo, blocks 0, 5: stopped after 2 of 4 updates",
        "ppo, blocks 1 to 3, 8, 9: never started",
        "fixed, block 7: never started",
    ]


def test_mixed_code_versions_are_a_warning(experiment: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(experiment, copy)
    path = copy / "sparse/block-00/run.json"
    (record,) = json.loads(path.read_text())
    commit = {**record["esper"], "commit": "0123456789abc", "changed": False}
    path.write_text(json.dumps([record | {"esper": commit}]))
    assert check_runs(find_runs([copy]), [copy]) == [], "other commit, same source"
    path.write_text(json.dumps([record | {"esper": commit | {"source": "1"}}]))
    (warning,) = check_runs(find_runs([copy]), [copy])
    assert "trained by different code versions, whose numbers may differ" in warning
    assert f"012345678: {copy}/sparse/block-00" in warning


def test_other_sources_of_a_plugin_are_a_warning() -> None:
    """A command that knows a plugin which others do not need is none."""
    code = {"commit": "a" * 9, "source": "a"}
    old, new = ({**code, "plugins": {"mine": digest * 9}} for digest in "bc")
    assert mixed({"x": [old, old], "y": [code]}, "scored", "remedy") == []
    (line,) = mixed({"x": [old], "y": [code], "z": [new]}, "scored", "remedy")
    assert line == "scored with different sources of mine (bbbbbb: x; cccccc: z): remedy"


def test_other_data_of_the_same_task_are_a_warning(experiment: Path) -> None:
    """Another split is another task."""
    first, *others = find_runs([experiment])
    assert first.data
    (warning,) = check_runs([replace(first, data="1" * 16), *others], [])
    more = sum(run.data == first.data for run in others) - 1
    assert f"different data (fingerprint {first.data}: {others[0].folder} and {more} more; {'1' * 16}: {first.folder})" in warning
    assert check_runs([replace(first, data="1" * 16, config=first.config | {"task.split_seed": 3}), *others], []) == []


def test_arms_of_one_name_must_be_alike(tmp_path: Path) -> None:
    for name, rent in (("one", 1), ("two", 2), ("three", 1)):
        design({"base": [], "mine": [f"reward.rent={rent}"]}, blocks=2, root=rent).save(tmp_path / name)
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    assert check_runs([], [one, three]) == []
    with pytest.raises(ConfigError, match=rf"arm mine is reward.rent=1 in {one}, and reward.rent=2 in {two}: compare these"):
        check_runs([], [one, two])


def test_the_same_loose_run_twice_is_refused(experiment: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copytree(experiment / "shaped/block-00", tmp_path / name)
    folders = [tmp_path / "one", tmp_path / "other"]
    with pytest.raises(ConfigError, match=r"other is a copy of .*one: remove one of them, or compare only one"):
        check_runs(find_runs(folders), folders)


def test_duplicate_cells_are_refused(experiment: Path) -> None:
    with pytest.raises(ConfigError, match=r"are both block \d+ of arm shaped: name only one of them"):
        find_runs([experiment, experiment])
