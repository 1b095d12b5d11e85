"""The static control: recorded topologies are read back exactly and grown host by host."""

# N hosts, S slots, K blueprints

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.agent.scripted.base import RandomConfig
from esper.agent.scripted.replay import EMPTY, Replay, ReplayConfig, Topology, read, topologies
from esper.buffer.transition import Transition
from esper.cli.overrides import check
from esper.env.actions import RELEVANT, STYLES, Head, HeadsConfig, Op, parameters_legal
from esper.env.episode import Episode
from esper.env.spec import Observation
from esper.governor.base import Cause, Verdict
from esper.lifecycle.roles import Blend
from esper.lifecycle.stages import Stage
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play
from tests.agent.staged import SPEC, see
from tests.agent.toy_envs import random_observation

FREE = HeadsConfig(style="free")


def seed(slot: int, blueprint: int, blend: str = "add") -> dict[str, str]:
    return {"slot": f"slot{slot}", "blueprint": f"blueprint{blueprint}", "blend": blend}


def file(folder: Path, known: list[Topology], **more: Any) -> str:
    path = folder / "evaluation.json"
    path.write_text(json.dumps({"hosts": {"policy": {"kept": known}}} | more))
    return str(path)


def act(controller: Replay, observation: Observation, hosts: slice = slice(None)) -> np.ndarray:
    state = {name: tensor[hosts] for name, tensor in controller.start(4).items()}
    part = Observation(**{name: getattr(observation, name)[hosts] for name in Observation.__dataclass_fields__})
    num = len(part.features)
    return controller.act(part, state, is_init=np.ones(num, np.bool_), uniform=np.zeros((num, len(Head)))).action


# ---- deciding

FOUR: list[Topology] = [[seed(1, 2)], [seed(0, 1, "gate"), seed(2, 0, "multiply")], [], [seed(2, 1)]]


def test_each_host_grows_its_own_topology() -> None:
    observation = see(0, legal={Op.GERMINATE: [0, 1, 2]})
    observation.legal_values[:] = True
    action = act(Replay(FOUR, SPEC), observation)
    styles = list(STYLES)
    assert action[:, : Head.TEMPO].tolist() == [
        [Op.GERMINATE, 1, 2, styles.index("linear_add")],
        [Op.GERMINATE, 0, 1, styles.index("gated")],
        [Op.WAIT, 0, 0, 0],
        [Op.GERMINATE, 2, 1, styles.index("linear_add")],
    ]
    observation.legal_slots[:, Op.GERMINATE, :2] = False
    second = act(Replay(FOUR, SPEC), observation)[1, : Head.TEMPO].tolist()
    assert second == [Op.GERMINATE, 2, 0, styles.index("linear_multiply")]


def test_germinating_precedes_fossilizing_precedes_advancing() -> None:
    controller = Replay(FOUR, SPEC)
    legal = {Op.GERMINATE: [2], Op.FOSSILIZE: [0], Op.ADVANCE: [1], Op.PRUNE: [0, 1]}
    observation = see(5, legal=legal)
    observation.legal_values[:] = True
    assert act(controller, observation)[:, Head.OP].tolist() == [Op.FOSSILIZE, Op.GERMINATE, Op.FOSSILIZE, Op.GERMINATE]
    observation.legal_slots[:, Op.FOSSILIZE] = False
    assert act(controller, observation)[:, Head.OP].tolist() == [Op.ADVANCE, Op.GERMINATE, Op.ADVANCE, Op.GERMINATE]


@settings(max_examples=50, deadline=None)
@given(number=st.integers(0, 10**6), legal=st.sampled_from([0.2, 0.9]))
def test_actions_are_legal_and_hosts_are_independent(number: int, legal: float) -> None:
    observation = random_observation(SPEC, np.random.default_rng(number), free=True, legal=legal)
    controller = Replay(FOUR, SPEC)
    action = act(controller, observation)
    assert observation.legal_slots[np.arange(4), action[:, Head.OP], action[:, Head.SLOT]].all()
    assert parameters_legal(action, observation.legal_values, SPEC.head_sizes).all()
    assert (action[~RELEVANT[action[:, Head.OP]]] == 0).all()
    assert np.array_equal(act(controller, observation, slice(1, 3)), action[1:3])


# ---- the file


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_recorded_topology_is_read_back_exactly(data: st.DataObject) -> None:
    cells = st.lists(st.integers(EMPTY, 2), min_size=12, max_size=12)
    kept_NS = np.array(data.draw(cells)).reshape(4, 3)
    blend_NS = np.array(data.draw(st.lists(st.sampled_from(list(Blend)), min_size=12, max_size=12))).reshape(4, 3)
    alpha_NS = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=12, max_size=12)), np.float32).reshape(4, 3)
    known = topologies(kept_NS, blend_NS, alpha_NS, SPEC)
    controller = Replay(json.loads(json.dumps(known)), SPEC)
    kept_NS = np.where(alpha_NS > 0, kept_NS, EMPTY)  # what is switched off is no part of the network
    assert np.array_equal(controller.kept_NS, kept_NS)
    for host, slot in np.argwhere(kept_NS != EMPTY):
        blends = {blend for (blend, _), may in zip(STYLES.values(), controller.may_NSW[host, slot], strict=True) if may}
        assert blends == {Blend(blend_NS[host, slot])}


