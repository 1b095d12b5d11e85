"""Comparisons of simulated outcomes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from esper.config import ConfigError
from esper.growth.objective import CLASSIFICATION
from esper.lab import comparison as S
from esper.lab import scoring as J
from esper.lab.advise import measured_spread
from esper.lab.arms import AA_CONTROL
from esper.lab.design import AnalysisPlan, Design
from esper.lab.outcomes import OUTCOMES, CompareConfig
from esper.lab.power import Spread
from esper.lab.report import differences
from esper.lab.runs import Run
from esper.stats.verdict import Conclusion


def compared(
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, np.ndarray],
    missing: int = 0,
    warnings: Sequence[str] = (),
    looks: Sequence[int] = (),
    **asked: Any,
) -> S.Comparison:
    """Return the comparison of an experiment with these accuracies, in which the last `missing` runs are not finished.

    What is asked beside accuracy was planned.
    """
    runs = [
        Run(arm=arm, block=block, seed=block, folder=Path(f"{arm}/{block}"), update=1, updates=1, config={"hosts": 1})
        for arm, row in values.items()
        for block in range(len(row))
    ]
    for run in runs[len(runs) - missing :]:
        run.updates = 2
    monkeypatch.setattr(S, "find_runs", lambda *_: runs)
    monkeypatch.setattr(S, "objective_of", lambda *_: CLASSIFICATION)
    monkeypatch.setattr(S, "anomalies", lambda *_: list(warnings))
    planned = {name: value for name, value in asked.items() if name in ("outcome", "against", "alpha", "baselines")}
    blocks = len(next(iter(values.values())))
    arms = {arm: [f"hosts={index}"] for index, arm in enumerate(values)}
    plan = AnalysisPlan(**planned, looks=list(looks) or [blocks])
    experiment = Design(arms=arms, blocks=blocks, root=0, common=[], plan=plan)
    monkeypatch.setattr(S, "planned", lambda _: experiment)
    monkeypatch.setattr(S, "host_table", lambda *_: pd.DataFrame())
    monkeypatch.setattr(S, "seed_table", lambda *_: pd.DataFrame())
    monkeypatch.setattr(S, "cost_table", lambda *_: pd.DataFrame())
    zeros = dict.fromkeys(OUTCOMES, 0.0)
    monkeypatch.setattr(J, "score", lambda run, *_, **__: zeros | {"accuracy": float(values[run.arm][run.block])})
    monkeypatch.setattr(S, "listed_runs", lambda _: set())
    for name in ("check_runs", "lost_looks"):
        monkeypatch.setattr(S, name, lambda *_: [])
    return S.compare([Path("here")], CompareConfig(**asked))


def test_the_better_arm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = compared(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AA_CONTROL: noise[2] + 60})
    better, control, *_ = found.sentences
    assert better.startswith("b is better than a by ")
    assert "; collapsed runs: a 0 of 12" in better
    assert control.startswith("A/A control: a minus its copy with other policy seeds is")
    assert "excludes 0" not in control
    assert found.arms == ["a", "b", AA_CONTROL]
    mean = found.controls["accuracy"].difference.mean
    assert mean.low < 0 < mean.high


@pytest.mark.parametrize("blocks", [3, 12])
def test_a_control_that_repeats_its_arm_shows_nothing(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, blocks))
    lines = compared(monkeypatch, {"a": noise[0], "b": noise[1], AA_CONTROL: noise[0]}).sentences
    assert [line for line in lines if line.startswith("A/A")] == [
        "A/A control: its accuracy equals that of a in every block, so it shows nothing about null effects"
    ]


def test_a_difference_to_the_control_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = compared(monkeypatch, {"a": noise[0] + 60, "b": noise[1] + 66, AA_CONTROL: noise[2] + 65})
    verdict, control, *_ = found.sentences
    assert verdict.startswith("b is better than a")
    assert control.startswith("warning: A/A control: a minus its copy")
    assert "The interval excludes 0, which happens in 5 % of comparisons without an effect" in control


def test_the_control_does_not_count_in_the_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    found = compared(monkeypatch, {"a": noise[0], "b": noise[1] + 1, AA_CONTROL: noise[2]})
    (pair,) = found.results["accuracy"]
    assert pair.p_holm == pair.difference.p


def test_warnings_do_not_withhold_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    found = compared(monkeypatch, {"a": noise[0], "b": noise[1] + 6}, warnings=["a stopped exploring"])
    verdict, warning, *_ = found.sentences
    assert verdict.startswith("b is better than a by ")
    assert warning == "warning: a stopped exploring"


def test_unfinished_experiments_have_no_verdict_unless_final(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    values = {"a": noise[0] + 50, "b": noise[1] + 56}
    lines = compared(monkeypatch, values, missing=1).sentences
    assert lines[0] == "no verdict on a and b yet: runs are missing (11 of 12 blocks are finished)"
    (line,) = [line for line in lines if "planned runs is not finished" in line]
    command = "python -m esper.train -m sweep=ab arms='{a: hosts=0, b: hosts=1}' blocks=12 root=0 aa_control=false"
    assert line.startswith("1 of 24 planned runs is not finished: set final=true if they never will be, or continue with")
    assert line.endswith(f"{command} hydra.sweep.dir=here")
    assert "b, block 11: stopped after 1 of 2 updates" in lines
    none = compared(monkeypatch, values, missing=12).sentences
    assert not [line for line in none if "has no accuracy" in line]
    final = compared(monkeypatch, values, missing=1, final=True).sentences
    assert " yet: " not in " ".join(final), "the missing run is taken at its worst"
    assert "b, block 11: stopped after 1 of 2 updates" in final


def test_a_verdict_takes_the_blocks_of_a_look_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    values = {"a": rng.standard_normal(26), "b": rng.standard_normal(26) + 0.1}
    first = compared(monkeypatch, {arm: row[:12] for arm, row in values.items()}, looks=[12, 24])
    (line,) = [
        line for line in first.sentences if line.startswith("the next look, which may give a verdict, is at 24 blocks: python")
    ]
    assert "blocks=24" in line
    assert line.endswith("hydra.sweep.dir=here")
    between = compared(monkeypatch, {arm: row[:20] for arm, row in values.items()}, looks=[12, 24])
    beyond = compared(monkeypatch, values, looks=[12, 24])
    (one,), (same,), (last,) = (found.results["accuracy"] for found in (first, between, beyond))
    assert one == same, "what follows a look does not change it"
    assert (one.look, last.look) == (12, 24)
    assert "blocks 24 and up come after the last planned look and do not count towards a verdict" in beyond.sentences
    assert last == compared(monkeypatch, {arm: row[:24] for arm, row in values.items()}, looks=[12, 24]).results["accuracy"][0]


def test_blocks_before_the_first_look_are_extended_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 10))
    values = {"a": noise[0], "b": noise[1] + 6}
    verdict, later = compared(monkeypatch, {arm: row[:3] for arm, row in values.items()}, looks=[10]).sentences[:2]
    assert verdict == "no verdict on a and b yet: 3 of 10 blocks are finished"
    assert later.startswith("the next look, which may give a verdict, is at 10 blocks: python -m esper.train -m sweep=ab arms=")
    assert " blocks=10 " in later
    assert compared(monkeypatch, values, looks=[10]).sentences[0].startswith("b is better than a")


@pytest.mark.parametrize(
    ("asked", "overrides", "sentence"),
    [
        ({"margin": 0.5}, [], "margin is 0.5, but 1 was planned"),
        ({"hosts": 8}, [], "hosts is 8, but 96 was planned"),
        ({"alpha": 0.01}, [], "alpha is 0.01, but 0.05 was planned"),
        ({"outcome": "validation"}, [], "outcome is validation, but accuracy was planned"),
        ({"against": "a"}, [], "against is a, but null was planned"),
        ({}, ["steps=3"], "steps=3 was not planned"),
    ],
)
def test_a_deviation_makes_a_comparison_exploratory(
    asked: dict[str, Any], overrides: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    compared(monkeypatch, {"a": noise[0], "b": noise[1] + 6})
    monkeypatch.setattr(S, "_rescored", lambda *_: [])
    found = S.compare([Path("here")], CompareConfig(**asked), overrides=overrides)
    assert found.sentences[0] == f"exploratory, hence no verdict: {sentence}"
    assert {result.verdict for results in found.results.values() for result in results} == {Conclusion.exploratory}


def test_without_a_plan_everything_is_exploratory(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((2, 12))
    compared(monkeypatch, {"a": noise[0], "b": noise[1] + 6})
    monkeypatch.setattr(S, "planned", lambda _: None)
    found = S.compare([Path("here")], CompareConfig())
    assert "not one experiment of sweep=ab, so nothing was planned" in found.sentences[0]
    assert found.results["accuracy"][0].verdict is Conclusion.exploratory


@pytest.mark.slow
def test_outcome_shopping_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 null experiments with nine outcomes, only the planned one can be claimed to differ.

    Shopping over the p values of all outcomes would have claimed something in many more.
    """
    rng, experiments = np.random.default_rng(19), 20
    noise = np.zeros((2, 12))
    compared(monkeypatch, {"a": noise[0], "b": noise[1]})
    table: dict[tuple[str, int], dict[str, float]] = {}
    monkeypatch.setattr(J, "score", lambda run, *_, **__: table[run.arm, run.block])
    claimed = shopped = 0
    for _ in range(experiments):
        draws = 50 + rng.standard_normal((2, 12, len(OUTCOMES)))
        cells = {(arm, block): draws[index, block].tolist() for index, arm in enumerate("ab") for block in range(12)}
        table |= {cell: dict(zip(OUTCOMES, row, strict=True)) for cell, row in cells.items()}
        results = {name: found for name, (found,) in S.compare([Path("here")], CompareConfig()).results.items()}
        verdicts = {name: found.verdict for name, found in results.items()}
        assert {verdict for name, verdict in verdicts.items() if name != "accuracy"} == {Conclusion.exploratory}
        claimed += verdicts["accuracy"] is Conclusion.better
        shopped += any(found.difference.p < 0.05 for found in results.values())
    assert claimed <= 3, "5 % are 1; more than 3 come by chance once in 60"
    assert shopped > 0.15 * experiments


