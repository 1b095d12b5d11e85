"""The policy network: a shared encoder of slots, a core that may remember, pointer scores over slots, and a critic."""

# T steps, N hosts, B = T * N decisions, S slots, O operations, D host features, F slot features, E width of a slot's encoding,
# R units of the core, W values of one head

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from esper.agent.base import State
from esper.agent.ppo.core import FeedForward, Recurrent
from esper.agent.ppo.distribution import ActionDistribution, Logits, free_parameters, segments
from esper.buffer.rollout import Seen
from esper.env.actions import EnvSpec, Head, Op

POLICY_GAIN = 0.01
"""Scale of the last layers of the policy at birth: nearly uniform but for the bias towards waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """What the network says of B decisions."""

    distribution: ActionDistribution
    value_B: Tensor
    """Value in the critic's scale, that is normalised."""
    contribution_BS: Tensor | None = None
    """What each seed will be found to contribute after this step [10 pp]; None where nobody asked for it."""


class PolicyNetwork(nn.Module):
    """Slots are seen by one shared encoder and scored one by one, so that the network works for any number of them.

    Without `slot_identity` and `slot_depth` it treats slots alike: permuting them permutes their scores and changes nothing else.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: int,
        slot_width: int,
        blueprint_width: int,
        slot_identity: bool,
        slot_depth: bool = False,
        wait_bias: float,
        generator: torch.Generator,
        recurrent: bool = True,
        foresight: bool = False,
    ) -> None:
        """A newborn network; its numbers come from `generator` alone, and the global stream stays where it was.

        Args:
            slot_identity: has each slot learned numbers of its own?
            slot_depth: is it told how deep in the host each slot is, from 0 for the first to 1 for the last?
            recurrent: has it a memory?
            foresight: does it predict the contributions of seeds? All its other weights are the same with and without.
        """
        super().__init__()
        self.spec = spec
        self._places = segments(spec.head_sizes)
        num_values = sum(spec.head_sizes[Head.BLUEPRINT :])
        with torch.random.fork_rng(devices=[]):  # the layers draw weights of their own, which are replaced below
            self.blueprint = nn.Embedding(len(spec.blueprint_names) + 1, blueprint_width)
            self.slot_in = nn.Linear(len(spec.slot_feature_names) + blueprint_width, slot_width)
            self.identity = nn.Parameter(torch.zeros(spec.num_slots, slot_width)) if slot_identity else None
            self.depth = nn.Parameter(torch.zeros(slot_width)) if slot_depth else None
            self.slot_out = nn.Linear(slot_width, slot_width)
            self.mix = nn.Linear(len(spec.feature_names) + 2 * slot_width, hidden)
            self.norm = nn.LayerNorm(hidden)
            self.core = Recurrent(hidden) if recurrent else FeedForward(hidden)
            self.op = nn.Linear(hidden, len(Op))
            self.slot_key = nn.Linear(slot_width, slot_width)
            self.core_key = nn.Linear(hidden, slot_width)
            self.slot_score = nn.Linear(slot_width, len(Op))
            self.op_key = nn.Embedding(len(Op), slot_width)
            self.parameter = nn.Linear(slot_width, num_values)
            self.value_in = nn.Linear(hidden, hidden)
            self.value = nn.Linear(hidden, 1)
        self._initialize(wait_bias, generator)
        self.foresight = _foresight(hidden + slot_width, slot_width, generator) if foresight else None

    @torch.no_grad()
    def _initialize(self, wait_bias: float, generator: torch.Generator) -> None:
        """Orthogonal weights and zero biases, as in Andrychowicz et al. 2021 (arXiv:2006.05990), but for what is said here."""
        small = {self.op, self.slot_score, self.parameter}
        for module in self.modules():
            if isinstance(module, nn.Linear):
                gain = POLICY_GAIN if module in small else 1.0 if module is self.value else 2**0.5
                nn.init.orthogonal_(module.weight, gain, generator=generator)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.5, generator=generator)
        if isinstance(self.core, Recurrent):
            self.core.initialize(generator)
        self.op.bias[Op.WAIT] = wait_bias

    def start(self, num_hosts: int) -> State:
        """What is remembered before the first step: zeros `[N, R]` by name, or nothing."""
        return self.core.start(num_hosts)

    def step(self, seen: Seen, state: State, is_init_N: Tensor) -> tuple[Outputs, State]:
        """One step of N hosts; see `unroll`."""
        return self.unroll(seen[None], state, is_init_N[None])

    def unroll(
        self, seen: Seen, state: State, is_init_TN: Tensor, free: Sequence[tuple[Op, Head]] | None = None
    ) -> tuple[Outputs, State]:
        """T steps of N hosts, in order; the decisions are laid out as B = T * N.

        Args:
            seen: `[T, N]` observations.
            state: what is remembered before the first step.
            is_init_TN: where an episode starts, the state is zeroed before the step.
            free: what `free_parameters` says of these decisions, or of more; None asks it.

        Returns:
            What the network says, and the state after the last step.
        """
        steps, hosts = is_init_TN.shape
        encoding_TNSE = self._encode(seen)
        output_TNR, state = self.core.unroll(self._mix(seen, encoding_TNSE), state, is_init_TN)
        output_BR, encoding_BSE = output_TNR.flatten(0, 1), encoding_TNSE.flatten(0, 1)
        flat = Seen(**{name: tensor.flatten(0, 1) for name, tensor in seen.tensors().items()})
        if free is None:
            free = free_parameters(flat.legal_slots, flat.legal_values, self.spec.head_sizes)
        logits = self._logits(output_BR, encoding_BSE, free)
        value_B = self.value(F.relu(self.value_in(output_BR)))[:, 0]
        assert value_B.shape == (steps * hosts,)
        distribution = ActionDistribution(logits, flat.legal_slots, flat.legal_values, self.spec.head_sizes, free)
        return Outputs(distribution=distribution, value_B=value_B, contribution_BS=self._foresee(output_BR, encoding_BSE)), state

    def remember(self, seen: Seen, state: State, is_init_TN: Tensor) -> State:
        """The state after T steps; as of `unroll`, without asking what to do in them."""
        if not state:
            return {}
        return self.core.unroll(self._mix(seen, self._encode(seen)), state, is_init_TN)[1]

    def _encode(self, seen: Seen) -> Tensor:
        hidden = self.slot_in(torch.cat([seen.slots, self.blueprint(seen.blueprints)], dim=-1))
        if self.identity is not None:
            hidden = hidden + self.identity
        if self.depth is not None:
            hidden = hidden + torch.linspace(0, 1, hidden.shape[-2])[:, None] * self.depth
        return F.relu(self.slot_out(F.relu(hidden)))

    def _mix(self, seen: Seen, encoding_TNSE: Tensor) -> Tensor:
        """Inputs of the core `[T, N, R]`: the host, and its slots pooled, so that their number and order do not matter."""
        pooled_TNE = torch.cat([encoding_TNSE.mean(dim=2), encoding_TNSE.amax(dim=2)], dim=-1)
        return F.relu(self.norm(self.mix(torch.cat([seen.features, pooled_TNE], dim=-1))))

    def _foresee(self, output_BR: Tensor, encoding_BSE: Tensor) -> Tensor | None:
        """Contribution of each seed, from what is remembered and what its slot looks like."""
        if self.foresight is None:
            return None
        output_BSR = output_BR[:, None].expand(-1, encoding_BSE.shape[1], -1)
        return self.foresight(torch.cat([output_BSR, encoding_BSE], dim=-1))[..., 0]

    def _logits(self, output_BR: Tensor, encoding_BSE: Tensor, free: Sequence[tuple[Op, Head]]) -> Logits:
        """Scores of operations; of every slot for every operation; and of parameters for every slot, where there is a choice."""
        pair_BSE = self.slot_key(encoding_BSE) + self.core_key(output_BR)[:, None]
        slot_BOS = self.slot_score(F.relu(pair_BSE)).transpose(1, 2)
        parameters: dict[tuple[Op, Head], Tensor] = {}
        context: dict[Op, Tensor] = {}
        for op, head in free:
            if op not in context:
                context[op] = F.relu(pair_BSE + self.op_key.weight[op])
            place = self._places[head]
            parameters[op, head] = F.linear(context[op], self.parameter.weight[place], self.parameter.bias[place])
        return Logits(op_BO=self.op(output_BR), slot_BOS=slot_BOS, parameters=parameters)


def _foresight(inputs: int, width: int, generator: torch.Generator) -> nn.Module:
    """The head that predicts contributions, as it is born: orthogonal, and predicting little."""
    with torch.random.fork_rng(devices=[]):
        first, last = nn.Linear(inputs, width), nn.Linear(width, 1)
    for layer, gain in ((first, 2**0.5), (last, 0.1)):
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.ReLU(), last)
