"""The decision log: stable ids, from which the life of a seed can be followed."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.agent.scripted.base import RandomConfig, compose
from esper.buffer.transition import Decision, Transition
from esper.checkpoint import Checkpoints
from esper.cli.overrides import check
from esper.env.actions import Head, Op
from esper.task.instances import Split
from esper.training.decision_log import decisions
from esper.training.environment import build_env
from esper.training.play import play
from esper.training.run_folder import CHECKPOINTS
from esper.training.trainer import Trainer

TINY = ["hosts=4", "steps=14", "task.epoch_samples=128", "task.valid_samples=50", "telemetry=quiet", "telemetry.decisions=true"]


@pytest.fixture(scope="module")
def logged() -> tuple[list[dict[str, Any]], list[Transition], Any]:
    """An episode of a random controller, logged."""
    steps: list[Transition] = []
    env = build_env(check([*TINY, "agent=random", "slots=all"]), split=Split.TRAINING)
    with closing(env):
        env.reset()
        episode = play(env, RandomConfig().build(env.layout, seed=0), record=steps.append)
    return decisions(env.layout, 3, steps), steps, episode


def test_every_decision_except_waiting_is_logged_once(logged) -> None:
    records, steps, episode = logged
    counted = {op.name.lower(): 0 for op in Op}
    for record in records:
        counted[record["op"]] += not record["refused"]
    assert counted["germinate"] >= 4
    assert [counted[op.name.lower()] for op in Op if op is not Op.WAIT] == [episode.ops[op] for op in Op if op is not Op.WAIT]
    names = [record["id"] for record in records]
    assert len(set(names)) == len(names) == sum(int((step.decision.action[:, Head.OP] != Op.WAIT).sum()) for step in steps)
    for record in records:
        update, host, step = map(int, record["id"].split("/"))
        assert update == 3
        assert record["reward"] == pytest.approx(steps[step].reward_N[host], abs=1e-4)
        assert record["accuracy"] == pytest.approx(steps[step].signals.accuracy_before_N[host], abs=1e-4)


def test_a_seed_is_named_by_the_decision_that_germinated_it(logged) -> None:
    records, steps, _ = logged
    births = {record["id"]: record for record in records if record["op"] == "germinate"}
    followed = [record for record in records if record["op"] != "germinate"]
    assert len({record["seed"] for record in followed}) >= 4
    slots = ["r0c0", "r0c1", "r0c2"]
    for record in followed:
        birth = births[record["seed"]]
        host, step = map(int, record["id"].split("/")[1:])
        assert birth["slot"] == record["slot"]
        assert birth["id"].split("/")[1] == str(host)
        # The lifecycle's own record of the seed agrees: its kind, and how long ago it was planted.
        state, slot = steps[step].signals.before, slots.index(record["slot"])
        kinds = ["norm", "conv_light", "depthwise", "conv_heavy"]
        assert kinds[state.blueprint[host, slot]] == birth["blueprint"]
        if "contribution" in record:
            assert record["contribution"] == pytest.approx(state.contribution[host, slot], abs=1e-4)
            assert state.measured[host, slot]


def test_illegal_decisions_are_marked() -> None:
    env = build_env(check([*TINY, "agent=wait"]), split=Split.TRAINING)
    steps: list[Transition] = []

    class Stubborn:
        """Prunes an empty slot."""

        def start(self, num_hosts: int) -> dict[str, Any]:
            return {}

        def act(self, observation: Any, state: Any, **_: Any) -> Any:
            op_N = np.array([Op.WAIT, Op.PRUNE, Op.PRUNE if steps else Op.GERMINATE, Op.WAIT])
            return Decision(action=compose(observation, env.layout, op_N, np.zeros(4, np.int64)), state=state)

    with closing(env), np.errstate(all="ignore"):
        env.reset()
        play(env, Stubborn(), record=steps.append)
    every = decisions(env.layout, 1, steps)
    records = [record for record in every if record["id"].startswith("1/1/")]
    assert len(records) == 14
    assert all(record["refused"] and record["seed"] is None and record["op"] == "prune" for record in records)
    followed = [record for record in every if record["id"].startswith("1/2/")]
    gone = next(rank for rank, record in enumerate(followed) if record["op"] == "prune" and not record["refused"])
    assert {record["seed"] for record in followed[: gone + 1]} == {"1/2/0"}
    assert {record["seed"] for record in followed[gone + 1 :]} == {None}, "its seed is gone"


def test_decisions_are_written_with_details_and_equally_after_a_resume(tmp_path: Path) -> None:
    words = [*TINY, "telemetry.detail_every=2", "agent.epochs=1", "agent.minibatches=1"]
    Trainer(check([*words, "updates=3"]), tmp_path / "whole").run()
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    Checkpoints(tmp_path / "parts" / CHECKPOINTS).latest().unlink()  # as if killed before the last update was saved
    with (tmp_path / "parts" / "decisions.jsonl").open("a") as file:
        file.write('{"update": 3, "id": "torn')
    Trainer(check([*words, "updates=3"]), tmp_path / "parts").run()
    whole, parts = ((tmp_path / name / "decisions.jsonl").read_text().splitlines() for name in ("whole", "parts"))
    assert {json.loads(line)["update"] for line in whole} == {2, 3}
    assert whole == parts
    assert all(0 < json.loads(line)["probability"] <= 1 for line in whole)
    Trainer(check([*TINY, "updates=1", "telemetry.decisions=false"]), tmp_path / "none").run()
    assert not (tmp_path / "none" / "decisions.jsonl").exists()
