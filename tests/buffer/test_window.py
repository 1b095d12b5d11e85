"""The window keeps the last rollouts, a checkpoint holds them, and a run that learns from them resumes exactly."""

# T steps, N hosts

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.agent.ppo import ppo
from esper.agent.ppo.ppo import PPO
from esper.buffer.rollout import Rollout
from esper.buffer.transition import Transition
from esper.buffer.window import WindowBuffer, WindowConfig
from esper.checkpoint import Checkpoints, load
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.env.actions import Head
from esper.telemetry.jsonl import read_records
from esper.training.run_folder import CHECKPOINTS
from esper.training.trainer import Trainer
from tests.agent.small_policy import SPEC, make
from tests.agent.toy_envs import random_observation, random_rollout


def transition(agent: PPO, rng: np.random.Generator, step: int) -> Transition:
    hosts = SPEC.num_hosts
    observation, first = random_observation(SPEC, rng), np.full(hosts, step == 0)
    decision = agent.act(observation, agent.start(hosts), is_init=first, uniform=rng.random((hosts, len(Head))))
    return Transition(
        observation=observation,
        decision=decision,
        reward_N=rng.standard_normal(hosts).astype(np.float32),
        terminated_N=np.full(hosts, step == SPEC.num_steps - 1),
        is_init_N=first,
        rolled_back_N=np.zeros(hosts, dtype=np.bool_),
    )


def collect(buffer: WindowBuffer, number: int) -> None:
    """Fill the rollout number `number`."""
    agent, rng = make(), np.random.default_rng(number)
    buffer.begin(SPEC)
    for step in range(SPEC.num_steps):
        assert not buffer.ready()
        buffer.add(transition(agent, rng, step))
    assert buffer.ready()


def tensors(rollout: Rollout) -> dict[str, torch.Tensor]:
    """All tensors of a rollout by name."""
    return {name: value for name, value in vars(rollout).items() if torch.is_tensor(value)} | rollout.seen.tensors()


def equal(one: Rollout, two: Rollout) -> bool:
    ours, theirs = tensors(one), tensors(two)
    return ours.keys() == theirs.keys() and all(
        torch.equal(tensor, theirs[name]) and tensor.dtype == theirs[name].dtype for name, tensor in ours.items()
    )


def test_the_window_holds_the_newest_rollouts_in_order() -> None:
    buffer, seen = WindowConfig(rollouts=3).build(), []
    assert not buffer.ready()
    for number in range(5):
        collect(buffer, number)
        seen.insert(0, buffer.rollouts()[0])
        assert [id(rollout) for rollout in buffer.rollouts()] == [id(rollout) for rollout in seen[:3]]
    assert not equal(seen[0], seen[1])


def test_an_incomplete_rollout_does_not_enter_the_window() -> None:
    buffer = WindowConfig(rollouts=2).build()
    collect(buffer, 0)
    (whole,) = buffer.rollouts()
    buffer.begin(SPEC)
    buffer.add(transition(make(), np.random.default_rng(1), 0))
    collect(buffer, 2)
    assert len(buffer.rollouts()) == 2
    assert buffer.rollouts()[1] is whole


def test_a_checkpoint_holds_the_window(tmp_path: Path) -> None:
    buffer, restored = WindowConfig(rollouts=3).build(), WindowConfig(rollouts=3).build()
    for number in range(4):
        collect(buffer, number)
    path = Checkpoints(tmp_path).save({"buffer": buffer.state_dict()}, 1)
    restored.load_state_dict(load(path)["buffer"])
    for kept in (buffer, restored):
        collect(kept, 4)
    assert len(restored.rollouts()) == len(buffer.rollouts()) == 3
    assert all(equal(one, two) for one, two in zip(buffer.rollouts(), restored.rollouts(), strict=True))


@pytest.mark.parametrize("unfinished", [False, True])
def test_an_empty_window_is_restored_empty(tmp_path: Path, unfinished: bool) -> None:
    buffer, restored = WindowConfig().build(), WindowConfig().build()
    if unfinished:
        buffer.begin(SPEC)
    collect(restored, 0)
    restored.load_state_dict(load(Checkpoints(tmp_path).save({"buffer": buffer.state_dict()}, 0))["buffer"])
    collect(restored, 1)
    assert len(restored.rollouts()) == 1


