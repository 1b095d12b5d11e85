"""Agents that react to a fall of the accuracy: what they wait for, what they plant, and exact resumption."""

# N hosts

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.agent.bandit import Bandit
from esper.agent.event_oracle import EventOracleConfig
from esper.agent.react import ReactConfig
from esper.agent.react_bandit import ReactBanditConfig
from esper.agent.scripted.rule import Reaction, ReactRule
from esper.buffer.transition import Decision, State, Transition
from esper.cli.overrides import check
from esper.env.actions import Head, Op
from esper.env.foresight import foresight_names
from esper.env.observation import log_potential
from esper.env.spec import Observation
from esper.telemetry.jsonl import read_records
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer
from tests.agent.staged import SPEC, advised, see

TINY = ["hosts=4", "steps=9", "slots=every_block", "telemetry=quiet", "task.epoch_samples=128", "task.valid_samples=100"]
NEW_N = np.zeros(4, np.bool_)
FREE = {Op.GERMINATE: [0, 1, 2]}


def at(
    accuracy: float, *, step: int = 1, legal: dict[Op, list[int]] | None = None, potential: float = 0.0, **known
) -> Observation:
    seen = see(step, legal=FREE if legal is None else legal, accuracy=accuracy / 100, **known)
    names = [f"potential_of_blueprint{kind}" for kind in range(3)]
    for kind, name in enumerate(names):  # the largest potential is that of the last blueprint in the middle slot
        value = potential * np.array([0.5, 1.0, 0.2]) * (1 + kind) / 3
        seen.slots[:, :, SPEC.slot_feature_names.index(name)] = log_potential(value.astype(np.float32))
    return seen


def play(agent: Reaction | Bandit, seen: list[Observation]) -> list[tuple[str, int, int]]:
    """Return op, slot and blueprint of the first host at each observation."""
    state: State = agent.start(4)
    found = []
    for one in seen:
        decision: Decision = agent.act(one, state, is_init=NEW_N, uniform=np.full((4, len(Head)), 0.999))
        state = decision.state
        assert (decision.action == decision.action[0]).all()
        op, slot, kind = decision.action[0, [Head.OP, Head.SLOT, Head.BLUEPRINT]].tolist()
        found.append((Op(op).name.lower(), slot, kind))
    return found


def ops(found: list[tuple[str, int, int]]) -> list[str]:
    return [op for op, _, _ in found]


WAIT = ("wait", 0, 0)


@pytest.mark.parametrize("slot", [0, None])
def test_a_rule_plants_when_the_accuracy_falls_from_its_highest_value(slot: int | None) -> None:
    rule = ReactRule(trigger="drop", threshold=5.0, slot=slot, blueprint=1)
    levels = [50, 60, 70, 66, 64, 40, 39, 44, 38]
    planted = ("germinate", 1 if slot is None else slot, 1)
    assert play(Reaction(rule, SPEC), [at(level, potential=1.0) for level in levels]) == [
        WAIT, WAIT, WAIT, WAIT, planted, planted, WAIT, WAIT, planted,
    ]  # fmt: skip


def test_a_rule_plants_the_largest_potential_when_it_rises() -> None:
    rule = ReactRule(trigger="potential", threshold=2.0)
    sizes = [0.4, 0.2, 0.3, 0.41, 0.5, 0.83]
    planted = ("germinate", 1, 2)
    assert play(Reaction(rule, SPEC), [at(50, potential=size) for size in sizes]) == [WAIT, WAIT, WAIT, planted, WAIT, planted]
    later = [at(50, step=step, potential=size) for step, size in enumerate([1e-6, 1.0, 1.5, 2.5])]
    assert play(Reaction(rule, SPEC), later) == [WAIT, WAIT, WAIT, planted], "the first one is measured in another way"


def test_a_patient_rule_waits_until_a_fall_has_lasted() -> None:
    patient = Reaction(ReactRule(trigger="drop", threshold=5.0, patience=1), SPEC)
    assert ops(play(patient, [at(50), at(40), at(40)])) == ["wait", "wait", "germinate"]
    assert ops(play(patient, [at(50), at(40), at(50), at(40)])) == ["wait"] * 4


def test_a_new_episode_starts_without_the_level_of_the_last_one() -> None:
    rule = Reaction(ReactRule(trigger="drop", threshold=5.0), SPEC)
    assert ops(play(rule, [at(90, step=3), at(50, step=0), at(44, step=1)])) == ["wait", "wait", "germinate"]