def test_collapsed_runs_are_named_with_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    noise[1, [3, 7]] -= 60
    noise[2, 5] -= 60
    lines = compared(monkeypatch, {"a": noise[0], "b": noise[1], AA_CONTROL: noise[2]}).sentences
    assert "b collapsed in 2 of 12 runs (blocks 3, 7)" in " ".join(lines)
    assert f"warning: a and {AA_CONTROL}: {AA_CONTROL} collapsed in 1 of 12 runs (block 5)" in lines


def test_a_hard_block_lowers_no_arm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    noise[:, 3] -= 60
    found = compared(monkeypatch, {"a": noise[0], "b": noise[1], AA_CONTROL: noise[2]})
    assert found.controls["accuracy"].difference.blocks == found.results["accuracy"][0].difference.blocks == 12
    assert "collapsed in" not in " ".join(found.sentences)


def test_what_to_do_next_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(3).standard_normal((2, 12)) * 3
    found = compared(monkeypatch, {"a": noise[0], "b": noise[1]})
    (pair,) = found.results["accuracy"]
    assert pair.verdict is Conclusion.undecided
    lines = found.sentences
    assert any("measured standard deviation of a difference" in line and "assumed 2.3 pp" in line for line in lines)
    noise[0, 5] -= 600
    fallen = compared(monkeypatch, {"a": noise[0], "b": noise[1]})
    (line,) = [line for line in fallen.sentences if line.startswith("measured standard deviation of a difference")]
    assert f": {fallen.results['accuracy'][0].difference.spread:.2g} pp" in line, "without the collapsed run, as in needed"
    assert any(line.startswith(f"to decide, start a new experiment of {pair.needed} blocks") for line in lines) or found._alike


