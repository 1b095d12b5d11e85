"""PPO in one file, with PyTorch and Gymnasium alone: python examples/single_file_ppo.py [UPDATES] [OVERRIDES ...]"""

import sys

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical

HOSTS, CLIP = 32, 0.2
SCALE = 100  # returns are tens of points, which the critic learns divided by this

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
envs = gymnasium.make_vec("esper.gym:Esper/Digits-v0", num_envs=HOSTS, flat=True, overrides=overrides)
torch.manual_seed(0)
steps = envs.unwrapped.num_steps
inputs, sizes = envs.single_observation_space.shape[0], envs.single_action_space.nvec.tolist()
policy = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, sum(sizes)))
critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], 1e-3)


def heads(seen: torch.Tensor, legal: torch.Tensor) -> list[Categorical]:
    """Return one distribution per head, with illegal values left out."""
    return [Categorical(logits=part) for part in policy(seen).masked_fill(~legal, -1e9).split(sizes, dim=-1)]


def log_prob(chosen: list[Categorical], action: torch.Tensor) -> torch.Tensor:
    return sum(head.log_prob(action[..., rank]) for rank, head in enumerate(chosen))


observation, _ = envs.reset(seed=envs.unwrapped.population.root)
for update in range(updates):
    stored = []
    for _ in range(steps):
        seen, legal = torch.from_numpy(observation), torch.from_numpy(envs.unwrapped.action_masks())
        with torch.no_grad():
            chosen = heads(seen, legal)
            action = torch.stack([head.sample() for head in chosen], dim=-1)
            stored.append([seen, legal, action, log_prob(chosen, action)])
        observation, reward, terminated, _, _ = envs.step(action.numpy())
        stored[-1] += [torch.from_numpy(reward) / SCALE, torch.from_numpy(~terminated)]
    seen, legal, action, old, reward, goes_on = map(torch.stack, zip(*stored, strict=True))
    to_go, target = torch.zeros(HOSTS), torch.zeros(steps, HOSTS)
    for step in reversed(range(steps)):
        target[step] = to_go = reward[step] + goes_on[step] * to_go
    for _ in range(4):
        chosen, value = heads(seen, legal), critic(seen)[..., 0]
        advantage = (target - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_prob(chosen, action) - old).exp()
        entropy = sum(head.entropy() for head in chosen).mean()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        loss = (value - target).square().mean() / target.var() - surrogate - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"update {update + 1}: return {SCALE * reward.sum().item() / HOSTS:.2f}")
