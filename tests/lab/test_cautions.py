"""Warnings on the arms of a comparison."""

from dataclasses import replace
from pathlib import Path

import pytest

from esper.lab.cautions import anomalies, early_baselines, other_hosts
from esper.lab.runs import Run


def test_different_data_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.lab.cautions.records_of", lambda _: [{}])

    def run(arm: str, hosts: int, updates: int, block: int = 0, task: str = "digits") -> Run:
        config = {"hosts": hosts, "task": task}
        return Run(arm=arm, block=block, folder=Path(), seed=block, updates=updates, stratum=task, config=config)

    assert anomalies([run("a", 32, 10), run("b", 16, 20)]) == []  # equal numbers of host episodes
    (fault,) = anomalies([run("a", 32, 10), run("b", 16, 10)])
    assert fault.startswith("runs see different data: hosts times updates is a 320, b 160")
    losses = [replace(run(arm, 32, 10), config={"hosts": 32, "task.objective": arm}) for arm in ("mse", "huber")]
    assert anomalies(losses) == []  # the same data
    # One run was extended afterwards.
    longer = [run(arm, 32, 20 if (arm, block) == ("b", 0) else 10, block) for arm in "ab" for block in range(2)]
    assert "is a 320, b 320 and 640" in anomalies(longer)[0]
    wide = [replace(run(arm, 32, 10), config={"host.base_channels": size}) for arm, size in (("a", 4), ("b", 8), ("c", 4))]
    (warning,) = other_hosts(wide, ["wait"])
    assert warning.startswith("the baselines grow the hosts of a; those of b differ in host.base_channels: compare b")
    heads = [replace(run(arm, 32, 10), config={"agent.heads.tempo": tempo}) for arm, tempo in (("a", "fast"), ("b", "free"))]
    assert "those of b differ in agent.heads.tempo" in other_hosts(heads, ["random"])[0]
    assert other_hosts(wide, ["wait"], ["host.base_channels=4"]) == []
    assert other_hosts(wide, []) == other_hosts(wide[::2], ["wait"]) == []
    tasks = [run(arm, 32, 10, block, task) for arm in "ab" for block, task in enumerate(("digits", "mnist5k"))]
    assert anomalies(tasks) == []
    (shared,) = anomalies([replace(one, seed=5) for one in tasks])
    assert shared.startswith("runs of different strata have the same random seeds")
    (fault,) = anomalies([replace(one, stratum="") for one in tasks])
    assert "task is a digits and mnist5k, b digits and mnist5k; if this is a separate setting, add it to strata" in fault
    longer = [replace(one, updates=20) if one.arm == "b" else one for one in tasks]
    assert len(anomalies(longer)) == 1, "both strata have the same warning"


def test_pooled_runs_of_an_arm_have_one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.lab.cautions.records_of", lambda _: [{}])

    def run(block: int, **config: object) -> Run:
        own = {"hosts": 4, "seed": block, "policy_seed": block, "task.split_seed": block, "agent.teacher": "random"}
        return Run(arm="a", block=block, folder=Path(), seed=block, stratum="", config=own | config)

    assert anomalies([run(0), run(1)]) == []
    wide = {"agent.hidden": 256, "agent": "ppo"}
    (warning,) = anomalies([run(0, **wide), run(1, **wide | {"agent.hidden": 64})])
    assert warning == "the runs of a have different agent.hidden (256 and 64): compare their experiments one by one"
    strata = [replace(run(block, **{"agent.hidden": block}), stratum=str(block)) for block in range(2)]
    assert anomalies(strata) == [], "each setting may have its own"


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"policy/entropy_share_op": 0.001}, "a has stopped exploring"),
        ({"policy/top_blueprint_share": 1.0}, "a has collapsed onto one blueprint"),
    ],
)
def test_collapsed_policies_are_named(record: dict[str, float], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.lab.cautions.records_of", lambda _: [record])
    (fault,) = anomalies([Run(arm="a", block=0, folder=Path(), config={"hosts": 1})])
    assert sentence in fault
    monkeypatch.setattr("esper.lab.cautions.records_of", lambda _: [dict.fromkeys(record, 0.5)])
    assert anomalies([Run(arm="a", block=0, folder=Path(), config={"hosts": 1})]) == []


def test_baselines_that_plant_before_any_event_are_weak_references(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, drifting = ({"task": "any", "task.events.kinds": kinds} for kinds in ([], ["rotate"]))
    runs = {name: [Run(arm="a", block=0, folder=Path(), config=config)] for name, config in (("calm", calm), ("drift", drifting))}
    asked = ["wait", "schedule", "oracle", "search_random_4", "search_enumerate"]
    (warning,) = early_baselines(runs["drift"], asked)
    assert warning.startswith("schedule, oracle, search_enumerate: these plant in the first host epoch only")
    assert all(agent in warning for agent in ("best_of_random", "schedule_bandit", "event_oracle"))
    assert early_baselines(runs["calm"], asked) == early_baselines(runs["drift"], ["wait"]) == []
    monkeypatch.setattr("esper.lab.cautions.scored_config", lambda *_: drifting)
    assert early_baselines(runs["calm"], asked, ["task=digits_drift"]) == [warning]


@pytest.mark.parametrize(
    ("teachers", "warned"),
    [
        ((None, "multirun/teacher"), True),
        (("heuristic", "multirun/teacher"), True),
        (("multirun/teacher", "multirun/teacher"), False),
        ((None, "heuristic"), False),
    ],
)
def test_the_training_of_a_teacher_is_in_no_costs(
    teachers: tuple[str | None, str], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.lab.cautions.records_of", lambda _: [{}])
    runs = [
        Run(arm=arm, block=0, folder=Path(), config={"hosts": 1, "agent.teacher": teacher})
        for arm, teacher in zip(("plain", "taught"), teachers, strict=True)
    ]
    found = anomalies(runs)
    assert len(found) == warned
    assert all("(taught learns from multirun/teacher): the training of a teacher is not in the costs" in line for line in found)
    later = [replace(run, block=1, config={"hosts": 1, "agent.teacher": "multirun/second"}) for run in runs]
    found = anomalies([*runs, *later])
    assert len(found) == warned
    assert all("taught learns from multirun/teacher and others" in line for line in found)