def test_alike_arms_say_nothing_about_baselines_and_the_control_is_no_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(3).standard_normal((3, 12)) * 3
    same = dict.fromkeys(OUTCOMES, 60.0)
    monkeypatch.setattr(
        J, "score_baselines", lambda run, how: {name: same | {"accuracy": 0.3 * run.block} for name in how.baselines}
    )
    for names, alike in ((("a", "b"), True), (("a", AA_CONTROL), False)):
        compared(monkeypatch, {name: noise[index] for index, name in enumerate(names)}, baselines=["wait"])
        scores = {
            (name, block): same | {"accuracy": float(noise[index, block])}
            for index, name in enumerate(names)
            for block in range(12)
        }
        monkeypatch.setattr(J, "score", lambda run, *_, scores=scores, **__: scores[run.arm, run.block])
        lines = S.compare([Path("here")], CompareConfig(baselines=["wait"])).sentences
        assert any("learned to differ" in line and "wait" not in line for line in lines) == alike
        assert any("the arms act alike" in line for line in lines) == alike
        assert not any("learned to differ" in line and "wait" in line for line in lines)


def test_an_outcome_of_trained_arms_needs_none_of_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(3).standard_normal((2, 12))
    monkeypatch.setattr(J, "score_baselines", lambda run, how: {name: {"accuracy": 50.0} for name in how.baselines})
    compared(monkeypatch, {"a": noise[0], "b": noise[1]}, baselines=["wait"])
    greedy = {(arm, block): 50 + noise[index, block] for index, arm in enumerate("ab") for block in range(12)}
    scored = {cell: dict.fromkeys(OUTCOMES, 0.0) | {"learning": value} for cell, value in greedy.items()}
    monkeypatch.setattr(J, "score", lambda run, *_, **__: scored[run.arm, run.block])
    found = S.compare([Path("here")], CompareConfig(baselines=["wait"]))
    (pair,) = found.results["learning"]
    assert {pair.difference.first, pair.difference.second} == {"a", "b"}
    assert 0 < pair.difference.p < 1
    assert pair.look == 12
    assert len(found.results["accuracy"]) == 3


