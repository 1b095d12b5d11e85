"""The sandbox as an environment of the command line: metrics, refusals, Gymnasium's interface, and held-out hosts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from esper.cli.overrides import check
from esper.config import Config, ConfigError
from esper.env.actions import Head, Op, segments
from esper.env.base import Environment
from esper.env.sandbox import SandboxEnv
from esper.env.sandbox_rules import SandboxRules
from esper.task.instances import Split
from esper.telemetry.jsonl import read_records
from esper.training.environment import build_env
from esper.training.trainer import Trainer

SMALL = ["env=sandbox", "hosts=32", "steps=5", "telemetry=quiet"]


def config(*overrides: str) -> Config:
    return check([*SMALL, *overrides])


def records(folder: Path, *overrides: str) -> list[dict[str, float]]:
    Trainer(config(*overrides), folder).run()
    return read_records(folder / "metrics.jsonl")


@pytest.mark.parametrize("agent", ["wait", "random", "ppo"])
def test_metrics_of_a_run(tmp_path: Path, agent: str) -> None:
    found = records(tmp_path, f"agent={agent}", "updates=2", "env.light_accuracy=0.9")
    assert [record["update"] for record in found] == [1, 2]
    rules = SandboxRules(num_steps=5)
    highest = rules.worth_QSK.max() * (5 + rules.keep_bonus)
    for record in found:
        optimum, share = record["sandbox/optimum"], record["sandbox/share_of_optimum"]
        assert 0 < optimum < highest
        assert share == pytest.approx(record["policy/return"] / optimum)
        # The optimum is an expectation, and the mean of 32 hosts may exceed it by chance: six standard errors at most.
        assert share <= 1 + 6 * highest / 2 / np.sqrt(32) / optimum
        assert sum(record[f"action/{op.name.lower()}"] for op in Op) == pytest.approx(1)
    if agent == "wait":
        assert {(record["policy/return"], record["host/seeds_germinated"]) for record in found} == {(0, 0)}
    else:
        assert all(record["host/seeds_germinated"] > 0 for record in found)


def test_the_optimum_depends_on_the_keys(tmp_path: Path) -> None:
    def optimum(*overrides: str) -> float:
        env = build_env(config("agent=wait", *overrides), split=Split.TRAINING)
        assert isinstance(env, SandboxEnv)
        return env.optimum

    plain = optimum()
    assert optimum("env.light_accuracy=0.95") > plain
    assert optimum("env.keep_bonus=8") > plain
    assert optimum("env.rent_scale=2") < plain
    assert optimum("steps=6") > plain
    assert optimum("slots.where=[r0c0]") < plain


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("task=mnist5k", "task=mnist5k has no effect with env=sandbox: leave it out"),
        ("task.batch_size=5", r"task\.batch_size=5 has no effect with env=sandbox"),
        ("reward=sparse", "reward=sparse has no effect with env=sandbox"),
        ("reward_mode=sparse", "reward_mode=sparse has no effect with env=sandbox"),
        ("blueprint=[norm]", r"blueprint=\[norm\] has no effect with env=sandbox"),
        ("devices=[cpu]", r"devices=\[cpu\] has no effect with env=sandbox"),
        ("governor=off", "governor=off has no effect with env=sandbox"),
        ("counterfactuals.orders=4", r"counterfactuals\.orders=4 has no effect with env=sandbox"),
        ("slots=all", r"env=sandbox needs slots\.max_seeds=1, got 0: choose slots=one_seed"),
        ("slots=three", "env=sandbox "),
        ("slots.where=[r9c9]", r"slots\.where=r9c9 is not a slot of this host: it has r0c0, r0c1, r0c2"),
        ("gates=strict", "gates=strict has no effect with env=sandbox: leave it out"),
        ("agent.heads.tempo=slow", r"leave agent\.heads out"),
        ("agent.heads.tempo=free", r"leave agent\.heads out"),
        ("steps=25", "steps=25 is too long for the optimum of env=sandbox: set steps to at most 24"),
        ("agent=schedule agent.blueprint=norm", r"agent\.blueprint=norm is not available: choose one of kind0, kind1"),
        ("env.light_accuracy=0.3", r"env\.light_accuracy must be in \[1/3, 1\], got 0\.3"),
        ("env.rent_scale=-1", r"env\.rent_scale must be finite and at least 0, got -1"),
    ],
)
def test_overrides_without_effect_in_the_sandbox_are_refused(override: str, sentence: str) -> None:
    config()
    config("agent=schedule", "agent.blueprint=kind0")
    with pytest.raises(ConfigError, match=sentence) as raised:
        config(*override.split())
    assert "\n" not in str(raised.value)


# ---- Gymnasium


def sandbox(split: Split = Split.TRAINING, **changes: Any) -> SandboxEnv:
    return SandboxEnv(SandboxRules(num_steps=6), **({"num_hosts": 12, "split": split} | changes))


def legal_action(env: SandboxEnv, observation: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Return a legal random action of every host."""
    action = np.zeros((env.num_envs, len(Head)), dtype=np.int64)
    for host in range(env.num_envs):
        pairs = np.argwhere(observation["legal_slots"][host])
        action[host, :2] = pairs[rng.integers(len(pairs))]
        for head, place in segments(env.layout.head_sizes).items():
            action[host, head] = rng.choice(np.flatnonzero(observation["legal_values"][host, place]))
    return action