def test_a_rule_has_one_seed_at_a_time_and_takes_back_what_does_not_help() -> None:
    busy = {"slot_stage_training": np.array([1, 0, 0])}
    seen = [at(50), at(10, **busy), at(10)]
    assert ops(play(Reaction(ReactRule(trigger="drop", threshold=5.0), SPEC), seen)) == ["wait", "wait", "germinate"]
    assert ops(play(Reaction(ReactRule(trigger="start"), SPEC), [at(50, step=0)])) == ["germinate"]
    assert ops(play(Reaction(ReactRule(), SPEC), [at(50), at(1)])) == ["wait", "wait"]
    ripe = {Op.FOSSILIZE: [0], Op.PRUNE: [0]}
    good, bad = ({"slot_contribution": 0.1 * sign, "slot_contribution_measured": 1.0} for sign in (1, -1))
    careful, trusting = ReactRule(errors=0.0), ReactRule(errors=None)
    assert ops(play(Reaction(careful, SPEC), [at(50, legal=ripe, **good), at(50, legal=ripe, **bad)])) == ["fossilize", "prune"]
    assert ops(play(Reaction(trusting, SPEC), [at(50, legal=ripe, **bad)])) == ["fossilize"]


def test_a_rule_that_teaches_wants_a_seed_until_its_pupil_plants() -> None:
    fallen = [at(level) for level in (70, 60, 60, 60, 54, 50)]
    wait, plant = [0, 0, 0], [Op.GERMINATE, 0, 0]
    rule = Reaction(ReactRule(trigger="drop", threshold=9.5), SPEC)
    assert advised(rule, fallen) == [wait, *[plant] * 5]
    assert advised(rule, fallen, follows=[2]) == [wait, plant, plant, wait, wait, plant]
    searched = ReactConfig().build(SPEC, seed=0)
    searched.play(rule.rule)
    assert advised(searched, fallen) == [wait, *[plant] * 5]


@pytest.mark.slow
def test_a_bandit_that_teaches_decides_anew_until_its_pupil_does_what_it_wants() -> None:
    bandit, rng = ReactBanditConfig(drop=10.0).build(SPEC, seed=0), np.random.default_rng(0)
    for _ in range(60):
        bandit.begin(0)
        state = bandit.start(4)
        for step, level in enumerate([70, 40, 40]):
            seen = at(level, step=step)
            decision = bandit.act(seen, state, is_init=NEW_N, uniform=rng.random((4, len(Head))))
            state = decision.state
            bandit.observe(transition(seen, decision, 1.0 * (decision.action[:, Head.OP] == Op.GERMINATE)))
        bandit.learn(0.0)
    ripe = at(40, legal={Op.FOSSILIZE: [0, 1, 2]}, slot_stage_holding=1.0)
    seen = [at(70, step=0), at(40), ripe, ripe, ripe, ripe]
    assert [op for op, *_ in advised(bandit, seen, follows=[1])] == [Op.WAIT, Op.GERMINATE, *[Op.FOSSILIZE] * 4]
    assert [op for op, *_ in advised(bandit, seen, follows=[1, 3])] == [
        Op.WAIT,
        Op.GERMINATE,
        *[Op.FOSSILIZE] * 2,
        *[Op.WAIT] * 2,
    ]
    passing, lasting = [at(level, step=step) for step, level in enumerate([70, 40, 70, 70])], [at(70, step=0), *[at(40)] * 3]
    assert [op for op, *_ in advised(bandit, passing)] == [Op.WAIT, Op.GERMINATE, Op.WAIT, Op.WAIT]
    assert [op for op, *_ in advised(bandit, lasting)] == [Op.WAIT, *[Op.GERMINATE] * 3]


def test_a_search_tries_no_rule_twice_in_a_row() -> None:
    search = ReactConfig().build(SPEC, seed=0)
    search.best = ReactRule(trigger="start", slot=1, blueprint=2, errors=None)
    assert search.best not in [search.draw(at(50)) for search.tried in range(100)]


def test_without_growth_potential_no_rule_uses_it() -> None:
    search = ReactConfig().build(SPEC, seed=0)
    for known in (False, True):
        drawn = []
        for search.tried in range(60):
            drawn.append(search.draw(at(50, slot_potential_measured=float(known))))
        assert {rule.trigger for rule in drawn} == {"start", "drop", *["potential"] * known}
        assert any(rule.slot is None for rule in drawn) == any(rule.blueprint is None for rule in drawn) == known


def transition(seen: Observation, decision: Decision, reward: np.ndarray) -> Transition:
    return Transition(
        observation=seen,
        decision=decision,
        reward_N=np.asarray(reward, np.float32),
        terminated_N=NEW_N,
        is_init_N=NEW_N,
        rolled_back_N=NEW_N,
    )