def test_a_record_holds_seed_and_episode_of_its_hosts(tmp_path: Path) -> None:
    record = read(file(tmp_path, FOUR, seed=3, episode=2), "policy")
    assert (record.topologies, record.seed, record.episode) == (FOUR, 3, 2)
    by_hand = read(file(tmp_path, FOUR), "policy")
    assert (by_hand.seed, by_hand.episode) == (None, None)
    config = ReplayConfig(topology=file(tmp_path, FOUR), heads=FREE)
    assert np.array_equal(config.build(SPEC, seed=0).kept_NS, Replay(FOUR, SPEC).kept_NS)


@pytest.mark.parametrize(
    ("known", "more", "message"),
    [
        (FOUR[:3], {}, r"has 3 hosts, but the run has 4: set hosts to at most 3"),
        ([[{"slot": "r9c9", "blueprint": "blueprint0", "blend": "add"}]] * 4, {}, r"has slot r9c9, which is not in use"),
        ([[{"slot": "slot0", "blueprint": "norm", "blend": "add"}]] * 4, {}, r"has blueprint norm, which is not available"),
        (
            [[seed(0, 0, "gate")]] * 4,
            {},
            r"blend gate, which agent\.heads\.style=linear_add excludes: set agent\.heads\.style=free",
        ),
        ([[seed(0, 0, "times")]] * 4, {}, r"holds no topologies"),
        ([[{"slot": "slot0"}]] * 4, {}, r"holds no topologies"),
        (FOUR, {"hosts": {"heuristic": {"kept": FOUR}}}, r"agent\.controller=policy is not in .*: choose one of heuristic"),
        (FOUR, {"hosts": [1]}, r"holds no topologies"),
    ],
)
def test_a_topology_that_does_not_fit_is_refused(
    tmp_path: Path, known: list[Topology], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayConfig(topology=file(tmp_path, known, **more)).build(SPEC, seed=0)


def test_an_unreadable_topology_file_is_named(tmp_path: Path) -> None:
    for path, message in (("", "is not set"), (str(tmp_path / "nowhere"), "cannot be read"), (str(tmp_path), "cannot be read")):
        with pytest.raises(ValueError, match=message):
            ReplayConfig(topology=path).build(SPEC, seed=0)
    (tmp_path / "torn.json").write_text('{"hosts": ')
    with pytest.raises(ValueError, match="holds no topologies"):
        ReplayConfig(topology=str(tmp_path / "torn.json")).build(SPEC, seed=0)


def test_a_cap_below_the_recorded_number_of_seeds_is_refused(tmp_path: Path) -> None:
    config = ReplayConfig(topology=file(tmp_path, FOUR), heads=FREE)
    known = {"slots": SPEC.slot_names, "in_use": np.ones(3, np.bool_), "blueprints": SPEC.blueprint_names, "hosts": 4}
    config.check_hosts(cap=2, **known)
    config.check_hosts(cap=0, **known)
    with pytest.raises(ValueError, match=r"has 2 seeds in a host, but slots\.max_seeds=1: set slots\.max_seeds=2"):
        config.check_hosts(cap=1, **known)


# ---- in a run


def test_a_replay_plants_at_once_and_ends_with_the_recorded_topology() -> None:
    overrides = ["hosts=4", "steps=14", "slots=every_block", "task.epoch_samples=256", "agent=random", "agent.heads.style=free"]
    env = build_env(check(overrides), split=Split.HELD_OUT)
    env.reset(options={"episode": 0})
    grown = play(env, RandomConfig(wait_weight=0.3).build(env.layout, seed=0))
    known = topologies(grown.kept_NS, grown.blend_NS, grown.alpha_NS, env.layout)
    assert any(known)
    assert len({json.dumps(topology) for topology in known}) > 1, "hosts differ"
    assert len({seed["blend"] for topology in known for seed in topology}) > 1, "seeds too"
    planted: list[np.ndarray] = []

    def record(step: Transition) -> None:
        planted.append(step.decision.action[:, Head.OP] == Op.GERMINATE)

    env.reset(options={"episode": 0})
    again: Episode = play(env, Replay(known, env.layout), record=record)
    env.close()
    assert topologies(again.kept_NS, again.blend_NS, again.alpha_NS, env.layout) == known
    counts = np.array([len(topology) for topology in known])
    assert np.array_equal(np.array(planted), np.arange(14)[:, None] < counts), "one a step, from the first on"


def test_a_seed_lost_by_a_rollback_is_not_recorded_as_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["hosts=2", "steps=9", "slots=every_block", "task.epoch_samples=256", "agent=schedule", "agent.at=4"]
    config = check(overrides)
    env = build_env(config, split=Split.HELD_OUT, test_at_end=True)
    env.reset(options={"episode": 0})
    judge, measure, committed = env.governor.judge, env._test_accuracy, []
    fossilized: list[int] = []

    def strict(*seen: Any) -> Verdict:
        """Roll the first host back in the step that fossilizes its seed."""
        kept_N = env.state.within(Stage.FOSSILIZED).any(axis=1)
        fossilized.append(int(kept_N.sum()))
        healthy = judge(*seen)
        cause_N = np.where(kept_N & (np.arange(2) == 0), Cause.DIVERGENCE, Cause.HEALTHY)
        return dataclasses.replace(healthy, cause_N=cause_N)

    def look(alpha_NS: np.ndarray) -> np.ndarray:
        committed.append(env.state.within(Stage.FOSSILIZED).sum(axis=1).tolist())
        return measure(alpha_NS)

    monkeypatch.setattr(env.governor, "judge", strict)
    monkeypatch.setattr(env, "_test_accuracy", look)
    episode = play(env, config.agent.build(env.layout, seed=0))
    env.close()
    assert fossilized == [0] * 8 + [2], "both in the last step"
    assert committed == [[0, 1]]
    assert (episode.kept_NS != EMPTY).sum(axis=1).tolist() == [0, 1]
