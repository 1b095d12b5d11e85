"""Rollouts: storage, forfeits, minibatches of whole rows, and folding into chunks."""

# T steps, N hosts

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch

from esper.buffer.rollout import Rollout, TensorObservation
from esper.env.actions import Head, Op, legal_values
from esper.env.spec import EnvSpec, Observation

SPEC = EnvSpec(
    num_hosts=4,
    num_steps=3,
    slot_names=("first", "second"),
    blueprint_names=("norm", "conv"),
    seed_params=((6, 12), (44, 168)),
    feature_names=("a", "b", "c"),
    slot_feature_names=("x",),
)


@dataclass
class Made:
    action: np.ndarray
    log_prob: np.ndarray | None
    value: np.ndarray | None
    head_log_prob: np.ndarray | None = None


def observation(rng: np.random.Generator) -> Observation:
    legal = rng.random((4, len(Op), 2)) < 0.3
    legal[0] = False
    legal[:, Op.WAIT] = True
    return Observation(
        features=rng.standard_normal((4, 3)).astype(np.float32),
        slots=rng.standard_normal((4, 2, 1)).astype(np.float32),
        blueprints=rng.integers(0, 3, (4, 2)),
        legal_slots=legal,
        legal_values=legal_values(4, 2),
    )


def made(rng: np.random.Generator) -> Made:
    return Made(
        action=rng.integers(0, 2, (4, len(Head))),
        log_prob=rng.standard_normal(4).astype(np.float32),
        value=rng.standard_normal(4).astype(np.float32),
        head_log_prob=rng.standard_normal((4, len(Head))).astype(np.float32),
    )


def flags(*true: int) -> np.ndarray:
    return np.isin(np.arange(4), true)


def test_a_rollout_stores_every_step_until_it_is_full() -> None:
    rng = np.random.default_rng(0)
    rollout, given = Rollout(SPEC), []
    for t in range(3):
        assert not rollout.full
        step = (observation(rng), made(rng), rng.standard_normal(4).astype(np.float32), flags(t), flags(3 - t))
        rollout.add(step[0], step[1], reward=step[2], terminated=step[3], is_init=step[4])
        given.append(step)
    assert rollout.full
    for t, (seen, decision, reward, terminated, is_init) in enumerate(given):
        for entry in fields(TensorObservation):
            assert np.array_equal(getattr(rollout.seen, entry.name)[t], getattr(seen, entry.name)), entry.name
        assert np.array_equal(rollout.action_TNH[t], decision.action)
        assert np.array_equal(rollout.log_prob_TN[t], decision.log_prob)
        assert np.array_equal(rollout.value_TN[t], decision.value)
        assert np.array_equal(rollout.head_log_prob_TNH[t], decision.head_log_prob)
        assert np.array_equal(rollout.reward_TN[t], reward)
        assert np.array_equal(rollout.terminated_TN[t], terminated)
        assert np.array_equal(rollout.is_init_TN[t], is_init)
        assert np.array_equal(rollout.forced_TN[t], ~seen.legal_ops[:, 1:].any(axis=1))
    assert rollout.forced_TN[:, 0].all()
    assert not rollout.forced_TN.all()


def add(rollout: Rollout, rng: np.random.Generator, **given: np.ndarray) -> None:
    plain = {"reward": np.zeros(4), "terminated": flags(), "is_init": flags()}
    rollout.add(observation(rng), made(rng), **(plain | given))


def test_a_full_rollout_takes_no_further_step() -> None:
    rollout, rng = Rollout(SPEC), np.random.default_rng(0)
    for _ in range(3):
        add(rollout, rng)
    with pytest.raises(AssertionError, match="all of its 3 steps"):
        add(rollout, rng)


