"""Comparisons of simulated outcomes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.config import ConfigError
from esper.lab import comparison as S
from esper.lab import scoring as J
from esper.lab.design import AA_CONTROL
from esper.lab.report import differences, tables
from esper.lab.runs import OUTCOMES, CompareConfig, Run
from esper.stats import paired


def compared(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, np.ndarray], missing: int = 0, faults: Sequence[str] = (), **asked: Any
) -> S.Comparison:
    """Return the comparison of an experiment with these accuracies, in which the last `missing` runs are not finished."""
    runs = [
        Run(arm=arm, block=block, seed=block, folder=Path(f"{arm}/{block}"), update=1, updates=1, config={"hosts": 1})
        for arm, row in values.items()
        for block in range(len(row))
    ]
    for run in runs[len(runs) - missing :]:
        run.updates = 2
    monkeypatch.setattr(paired, "RESAMPLES", 199)
    monkeypatch.setattr(S, "find_runs", lambda *_: runs)
    monkeypatch.setattr(S, "faults", lambda _: list(faults))
    zeros = dict.fromkeys(OUTCOMES, 0.0)
    monkeypatch.setattr(J, "score", lambda run, *_: zeros | {"accuracy": float(values[run.arm][run.block])})
    return S.compare([], CompareConfig(**asked))


def test_the_better_arm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = compared(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AA_CONTROL: noise[2] + 60})
    assert found.sentences() == ["b is better than a"]
    assert found.arms == ["a", "b", AA_CONTROL]
    assert found.controls["accuracy"].mean.low < 0 < found.controls["accuracy"].mean.high


def test_a_difference_to_the_control_voids_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = compared(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AA_CONTROL: noise[2] + 65})
    void, verdict = found.sentences()
    assert void.startswith("void: a differs from its A/A control by")
    assert verdict == "no verdict on a and b: the experiment is void"


def test_the_control_does_not_count_in_the_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = compared(monkeypatch, {"a": noise[0], "b": noise[1] + 1, AA_CONTROL: noise[2]})
    (pair,) = found.results["accuracy"]
    assert pair.p_holm == pair.difference.p


def test_void_experiments_have_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    found = compared(monkeypatch, {"a": noise[0], "b": noise[1] + 6}, faults=["a stopped exploring"])
    assert found.sentences() == ["void: a stopped exploring", "no verdict on a and b: the experiment is void"]


def test_unfinished_experiments_have_no_verdict_unless_final(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    values = {"a": noise[0], "b": noise[1] + 6}
    lines = compared(monkeypatch, values, missing=1).sentences()
    assert lines[0] == "no verdict on a and b: the experiment is unfinished"
    assert lines[1].startswith("1 of 24 planned runs are not finished: repeat the command")
    assert lines[2] == "b, block 11: stopped after 1 of 2 updates"
    none = compared(monkeypatch, values, missing=12).sentences()
    assert not [line for line in none if "has no accuracy" in line]
    final = compared(monkeypatch, values, missing=1, final=True)
    assert final.sentences() == ["b is better than a", "b, block 11: stopped after 1 of 2 updates"]


def test_arms_without_the_outcome_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    noise[1, 4], noise[2] = np.nan, np.nan
    lines = compared(monkeypatch, {"a": noise[0], "b": noise[1], "c": noise[2]}, against="c").sentences()
    remedy = "they share 0 of at least 10 blocks; run them on the same seeds, as sweep=ab does"
    assert lines[:2] == [f"no verdict on c and {arm}: {remedy}" for arm in "ab"]
    assert lines[2] == "b has no accuracy in block 4: remove it, or choose another outcome"
    assert lines[3].startswith("c has no accuracy in blocks 0, 1, 2")


def test_one_arm_has_nothing_to_be_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^a is the only arm: name the folders of others, or add baselines"):
        compared(monkeypatch, {"a": np.zeros(3)})
    alone = compared(monkeypatch, {"a": np.zeros(1), AA_CONTROL: np.zeros(1)})
    assert differences(alone).empty
    assert [table["caption"] for table in tables(alone)] == ["Means over blocks"]


@pytest.mark.parametrize("key", ["reward.rent", "governor.penalty", "agent.gamma"])
def test_returns_need_equal_rewards(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": np.zeros(3), "b": np.ones(3)}
    runs = compared(monkeypatch, values, outcome="return").runs
    for run in runs:
        run.config[key] = 1.0 if run.arm == "a" else 2.0
    monkeypatch.setattr(S, "find_runs", lambda *_: runs)
    with pytest.raises(ConfigError, match=f"paid by different .*{key.split('.')[0]}"):
        S.compare([], CompareConfig(outcome="return"))
    for run in runs:
        if run.arm == "b":
            del run.config[key]  # an agent without the key is not paid by it
    assert S.compare([], CompareConfig(outcome="return")).values("return")["a"].tolist() == [0, 0, 0]