def test_the_search_keeps_the_best_rule_and_resumes() -> None:
    search = ReactConfig().build(SPEC, seed=3)

    def update() -> float:
        search.begin(search.tried)
        state, total = search.start(4), 0.0  # of the first planting
        for step, level in enumerate([50, 60, 40, 40]):
            seen = at(level, step=step, potential=1.0)
            decision = search.act(seen, state, is_init=NEW_N, uniform=np.zeros((4, len(Head))))
            state = decision.state
            op, slot, kind = decision.action[0, [Head.OP, Head.SLOT, Head.BLUEPRINT]].tolist()
            paid = float(op == Op.GERMINATE and not total) * (0.1 + (step == 2) + (slot == 2) + (kind == 1))
            search.observe(transition(seen, decision, np.full(4, paid)))
            total += paid
        search.learn(0.0)
        return total

    returns = [update() for _ in range(60)]
    assert returns[0] == 0
    assert search.best_return == pytest.approx(max(returns)) == pytest.approx(3.1)
    ((_, text),) = search.summary()
    assert text.startswith("when the accuracy falls by ")
    assert "plant blueprint1 in " in text
    again = ReactConfig().build(SPEC, seed=3)
    again.load_state_dict(search.state_dict())
    assert again.best == search.best
    assert again.draw(at(50)) == search.draw(at(50))
    turned = ReactConfig().build(replace(SPEC, blueprint_names=SPEC.blueprint_names[::-1]), seed=3)
    turned.load_state_dict(search.state_dict())
    assert search.best.blueprint is not None
    assert turned.best.blueprint == len(SPEC.blueprint_names) - 1 - search.best.blueprint, "a blueprint goes by its name"
    turned = ReactConfig().build(replace(SPEC, slot_names=SPEC.slot_names[::-1]), seed=3)
    turned.load_state_dict(search.state_dict())
    assert (search.best.slot, turned.best.slot) == (2, 0), "a slot goes by its name"
    with pytest.raises(ValueError, match=r"does not exist on these hosts, which have a"):
        ReactConfig().build(replace(SPEC, slot_names=("a",), blueprint_names=("b",)), seed=3).load_state_dict(search.state_dict())
    with pytest.raises(ValueError, match=r"^blueprint=blueprint1 in the best rule is not available: add it to blueprint$"):
        ReactConfig().build(replace(SPEC, blueprint_names=("b",)), seed=3).load_state_dict(search.state_dict())


@pytest.mark.slow
def test_a_bandit_that_reacts_learns_what_to_plant_from_what_it_sees_then() -> None:
    bandit = ReactBanditConfig(drop=10.0).build(SPEC, seed=0)
    rng = np.random.default_rng(0)

    def episode() -> np.ndarray:
        """Return the hosts that planted right: after the fall, the slot that the loss shows."""
        state, cue_N, right_N = bandit.start(4), rng.uniform(0, 1, 4), NEW_N.copy()
        for step, level in enumerate([70, 75, 40, 40]):
            seen = at(level, step=step, loss=cue_N if step == 2 else 0.5)
            decision = bandit.act(seen, state, is_init=NEW_N, uniform=rng.random((4, len(Head))))
            state = decision.state
            planted_N = decision.action[:, Head.OP] == Op.GERMINATE
            assert not (planted_N & (step < 2)).any()
            hit_N = planted_N & (decision.action[:, Head.SLOT] == np.where(cue_N < 0.5, 0, 2))
            if bandit._record is not None:  # rewards before the fall must not count
                bandit.observe(transition(seen, decision, hit_N + 100.0 * rng.random(4) * (step < 2)))
            right_N |= hit_N & (step == 2)
        return right_N

    for _ in range(120):
        bandit.begin(0)
        episode()
        bandit.learn(0.0)
    assert np.mean([episode() for _ in range(20)]) > 0.8


def test_a_host_without_room_for_a_seed_asks_for_no_decision() -> None:
    """Else the returns of hosts that hold a seed already would count as those of planting nothing."""
    bandit = ReactBanditConfig(drop=10.0).build(SPEC, seed=0)
    bandit.begin(0)
    state, kept = bandit.start(4), {"slot_stage_fossilized": np.array([1, 1, 1])}  # by slots.auto_advance
    looks = [at(70), at(50), at(70, legal={}, **kept), at(50, legal={}, **kept), at(45, **kept), at(44, **kept)]
    for seen in looks:
        decision = bandit.act(seen, state, is_init=NEW_N, uniform=np.full((4, len(Head)), 0.999))
        state = decision.state
        bandit.observe(transition(seen, decision, np.ones(4)))
    assert bandit._record is not None
    assert [step for step, *_ in bandit._record.decisions] == [1, 4], "the fall counts once there is room"