def test_the_spread_that_was_assumed_is_that_of_the_planned_outcome() -> None:
    made = Design(arms={"a": [], "b": []}, blocks=12, root=0, common=[], plan=AnalysisPlan(looks=[12]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("esper.lab.advise.assumed_spread", lambda _: 2.3)
        planned, other = (measured_spread(Spread(value=3.0), made, OUTCOMES[name])[0] for name in ("accuracy", "return"))
    assert planned.endswith("assumed 2.3 pp")
    assert "assumed" not in other


def test_arms_that_act_alike_are_told_to_train_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(3).standard_normal((2, 12)) * 3
    zeros = dict.fromkeys(OUTCOMES, 0.0)
    for differing, warned in ((0, True), (5, True), (6, False)):
        scores = {
            (arm, block): zeros | {"accuracy": float(noise[index, block]), "accuracy_greedy": 60.0 + index * (block < differing)}
            for index, arm in enumerate("ab")
            for block in range(12)
        }
        compared(monkeypatch, {"a": noise[0], "b": noise[1]})
        monkeypatch.setattr(J, "score", lambda run, *_, scores=scores, **__: scores[run.arm, run.block])
        monkeypatch.setattr(S, "spread_of", lambda *_: Spread(value=3.0))
        monkeypatch.setattr(S, "advice", lambda *_: ["2x blocks raise the power"])
        compared_here = S.compare([Path("here")], CompareConfig())
        lines = compared_here.sentences
        assert ("2x blocks raise the power" in lines) != warned
        told = [line for line in lines if "the arms act alike" in line]
        assert len(told) == warned
        assert not warned or f"in {12 - differing} of 12 blocks" in told[0]
        (command,) = [line for line in lines if line.startswith("next, " if warned else "to decide, ")]
        assert ("updates=50" in command) == warned
        assert lines[0].endswith("have not learned to differ yet") == warned
        assert ("pilot=here" in command) != warned
        assert "root=" in command
        assert replace(compared_here).sentences == lines, "a repeated comparison proposes the same root"
        compared_here.runs[0].saved = {"options": {"agent": "bandit"}}
        assert not any("the arms act alike" in line for line in replace(compared_here).sentences), "this arm does not sample"


def test_arms_without_the_outcome_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).standard_normal((3, 12))
    noise[1, 4], noise[2] = np.nan, np.nan
    lines = compared(monkeypatch, {"a": noise[0], "b": noise[1], "c": noise[2]}, against="c").sentences
    assert lines[:2] == [f"no verdict on c and {arm} yet: runs are missing (0 of 12 blocks are finished)" for arm in "ab"]
    assert lines[-2] == "b has no accuracy in block 4: remove this arm, choose another outcome, or set final=true"
    assert lines[-1].startswith("c has no accuracy in blocks 0, 1, 2")


def test_one_arm_has_nothing_to_be_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^there is only one arm: name the folders of others, or add baselines"):
        compared(monkeypatch, {"a": np.zeros(3)})
    alone = compared(monkeypatch, {"a": np.zeros(1), AA_CONTROL: np.zeros(1)})
    assert differences(alone).empty
    assert alone.sentences[0].startswith("no verdict: a is the only arm beside its A/A control")


@pytest.mark.parametrize("key", ["reward.rent", "governor.penalty", "agent.gamma"])
def test_returns_need_equal_rewards(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": np.zeros(3), "b": np.ones(3)}
    runs = compared(monkeypatch, values, outcome="return").runs
    for run in runs:
        run.config[key] = 1.0 if run.arm == "a" else 2.0
    monkeypatch.setattr(S, "find_runs", lambda *_: runs)
    monkeypatch.setattr(S, "objective_of", lambda *_: CLASSIFICATION)
    with pytest.raises(ConfigError, match=f"arms with different .*{key.split('.')[0]}"):
        S.compare([Path("here")], CompareConfig(outcome="return"))
    for run in runs:
        if run.arm == "b":
            del run.config[key]  # an agent without the key is not paid by it
    assert S.compare([Path("here")], CompareConfig(outcome="return")).values("return")["a"].tolist() == [0, 0, 0]


def test_planned_overrides_are_no_excuse_where_hosts_are_scored_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome of training scores nothing with overrides, so baselines may grow other hosts than an arm."""
    noise = np.random.default_rng(0).standard_normal((2, 12))
    made = compared(monkeypatch, {"a": noise[0], "b": noise[1]})
    assert made.design is not None
    design = replace(made.design, plan=replace(made.design.plan, score_overrides=["slots=all"]))

    def told(_: object, baselines: object, overrides: Sequence[str]) -> list[str]:
        raise ConfigError(f"compared with {baselines} under {overrides}")

    monkeypatch.setattr(S, "planned", lambda _: design)
    monkeypatch.setattr(S, "other_hosts", told)
    with pytest.raises(ConfigError, match=r"with \['wait'\] under \[\]"):
        S.compare([Path("here")], CompareConfig(outcome="learning", baselines=["wait"]))
