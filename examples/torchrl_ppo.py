"""PPO from the parts of TorchRL, with masked actions: python examples/torchrl_ppo.py [UPDATES] [OVERRIDES ...]"""

import sys

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical, Distribution
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import esper
from esper.wrappers.torchrl import TorchRLEnv

HOSTS, SCALE = 32, 100  # returns are tens of points, which the critic learns divided by this

updates, overrides = int(sys.argv[1]) if len(sys.argv) > 1 else 50, sys.argv[2:]
env = TorchRLEnv(esper.make_vec_env(overrides, num_envs=HOSTS, flat=True))
torch.manual_seed(0)
env.set_seed(env.envs.population.root)
inputs, sizes = env.observation_spec["observation"].shape[-1], env.action_spec.nvec[0].tolist()


class Heads(Distribution):
    """One categorical distribution per head, with illegal values left out."""

    def __init__(self, logits: torch.Tensor, action_mask: torch.Tensor) -> None:
        super().__init__(validate_args=False)
        self.heads = [Categorical(logits=part) for part in logits.masked_fill(~action_mask, -1e9).split(sizes, dim=-1)]

    def sample(self, shape: tuple[int, ...] = ()) -> torch.Tensor:
        return torch.stack([head.sample(shape) for head in self.heads], dim=-1)

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return sum(head.log_prob(action[..., rank]) for rank, head in enumerate(self.heads))

    def entropy(self) -> torch.Tensor:
        return sum(head.entropy() for head in self.heads)


body = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, sum(sizes)))
choose = ProbabilisticTensorDictModule(
    ["logits", "action_mask"], ["action"], distribution_class=Heads, return_log_prob=True, default_interaction_type="random"
)
policy = ProbabilisticTensorDictSequential(TensorDictModule(body, ["observation"], ["logits"]), choose)
critic = ValueOperator(nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1)))
loss, advantages = ClipPPOLoss(policy, critic, normalize_advantage=True), GAE(gamma=1.0, lmbda=0.95, value_network=critic)
optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
for update in range(updates):
    with torch.no_grad():
        rollout = env.rollout(env.envs.num_steps, policy, break_when_any_done=False)
        rollout["next", "reward"] /= SCALE
    for _ in range(4):
        terms = loss(advantages(rollout))
        optimizer.zero_grad()
        (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
        optimizer.step()
    print(f"update {update + 1}: return {SCALE * rollout['next', 'reward'].sum().item() / HOSTS:.2f}")