def test_the_share_of_clipped_decisions_is_that_of_the_narrower_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(ppo, "diagnose", lambda *_, clip, **__: seen.append(clip) or {"kl": 0.0})
    for count in (1, 3):
        agent = make()
        rollout, *earlier = (random_rollout(agent, np.random.default_rng(seed)) for seed in range(count))
        agent.update(rollout, progress=0.0, generator=torch.Generator(), earlier=earlier)
    assert seen == [0.2, 0.1]


# ---- rollouts


def test_a_rollout_survives_its_state() -> None:
    rollout = random_rollout(make(), np.random.default_rng(0), resets=0.3)
    back = Rollout.from_state(rollout.state_dict())
    assert equal(rollout, back)
    assert vars(rollout).keys() == vars(back).keys()
    assert back.full


def test_joined_rollouts_stand_side_by_side() -> None:
    agent = make()
    parts = [random_rollout(agent, np.random.default_rng(seed), resets=0.3) for seed in range(3)]
    before = [{name: tensor.clone() for name, tensor in tensors(part).items()} for part in parts]
    whole = Rollout.joined(parts)
    assert (whole.num_hosts, whole.num_steps, whole.full) == (3 * SPEC.num_hosts, SPEC.num_steps, True)
    for index, part in enumerate(parts):
        rows = slice(index * SPEC.num_hosts, (index + 1) * SPEC.num_hosts)
        for name, tensor in tensors(part).items():
            assert torch.equal(tensors(whole)[name][:, rows], tensor), name
            assert torch.equal(tensor, before[index][name]), "joining changed its parts"
    assert Rollout.joined(parts[:1]) is parts[0]


# ---- runs

WINDOW = [
    *("env=sandbox", "buffer=window", "buffer.rollouts=3", "agent.baseline=critic", "agent.twins=1"),
    *("hosts=8", "steps=4", "agent.hidden=8", "agent.epochs=2", "telemetry=quiet"),
]


def run(folder: Path, *overrides: str) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Metrics of a run but its times, and its newest checkpoint."""
    Trainer(check([*WINDOW, *overrides]), folder).run()
    newest = Checkpoints(folder / CHECKPOINTS).latest()
    assert newest is not None
    records = read_records(folder / "metrics.jsonl")
    return [{tag: value for tag, value in record.items() if not tag.startswith("time/")} for record in records], load(newest)


def same(one: Any, two: Any) -> bool:
    """True if two nested states are equal bit for bit."""
    if torch.is_tensor(one):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


class HalfWay(Exception):
    """The run ends here, as if it was killed."""


@pytest.mark.slow
def test_a_stopped_run_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learning rate falls over the run, so the stopped run must have all six updates in its config."""
    records, state = run(tmp_path / "whole", "updates=6")

    def collect_three(trainer: Trainer, *given: Any) -> Any:
        if trainer.update == 3:
            raise HalfWay
        return whole_collect(trainer, *given)

    whole_collect = Trainer.collect
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "collect", collect_three)
        with pytest.raises(HalfWay):
            run(tmp_path / "stopped", "updates=6")
    assert len(read_records(tmp_path / "stopped" / "metrics.jsonl")) == 3
    resumed_records, resumed_state = run(tmp_path / "stopped", "updates=6")
    assert resumed_records == records
    for part in ("agent", "buffer", "env", "watch"):
        assert same(resumed_state[part], state[part]), part
    assert len(state["buffer"]["rollouts"]) == 2
    without, _ = run(tmp_path / "without", "updates=6", "buffer.rollouts=2")
    assert without[:2] == records[:2], "two rollouts fit into either window"
    assert without[2:] != records[2:]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["agent.baseline=twins", "agent.twins=2"], "buffer=window needs agent.baseline=critic, got twins"),
        (["agent.chunk=2"], "buffer=window needs agent.chunk=0, got 2"),
        (["agent.surrogate=per_head"], "buffer=window needs agent.surrogate=joint, got per_head"),
        (["buffer.rollouts=1"], "buffer.rollouts must be at least 2, got 1: buffer=rollout keeps only the newest"),
    ],
)
def test_incompatible_agent_options_are_refused(overrides: list[str], sentence: str) -> None:
    check(WINDOW)
    with pytest.raises(ConfigError, match=sentence):
        check([*WINDOW, *overrides])


def test_a_window_without_a_learner_is_refused() -> None:
    with pytest.raises(ConfigError, match="buffer=window has no effect, since this agent does not learn from a buffer"):
        check(["buffer=window", "agent=wait"])
    check(["buffer=rollout", "agent=wait"])
