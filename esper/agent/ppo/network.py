"""The policy network: a shared encoder of slots, a recurrent or feed-forward core, pointer scores over slots, and a critic."""

# T steps, N hosts, B = T * N decisions, S slots, O operations, D host features, F slot features, E width of a slot's encoding,
# R units of the core, W values of one head

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from esper.agent.ppo.core import FeedForward, Recurrent
from esper.agent.ppo.distribution import ActionDistribution, Logits, free_parameters
from esper.agent.ppo.standardization import Standardization
from esper.buffer.rollout import TensorObservation
from esper.buffer.transition import State
from esper.env.actions import Head, Op, segments
from esper.env.spec import EnvSpec
from esper.seeding import borrowed_stream

POLICY_GAIN = 0.01
"""Initial gain of the policy's last layers: a nearly uniform policy, apart from the bias towards waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The outputs of the network for B decisions."""

    distribution: ActionDistribution
    value_B: Tensor
    """Value in the critic's normalised scale."""
    core_input_TNR: Tensor
    core_output_TNR: Tensor
    """Inputs and outputs of the core."""


class PolicyNetwork(nn.Module):
    """Actor and critic with a shared trunk; one encoder and one scorer serve every slot, so any number of slots works.

    Without `slot_identity` and `slot_depth` it is equivariant: permuting slots permutes their scores and changes nothing else.
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
        standardize: bool = False,
    ) -> None:
        """Initialise all weights from `generator`; the global random stream does not advance.

        Args:
            spec: sizes and names of observations and actions.
            hidden: units of the core.
            slot_width: width of a slot's encoding.
            blueprint_width: width of a blueprint's embedding.
            slot_identity: if true, each slot has a learned embedding.
            slot_depth: if true, the network sees the depth of each slot, from 0 (first) to 1 (last).
            wait_bias: initial bias of the logit of waiting.
            generator: source of the initial weights.
            recurrent: if true, the core is an LSTM; if false, it is feed-forward.
            standardize: if true, features are standardized by the statistics of `update_statistics`.
        """
        super().__init__()
        self.spec = spec
        self._places = segments(spec.head_sizes)
        num_values = sum(spec.head_sizes[Head.BLUEPRINT :])
        with borrowed_stream():  # constructors draw weights, which are replaced below
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
        self.scales = nn.ModuleList()
        """Standardization of host features and slot features; empty if they are used as they are."""
        if standardize:
            self.scales.extend(Standardization(len(names)) for names in (spec.feature_names, spec.slot_feature_names))
        self._initialize(wait_bias, generator)

    @torch.no_grad()
    def _initialize(self, wait_bias: float, generator: torch.Generator) -> None:
        """Set orthogonal weights and zero biases as in Andrychowicz et al. 2021 (arXiv:2006.05990), with the exceptions below."""
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
        """Return the state before the first step: zeros `[N, R]` by name; empty without an LSTM."""
        return self.core.start(num_hosts)

    def step(self, seen: TensorObservation, state: State, is_init_N: Tensor) -> tuple[Outputs, State]:
        """Run one step of N hosts; see `unroll`."""
        return self.unroll(seen[None], state, is_init_N[None])

    def unroll(
        self, seen: TensorObservation, state: State, is_init_TN: Tensor, free: Sequence[tuple[Op, Head]] | None = None
    ) -> tuple[Outputs, State]:
        """Run T steps of N hosts in order; outputs are flattened to B = T * N decisions.

        Args:
            seen: `[T, N]` observations.
            state: state before the first step.
            is_init_TN: true where an episode starts; the state is zeroed before that step.
            free: `free_parameters` of these decisions or of a superset; computed if None.

        Returns:
            The outputs, and the state after the last step.
        """
        steps, hosts = is_init_TN.shape
        encoding_TNSE = self.encode(seen)
        input_TNR = self.core_input(seen, encoding_TNSE)
        output_TNR, state = self.core.unroll(input_TNR, state, is_init_TN)
        output_BR, encoding_BSE = output_TNR.flatten(0, 1), encoding_TNSE.flatten(0, 1)
        flat = TensorObservation(**{name: tensor.flatten(0, 1) for name, tensor in seen.tensors().items()})
        if free is None:
            free = free_parameters(flat.legal_slots, flat.legal_values, self.spec.head_sizes)
        logits = self.logits(output_BR, encoding_BSE, free)
        value_B = self.value(F.relu(self.value_in(output_BR)))[:, 0]
        assert value_B.shape == (steps * hosts,)
        distribution = ActionDistribution(logits, flat.legal_slots, flat.legal_values, self.spec.head_sizes)
        return Outputs(distribution=distribution, value_B=value_B, core_input_TNR=input_TNR, core_output_TNR=output_TNR), state

    def state_after(self, seen: TensorObservation, state: State, is_init_TN: Tensor) -> State:
        """Return the state after T steps, as `unroll` does, without computing outputs."""
        if not state:
            return {}
        return self.core.unroll(self.core_input(seen, self.encode(seen)), state, is_init_TN)[1]

    def update_statistics(self, seen: TensorObservation) -> None:
        """Add observations `[T, N]` to the statistics that standardize features; no effect without standardization."""
        for scale, features in zip(self.scales, (seen.features, seen.slots), strict=False):
            assert isinstance(scale, Standardization)
            scale.update(features)

    def encode(self, seen: TensorObservation) -> Tensor:
        """Compute the encodings of all slots `[T, N, S, E]`."""
        slots = self.scales[1](seen.slots) if self.scales else seen.slots
        hidden = self.slot_in(torch.cat([slots, self.blueprint(seen.blueprints)], dim=-1))
        if self.identity is not None:
            hidden = hidden + self.identity
        if self.depth is not None:
            hidden = hidden + torch.linspace(0, 1, hidden.shape[-2])[:, None] * self.depth
        return F.relu(self.slot_out(F.relu(hidden)))

    def core_input(self, seen: TensorObservation, encoding_TNSE: Tensor) -> Tensor:
        """Compute the inputs of the core `[T, N, R]` from host features and slots, pooled regardless of number and order."""
        pooled_TNE = torch.cat([encoding_TNSE.mean(dim=2), encoding_TNSE.amax(dim=2)], dim=-1)
        features = self.scales[0](seen.features) if self.scales else seen.features
        return F.relu(self.norm(self.mix(torch.cat([features, pooled_TNE], dim=-1))))

    def logits(self, output_BR: Tensor, encoding_BSE: Tensor, free: Sequence[tuple[Op, Head]]) -> Logits:
        """Compute logits of operations, of slots for every operation, and of the free parameters for every slot."""
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
