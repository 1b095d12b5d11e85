"""What a comparison says of outcomes that were made up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.config import ConfigError
from esper.lab import comparison as S
from esper.lab import scoring as J
from esper.lab.design import AA_CONTROL
from esper.lab.runs import OUTCOMES, CompareConfig, Run


def made_up(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, np.ndarray], missing: int = 0, faults: Sequence[str] = (), **asked: Any
) -> S.Comparison:
    """The comparison of an experiment with these accuracies.

    Args:
        missing: so many runs of the last arm are not finished.
    """
    runs = [
        Run(arm=arm, block=block, seed=block, folder=Path(f"{arm}/{block}"), update=1, updates=1, config={"hosts": 1})
        for arm, row in values.items()
        for block in range(len(row))
    ]
    for run in runs[len(runs) - missing :]:
        run.updates = 2
    monkeypatch.setattr(S, "find_runs", lambda *_: runs)
    monkeypatch.setattr(S, "faults", lambda _: list(faults))
    zeros = dict.fromkeys(OUTCOMES, 0.0)
    monkeypatch.setattr(J, "score", lambda run, *_: zeros | {"accuracy": float(values[run.arm][run.block])})
    return S.compare([], CompareConfig(**asked))


def test_the_better_arm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = made_up(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AA_CONTROL: noise[2] + 60})
    assert found.sentences() == ["b is better than a"]
    assert found.arms == ["a", "b", AA_CONTROL]
    assert found.controls["accuracy"].mean.low < 0 < found.controls["accuracy"].mean.high


def test_an_arm_that_differs_from_itself_makes_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = made_up(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AA_CONTROL: noise[2] + 65})
    void, verdict = found.sentences()
    assert void.startswith("void: a differs from its A/A control by")
    assert verdict == "no verdict on a and b: the experiment is void"


def test_the_control_is_no_pair_of_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = made_up(monkeypatch, {"a": noise[0], "b": noise[1] + 1, AA_CONTROL: noise[2]})
    (told,) = found.results["accuracy"]
    assert told.p_holm == told.difference.p


def test_what_is_void_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    found = made_up(monkeypatch, {"a": noise[0], "b": noise[1] + 6}, faults=["a slept"])
    assert found.sentences() == ["void: a slept", "no verdict on a and b: the experiment is void"]


def test_who_looks_before_the_end_gets_no_verdict_unless_it_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    values = {"a": noise[0], "b": noise[1] + 6}
    told = made_up(monkeypatch, values, missing=1).sentences()
    assert told[0] == "no verdict on a and b: the experiment is unfinished"
    assert told[1].startswith("1 of 24 planned runs are not finished: repeat the command")
    assert told[2] == "b, block 11: stopped after 1 of 2 updates"
    none = made_up(monkeypatch, values, missing=12).sentences()
    assert not [line for line in none if "has no accuracy" in line]  # that they were not finished says it
    final = made_up(monkeypatch, values, missing=1, final=True)
    assert final.sentences() == ["b is better than a", "b, block 11: stopped after 1 of 2 updates"]


def test_arms_without_the_outcome_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    noise[1, 4], noise[2] = np.nan, np.nan
    told = made_up(monkeypatch, {"a": noise[0], "b": noise[1], "c": noise[2]}, against="c").sentences()
    assert told[:2] == [f"no verdict on c and {arm}: 0 blocks are fewer than 10" for arm in "ab"]
    assert told[2] == "b has no accuracy in block 4: remove it, or choose another outcome"
    assert told[3].startswith("c has no accuracy in blocks 0, 1, 2")


@pytest.mark.parametrize("key", ["reward.rent", "governor.penalty", "agent.gamma"])
def test_a_return_is_told_of_arms_that_are_paid_alike(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": np.zeros(3), "b": np.ones(3)}
    find = made_up(monkeypatch, values, outcome="return").runs
    for run in find:
        run.config[key] = 1.0 if run.arm == "a" else 2.0
    monkeypatch.setattr(S, "find_runs", lambda *_: find)
    with pytest.raises(ConfigError, match=f"paid by different .*{key.split('.')[0]}"):
        S.compare([], CompareConfig(outcome="return"))
    for run in find:
        if run.arm == "b":
            del run.config[key]  # an agent that does not know the key is not paid by it
    assert S.compare([], CompareConfig(outcome="return")).values("return")["a"].tolist() == [0, 0, 0]
