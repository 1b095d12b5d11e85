"""Advantages and returns against brute-force sums of their definitions."""

# T steps, N hosts

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Baseline, Targets, apply_baseline, gae, leave_one_out, returns_to_go
from esper.buffer.rollout import folded

GAMMA, LAM = 0.9, 0.8


def random_case(seed: int, steps: int = 12, hosts: int = 5) -> tuple[torch.Tensor, ...]:
    """Several episodes a row, with both kinds of end; the successor of a cut is another state than that of the next row."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(steps, hosts, generator=generator, dtype=torch.float64)

    reward, value, last = normal(), normal(), normal()[0]
    kind = torch.rand(steps, hosts, generator=generator)
    terminated, truncated = kind < 0.2, kind > 0.8
    next_value = torch.cat([value[1:], last[None]])
    return reward, value, torch.where(truncated, normal(), next_value), terminated, truncated


def brute_force(reward, value, next_value, terminated, truncated) -> np.ndarray:
    """Sum over l of (gamma * lam)^l * delta_{t+l}, up to and with the step that ends the episode."""
    reward, value, next_value = reward.numpy(), value.numpy(), next_value.numpy()
    terminated, truncated = terminated.numpy(), truncated.numpy()
    steps, hosts = reward.shape
    advantage = np.zeros((steps, hosts))
    for host in range(hosts):
        for start in range(steps):
            weight = 1.0
            for t in range(start, steps):
                future = 0.0 if terminated[t, host] else GAMMA * next_value[t, host]
                advantage[start, host] += weight * (reward[t, host] + future - value[t, host])
                if terminated[t, host] or truncated[t, host]:
                    break
                weight *= GAMMA * LAM
    return advantage


@pytest.mark.parametrize("seed", range(10))
def test_gae_with_both_kinds_of_end(seed: int) -> None:
    case = random_case(seed)
    assert case[3].any()
    assert case[4].any()
    np.testing.assert_allclose(gae(*case, gamma=GAMMA, lam=LAM).numpy(), brute_force(*case), atol=1e-12)


def test_gae_by_hand() -> None:
    reward, value = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [1.0], [1.5]])
    next_value = torch.tensor([[1.0], [1.5], [8.0]])
    no, end = torch.zeros(3, 1, dtype=torch.bool), torch.tensor([[False], [False], [True]])
    # deltas with gamma 1/2: 1 + 0.5 - 0.5 = 1;  2 + 0.75 - 1 = 1.75;  4 - 1.5 = 2.5 (ended) or 6.5 (cut)
    ended = gae(reward, value, next_value, end, no, gamma=0.5, lam=0.5)
    assert ended[:, 0].tolist() == [1 + 0.25 * (1.75 + 0.25 * 2.5), 1.75 + 0.25 * 2.5, 2.5]
    cut = gae(reward, value, next_value, no, end, gamma=0.5, lam=0.5)
    assert cut[:, 0].tolist() == [1 + 0.25 * (1.75 + 0.25 * 6.5), 1.75 + 0.25 * 6.5, 6.5]


def test_lambda_one_is_the_return_and_lambda_zero_one_step() -> None:
    reward, value, next_value, terminated, truncated = random_case(3)
    # Along a row, where nothing is cut, V' is the value of the next row.
    no = torch.zeros_like(truncated)
    next_value = torch.cat([value[1:], next_value[-1:]])
    returns = returns_to_go(reward, next_value, terminated, no, gamma=GAMMA)
    torch.testing.assert_close(gae(reward, value, next_value, terminated, no, gamma=GAMMA, lam=1.0), returns - value)
    one_step = reward + GAMMA * torch.where(terminated, 0.0, next_value) - value
    torch.testing.assert_close(gae(reward, value, next_value, terminated, no, gamma=GAMMA, lam=0.0), one_step)


@pytest.mark.parametrize("seed", range(5))
def test_returns_are_discounted_sums_up_to_the_end_of_the_episode(seed: int) -> None:
    reward, _, next_value, terminated, truncated = (tensor.numpy() for tensor in random_case(seed))
    steps, hosts = reward.shape
    expected = np.zeros((steps, hosts))
    for host in range(hosts):
        for start in range(steps):
            for t in range(start, steps):
                expected[start, host] += GAMMA ** (t - start) * reward[t, host]
                if terminated[t, host]:
                    break
                if truncated[t, host] or t == steps - 1:
                    expected[start, host] += GAMMA ** (t - start + 1) * next_value[t, host]
                    break
    result = returns_to_go(*map(torch.from_numpy, (reward, next_value, terminated, truncated)), gamma=GAMMA)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)


def test_returns_do_not_contain_values_of_visited_states() -> None:
    """Otherwise the critic would be judged by itself."""
    reward, _, next_value, terminated, truncated = random_case(1)
    terminated[-1], truncated[:] = True, False
    twisted = next_value + 100
    torch.testing.assert_close(
        returns_to_go(reward, next_value, terminated, truncated, gamma=GAMMA),
        returns_to_go(reward, twisted, terminated, truncated, gamma=GAMMA),
    )


def test_float32_rewards_give_float32_and_no_gradient() -> None:
    reward, value, next_value, terminated, truncated = random_case(0)
    value = value.float().requires_grad_()
    advantage = gae(reward.float(), value, next_value.float(), terminated, truncated, gamma=GAMMA, lam=LAM)
    assert advantage.dtype == torch.float32
    assert not advantage.requires_grad


def test_a_two_state_chain_with_a_time_limit_has_the_values_of_the_finite_task() -> None:
    """Iterating value <- value + A(lambda = 0) on a chain that ends at T finds r * (T - t), not r / (1 - gamma)."""
    value = torch.zeros(3, 1, dtype=torch.float64)
    reward, end = torch.full((3, 1), 0.1, dtype=torch.float64), torch.tensor([[False], [False], [True]])
    for _ in range(50):
        next_value = torch.cat([value[1:], value[-1:]])
        value = value + 0.5 * gae(reward, value, next_value, end, torch.zeros_like(end), gamma=1.0, lam=0.0)
    torch.testing.assert_close(value[:, 0], torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64), atol=1e-6, rtol=0)


def test_leave_one_out_subtracts_the_mean_of_the_other_twins() -> None:
    values = torch.randn(5, 12, dtype=torch.float64)
    less = leave_one_out(values, 4)
    for host in range(12):
        others = [other for other in range(12) if other // 4 == host // 4 and other != host]
        torch.testing.assert_close(less[:, host], values[:, host] - values[:, others].mean(1))
    torch.testing.assert_close(leave_one_out(values + torch.arange(12).div(4, rounding_mode="floor"), 4), less)


BY_HAND = {
    Baseline.critic: [[1.0, 3.0, -2.0, 0.0], [5.0, -1.0, 0.5, 0.5]],
    Baseline.twins: [[2.0, -2.0, 4.0, -4.0], [-6.0, 6.0, 0.0, 0.0]],
    Baseline.blend: [[1.5, 0.5, 1.0, -2.0], [-0.5, 2.5, 0.25, 0.25]],
}


@pytest.mark.parametrize("baseline", Baseline)
def test_baselines_by_hand(baseline: Baseline) -> None:
    """Hosts 0 and 1 are twins, and so are 2 and 3; each is the other's baseline."""
    mc_return = torch.tensor([[4.0, 2.0, 5.0, 1.0], [0.0, 6.0, 7.0, 7.0]])
    assert apply_baseline(baseline, torch.tensor(BY_HAND[Baseline.critic]), mc_return, 2).tolist() == BY_HAND[baseline]


def test_targets_fold_like_their_rollout() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(4, 2, generator=generator) for name in ("advantage_TN", "value_TN", "mc_return_TN")}
    targets = Targets(**tensors).folded(2)
    assert all(torch.equal(getattr(targets, name), folded(tensor, 2)) for name, tensor in tensors.items())