@pytest.mark.slow
@pytest.mark.parametrize("agent", [["agent=react"], ["agent=react_bandit"], ["agent=react_bandit", "agent.model=forest"]])
def test_a_resumed_run_equals_a_whole_one(agent: list[str], tmp_path: Path) -> None:
    config = check([*TINY, *agent, "updates=3"])
    Trainer(config, tmp_path / "whole").run()
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    find_checkpoint(str(tmp_path / "parts"), "resume").unlink()  # as if killed in its third update
    assert Trainer(config, tmp_path / "parts").run(), "it goes on"
    whole, parts = (read_records(tmp_path / place / "metrics.jsonl") for place in ("whole", "parts"))
    assert [without_details(record) for record in whole] == [without_details(record) for record in parts]


def without_details(record: dict[str, float]) -> dict[str, float]:
    """Return a record without the details of seeds, which the last update of a run has."""
    return {tag: value for tag, value in record.items() if not tag.startswith("seeds_")}


@pytest.mark.parametrize(("delay", "ahead"), [(0, True), (1, True), (2, True), (1, False)])
def test_an_oracle_decides_when_events_begin_or_end(delay: int, ahead: bool) -> None:
    spec = replace(SPEC, feature_names=(*SPEC.feature_names, *foresight_names(["invert", "mirror"])))
    oracle = EventOracleConfig(delay=delay, ahead=ahead).build(spec, seed=0)
    contexts, told_F = [], [[0.0] * (4 if ahead else 2)] * delay

    def choose(observation: Observation, uniform_NH: object, due_N: np.ndarray) -> np.ndarray:
        contexts.append(oracle._context(observation)[0].tolist())
        return np.full(4, 2)

    oracle._choose = choose  # type: ignore[method-assign]
    state, planted = {name: torch.full_like(part, 7) for name, part in oracle.start(4).items()}, []  # of an earlier episode
    for step, on in enumerate(([0, 0], [0, 0], [1, 0], [1, 0], [0, 0.5], [0, 1], [0, 0])):
        seen = at(50, step=step, slot_stage_fossilized=np.array([1, 0, 0]))  # kept at once, by slots.auto_advance
        told_F.append([*on, 0.25, 0.0] if ahead else on)
        told = np.tile([*on, 0.25, 0.0], (4, 1))
        seen = replace(seen, features=np.concatenate([seen.features, told], axis=1).astype(np.float32))
        decision = oracle.act(seen, state, is_init=NEW_N, uniform=np.zeros((4, len(Head))))
        planted.append(bool((decision.action[:, Head.OP] == Op.GERMINATE).all()))
        state = decision.state
    assert planted == ([False] * delay + [False, False, True, False, True, False, True])[:7]
    assert contexts == [told for told, due in zip(told_F, planted, strict=False) if due], "it predicts from what it was told"
    with pytest.raises(ValueError, match=r"add env\.timetable=true"):
        EventOracleConfig().build(SPEC, seed=0)


def test_an_oracle_decides_at_every_arrival_of_classes() -> None:
    spec = replace(SPEC, feature_names=(*SPEC.feature_names, *foresight_names(["arrive", "invert"])))
    oracle, due = EventOracleConfig().build(spec, seed=0), []
    level_N = np.full(4, np.nan, np.float32)
    for step, on in enumerate(([0, 0], [0.5, 0], [1, 0], [2, 0], [2, 1], [10, 1])):
        seen = at(50, step=step)
        seen = replace(seen, features=np.concatenate([seen.features, np.tile([*on, 0, 0], (4, 1))], axis=1).astype(np.float32))
        due_N, level_N = oracle._due(seen, level_N, np.ones(4, np.bool_))
        due.append(bool(due_N.all()))
    assert due == [False, True, False, True, True, True]


def test_a_bandit_refuses_decisions_of_other_features() -> None:
    """Such as those of an oracle of other kinds of events."""
    one, other = (
        EventOracleConfig().build(replace(SPEC, feature_names=(*SPEC.feature_names, *foresight_names([kind]))), seed=0)
        for kind in ("invert", "relabel")
    )
    one.load_state_dict(one.state_dict())
    with pytest.raises(
        ValueError, match=r"^this policy was trained on other observations .it observed event_relabel, event_ahead_relabel"
    ):
        one.load_state_dict(other.state_dict())
