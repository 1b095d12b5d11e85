"""One decision of a policy as a plain program, which `torch.export` can write to a file."""

# N hosts, S slots, O operations, V values, H heads, R units of the core

import copy

import torch
from torch import Tensor, nn

from esper.agent.ppo.core import Recurrent
from esper.agent.ppo.distribution import ActionDistribution
from esper.agent.ppo.network import PolicyNetwork
from esper.buffer.rollout import TensorObservation
from esper.env.actions import PARAMETER_HEADS, RELEVANT, HeadsConfig, Op


class PolicyProgram(nn.Module):
    """A map from observation, random numbers and memory to actions and the next memory; see `forward`."""

    def __init__(self, network: PolicyNetwork, heads: HeadsConfig) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self._free = [(op, head) for op in Op for head in PARAMETER_HEADS if RELEVANT[op, head] and head not in heads.pinned]

    def forward(
        self,
        features: Tensor,
        slots: Tensor,
        blueprints: Tensor,
        legal_slots: Tensor,
        legal_values: Tensor,
        uniform: Tensor,
        starts: Tensor,
        h: Tensor,
        c: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decide for N hosts.

        Args:
            features: `[N, D]`; this and the next four are the observation, as in docs/observation.md.
            slots: `[N, S, F]`.
            blueprints: `[N, S]`, int64.
            legal_slots: `[N, O, S]`, bool.
            legal_values: `[N, V]`, bool.
            uniform: random numbers in [0, 1), `[N, H]`, float64.
            starts: hosts that start an episode, whose memory is cleared, bool `[N]`.
            h: memory `[N, R]`; zeros at first. A policy without memory ignores h and c.
            c: memory `[N, R]`; zeros at first.

        Returns:
            Sampled actions and most probable actions, int64 `[N, H]`; the next h and c.
        """
        network = self.network
        seen = TensorObservation(
            features=features, slots=slots, blueprints=blueprints, legal_slots=legal_slots, legal_values=legal_values
        )
        encoding = network.encode(seen[None])
        core_input = network.core_input(seen[None], encoding)
        if isinstance(network.core, Recurrent):
            keep = (~starts)[:, None].to(h.dtype)
            output, (h_1NR, c_1NR) = network.core(core_input, ((h * keep)[None], (c * keep)[None]))
            h, c = h_1NR[0], c_1NR[0]
        else:
            output, h, c = network.core(core_input), h.clone(), c.clone()
        logits = network.logits(output[0], encoding[0], self._free)
        distribution = ActionDistribution(logits, legal_slots, legal_values, network.spec.head_sizes)
        return distribution.sample(uniform), distribution.mode(), h, c

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs for two hosts."""
        seen = TensorObservation.blank(self.network.spec, 2).tensors()
        legal = {name: torch.ones_like(seen[name]) for name in ("legal_slots", "legal_values")}
        units = self.network.mix.out_features
        memory = (torch.zeros(2, units), torch.zeros(2, units))
        random = torch.zeros(2, len(self.network.spec.head_sizes), dtype=torch.float64)
        return (*(seen | legal).values(), random, torch.ones(2, dtype=torch.bool), *memory)
