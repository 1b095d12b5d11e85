"""Advantages and returns against brute-force sums of their definitions."""

# T steps, N hosts

import numpy as np
import pytest
import torch

from esper.agent.ppo.advantages import Baseline, Targets, apply_baseline, gae, leave_one_out, returns_to_go
from esper.buffer.rollout import folded

GAMMA, LAM = 0.9, 0.8


def random_case(seed: int, steps: int = 12, hosts: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rewards, values and ends of several sub-episodes per row; the last step ends one."""
    generator = torch.Generator().manual_seed(seed)
    reward, value = torch.randn(2, steps, hosts, generator=generator, dtype=torch.float64)
    terminated = torch.rand(steps, hosts, generator=generator) < 0.2
    terminated[-1] = True
    return reward, value, terminated


def brute_force(reward, value, terminated, *, gamma: float = GAMMA, lam: float = LAM) -> np.ndarray:
    """Compute the sum over l of (gamma * lam)^l * delta_{t+l}, up to and including the step that ends the episode."""
    reward, value, terminated = reward.numpy(), value.numpy(), terminated.numpy()
    steps, hosts = reward.shape
    advantage = np.zeros((steps, hosts))
    for host in range(hosts):
        for start in range(steps):
            for t in range(start, steps):
                future = 0.0 if terminated[t, host] else gamma * value[t + 1, host]
                advantage[start, host] += (gamma * lam) ** (t - start) * (reward[t, host] + future - value[t, host])
                if terminated[t, host]:
                    break
    return advantage


@pytest.mark.parametrize("lam", [0.0, LAM, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_gae_is_the_sum_of_its_definition(seed: int, lam: float) -> None:
    case = random_case(seed)
    np.testing.assert_allclose(gae(*case, gamma=GAMMA, lam=lam).numpy(), brute_force(*case, lam=lam), atol=1e-12)


def test_gae_by_hand() -> None:
    reward, value = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [1.0], [1.5]])
    end = torch.tensor([[False], [False], [True]])
    # deltas with gamma 1/2: 1 + 0.5 - 0.5 = 1;  2 + 0.75 - 1 = 1.75;  4 - 1.5 = 2.5
    advantage = gae(reward, value, end, gamma=0.5, lam=0.5)
    assert advantage[:, 0].tolist() == [1 + 0.25 * (1.75 + 0.25 * 2.5), 1.75 + 0.25 * 2.5, 2.5]


@pytest.mark.parametrize("seed", range(5))
def test_returns_are_discounted_sums_up_to_the_end_of_the_episode(seed: int) -> None:
    reward, value, terminated = random_case(seed)
    steps, hosts = reward.shape
    expected = np.zeros((steps, hosts))
    for host in range(hosts):
        for start in range(steps):
            for t in range(start, steps):
                expected[start, host] += GAMMA ** (t - start) * reward[t, host]
                if terminated[t, host]:
                    break
    result = returns_to_go(reward, terminated, gamma=GAMMA)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)
    torch.testing.assert_close(gae(reward, value, terminated, gamma=GAMMA, lam=1.0), result - value)


def test_float32_rewards_give_float32_and_no_gradient() -> None:
    reward, value, terminated = random_case(0)
    advantage = gae(reward.float(), value.float().requires_grad_(), terminated, gamma=GAMMA, lam=LAM)
    assert advantage.dtype == torch.float32
    assert not advantage.requires_grad


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