def test_the_sandbox_is_a_gymnasium_vector_env() -> None:
    env, rng = sandbox(), np.random.default_rng(0)
    assert isinstance(env, VectorEnv)
    held: Environment = env
    assert held.num_envs == 12
    observation, info = env.reset(seed=3)
    assert (env.root, env.episode, info) == (3, 0, {})
    for episode in range(2):
        for step in range(6):
            assert env.episode == episode
            assert env.observation_space.contains(observation)
            action = legal_action(env, observation, rng)
            assert env.action_space.contains(action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert reward.shape == terminated.shape == truncated.shape == (12,)
            assert reward.dtype == np.float32
            assert terminated.all() == terminated.any() == (step == 5)
            assert not truncated.any()
            assert (info["op"] == action[:, Head.OP]).all(), "legal actions are carried out"
    assert env.observation_space.contains(observation), "the first observation of the next episode"
    env.close()


def test_an_illegal_action_has_no_effect() -> None:
    env, other = sandbox(), sandbox()
    env.reset()
    other.reset()
    illegal = np.zeros((12, len(Head)), dtype=np.int64)
    illegal[:, Head.OP] = Op.FOSSILIZE
    one, two = env.step(illegal), other.step(np.zeros_like(illegal))
    assert (one[4]["op"] == Op.WAIT).all()
    assert all(np.array_equal(one[0][name], two[0][name]) for name in one[0])


def hosts_of(env: SandboxEnv, episode: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return kinds and lights of an episode, in which alone hosts differ."""
    env.reset(options={"episode": episode})
    return env.kind_N, env.light_NT


def test_seed_split_episode_and_index_determine_a_host() -> None:
    kind, light = hosts_of(sandbox())
    few_kind, few_light = hosts_of(sandbox(num_hosts=5))
    assert np.array_equal(kind[:5], few_kind)
    assert np.array_equal(light[:5], few_light)
    changed = [
        hosts_of(sandbox(Split.HELD_OUT)),
        hosts_of(sandbox(), episode=1),
        hosts_of(sandbox(seed=1)),
    ]
    for other_kind, other_light in changed:
        assert not np.array_equal(light, other_light)
        assert not np.array_equal(kind, other_kind)
    env = sandbox()
    hosts_of(env, 7)
    assert np.array_equal(hosts_of(env)[1], light), "independent of earlier episodes"


def test_twins_share_kind_and_lights() -> None:
    kind, light = hosts_of(sandbox(num_twins=3))
    for array in (kind, light):
        groups = array.reshape(4, 3, -1)
        assert (groups == groups[:, :1]).all()
    assert len(np.unique(light, axis=0)) > 1