def test_forfeit_leaves_shaping_and_the_last_reward_of_the_sub_episode() -> None:
    rollout, rng = Rollout(SPEC), np.random.default_rng(0)
    starts = (flags(0, 1, 2, 3), flags(1), flags())
    for t, is_init in enumerate(starts):
        add(rollout, rng, reward=np.array([1.0, 2.0, 3.0, 4.0]) + t, is_init=is_init, shaping=np.full(4, 0.5) if t == 1 else None)
    rollout.forfeit(flags(0, 1))
    assert rollout.reward_TN.tolist() == [[0, 2, 3, 4], [0.5, 0.5, 4, 5], [3, 4, 5, 6]]


def test_a_non_finite_reward_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step 0 is not finite for hosts 1, 3"):
        add(Rollout(SPEC), np.random.default_rng(0), reward=np.array([0.0, np.nan, 1.0, np.inf]))


def test_a_rollout_copies_its_inputs() -> None:
    rollout, rng = Rollout(SPEC), np.random.default_rng(0)
    seen, decision = observation(rng), made(rng)
    rollout.add(seen, decision, reward=np.zeros(4), terminated=flags(), is_init=flags())
    kept = rollout.seen.features[0].clone(), rollout.action_TNH[0].clone()
    seen.features[:] += 1
    decision.action += 1
    assert torch.equal(rollout.seen.features[0], kept[0])
    assert torch.equal(rollout.action_TNH[0], kept[1])


def test_minibatches_use_every_host_once_and_the_generator_determines_them() -> None:
    rollout = Rollout(replace(SPEC, num_hosts=10))
    parts = list(rollout.minibatches(4, torch.Generator().manual_seed(0)))
    assert sorted(len(part) for part in parts) == [2, 2, 3, 3]
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    again = list(rollout.minibatches(4, torch.Generator().manual_seed(0)))
    other = list(rollout.minibatches(4, torch.Generator().manual_seed(1)))
    assert torch.equal(torch.cat(parts), torch.cat(again))
    assert not torch.equal(torch.cat(parts), torch.cat(other))


def test_a_controller_without_probabilities_leaves_zeros() -> None:
    rollout, rng = Rollout(SPEC), np.random.default_rng(0)
    decision = Made(action=made(rng).action, log_prob=None, value=None)
    rollout.add(observation(rng), decision, reward=np.ones(4), terminated=flags(), is_init=flags())
    assert not rollout.log_prob_TN.any()
    assert not rollout.head_log_prob_TNH.any()
    assert not rollout.value_TN.any()


def test_folding_places_chunks_side_by_side() -> None:
    rng = np.random.default_rng(0)
    rollout = Rollout(replace(SPEC, num_steps=6))
    for t in range(6):
        given = {"reward": rng.standard_normal(4), "terminated": flags(t % 4), "is_init": flags(3 - t % 4)}
        add(rollout, rng, **given)
    part = rollout.folded(3)
    assert (part.num_steps, part.num_hosts, part.chunks, part.full) == (3, 8, 2, True)
    tensors = {name: value for name, value in vars(rollout).items() if torch.is_tensor(value) and value.dim() > 1}
    assert {"action_TNH", "log_prob_TN", "head_log_prob_TNH", "is_init_TN", "forced_TN", "reward_TN"} <= set(tensors)
    tensors |= rollout.seen.tensors()
    for name, whole in tensors.items():
        cut = getattr(part.seen if name in rollout.seen.tensors() else part, name)
        for t in range(6):
            for n in range(4):
                assert torch.equal(cut[t % 3, 4 * (t // 3) + n], whole[t, n]), name
                assert part.origin(t % 3, 4 * (t // 3) + n) == (t, n)
    assert rollout.origin(5, 2) == (5, 2)
    assert rollout.num_steps == 6, "the rollout itself stays"


def test_folding_into_one_chunk_changes_nothing() -> None:
    rollout, rng = Rollout(SPEC), np.random.default_rng(0)
    for _ in range(3):
        add(rollout, rng)
    part = rollout.folded(3)
    assert part.chunks == 1
    assert torch.equal(part.log_prob_TN, rollout.log_prob_TN)
    for ours, theirs in zip(part.minibatches(2, torch.Generator()), rollout.minibatches(2, torch.Generator()), strict=True):
        assert torch.equal(ours, theirs)
