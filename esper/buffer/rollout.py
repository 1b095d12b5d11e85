"""A rollout: observations, actions and rewards of T steps of N hosts."""

# T steps, N hosts, S slots, O operations, H heads, V values of all parameter heads, D host features, F slot features,
# R recurrent units, L steps of a chunk, C chunks of a row

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from esper.buffer.transition import Decision, State
from esper.env.actions import Head, Op
from esper.env.spec import EnvSpec, Observation

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorObservation:
    """`Observation` as tensors, with any leading shape, `[N]` or `[T, N]`."""

    features: Tensor
    """[..., D] float32."""
    slots: Tensor
    """[..., S, F] float32."""
    blueprints: Tensor
    """[..., S] int64."""
    legal_slots: Tensor
    """[..., O, S] bool."""
    legal_values: Tensor
    """[..., V] bool."""

    @classmethod
    def of(cls, observation: Observation) -> "TensorObservation":
        """Return an observation as tensors, which share memory with the arrays where possible."""
        return cls(**{entry.name: torch.as_tensor(getattr(observation, entry.name)) for entry in fields(cls)})

    @classmethod
    def blank(cls, spec: EnvSpec, *leading: int) -> "TensorObservation":
        """Return zeros for observations of this leading shape."""
        slots, blueprints = spec.num_slots, sum(spec.head_sizes[Head.BLUEPRINT :])
        return cls(
            features=torch.zeros(*leading, len(spec.feature_names)),
            slots=torch.zeros(*leading, slots, len(spec.slot_feature_names)),
            blueprints=torch.zeros(*leading, slots, dtype=torch.int64),
            legal_slots=torch.zeros(*leading, len(Op), slots, dtype=torch.bool),
            legal_values=torch.zeros(*leading, blueprints, dtype=torch.bool),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def __getitem__(self, index: Any) -> "TensorObservation":
        """Index the leading dimensions of every tensor."""
        return TensorObservation(**{name: tensor[index] for name, tensor in self.tensors().items()})


def folded(values_TN: Tensor, chunk: int) -> Tensor:
    """Fold `[T, N, ...]` into `[L, C * N, ...]`: chunks of L steps side by side, the first of every row, then the second, ..."""
    return values_TN.unflatten(0, (-1, chunk)).transpose(0, 1).flatten(1, 2)


class Rollout:
    """T steps of N hosts.

    Rows are hosts. The policy is recurrent, so minibatches contain whole rows, in chronological order. A row may hold several
    sub-episodes; `is_init_TN` marks their starts.
    """

    def __init__(self, spec: EnvSpec) -> None:
        """Create an empty rollout for an environment."""
        self.num_steps, self.num_hosts = shape = (spec.num_steps, spec.num_hosts)
        self.seen = TensorObservation.blank(spec, *shape)
        self.action_TNH = torch.zeros(*shape, len(Head), dtype=torch.int64)
        self.log_prob_TN, self.value_TN, self.reward_TN = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        self.shaping_TN = torch.zeros(shape)
        """The part of the rewards that is potential-based shaping."""
        self.head_log_prob_TNH = torch.zeros(*shape, len(Head))
        """Each head's share of `log_prob_TN`; zeros if the controller does not provide it."""
        self.terminated_TN = torch.zeros(shape, dtype=torch.bool)
        self.is_init_TN = torch.zeros(shape, dtype=torch.bool)
        """True where a (sub-)episode started with this step, so that the recurrent state was zeroed before it."""
        self.forced_TN = torch.zeros(shape, dtype=torch.bool)
        """True where waiting was the only legal action."""
        self.taught_TNH: Tensor | None = None
        """What a teacher would do, for a policy to imitate; None if it learns from rewards."""
        self.initial_state: State = {}
        """Recurrent state `[N, R]` before the first step, by name; empty if every row starts an episode."""
        self.length = 0
        self.chunks = 1
        """Number of rows per host."""

    @property
    def full(self) -> bool:
        """True if all T steps are added."""
        return self.length == self.num_steps

    def add(
        self,
        observation: Observation,
        decision: Decision,
        *,
        reward: Array,
        terminated: Array,
        is_init: Array,
        shaping: Array | None = None,
    ) -> None:
        """Append one step of every host.

        Args:
            observation: observation before the step.
            decision: decision of the controller; missing probabilities and values stay zeros.
            reward: `[N]`, reward of the step.
            terminated: `[N]`, the (sub-)episode ended with this step.
            is_init: `[N]`, it started with this step.
            shaping: `[N]`, the part of the reward that is potential-based shaping; None for none.

        Raises:
            ValueError: a reward is non-finite.
        """
        assert not self.full, f"the rollout holds all of its {self.num_steps} steps: start another one"
        if not np.isfinite(reward).all():
            faulty = ", ".join(map(str, np.flatnonzero(~np.isfinite(reward))))
            raise ValueError(f"the reward of step {self.length} is not finite for hosts {faulty}: check the reward's terms")
        t = self.length
        for name, tensor in TensorObservation.of(observation).tensors().items():
            getattr(self.seen, name)[t] = tensor
        self.action_TNH[t] = torch.as_tensor(decision.action)
        given = ((self.log_prob_TN, decision.log_prob), (self.value_TN, decision.value))
        for tensor, array in (*given, (self.head_log_prob_TNH, decision.head_log_prob)):
            if array is not None:
                tensor[t] = torch.as_tensor(array)
        self.reward_TN[t] = torch.as_tensor(reward)
        if shaping is not None:
            self.shaping_TN[t] = torch.as_tensor(shaping)
        self.terminated_TN[t], self.is_init_TN[t] = torch.as_tensor(terminated), torch.as_tensor(is_init)
        others_legal = self.seen.legal_slots[t].any(dim=2)
        others_legal[:, Op.WAIT] = False
        self.forced_TN[t] = ~others_legal.any(dim=1)
        self.length += 1

    def forfeit(self, hosts_N: Array) -> None:
        """Remove the rewards of some hosts in their current sub-episode, except shaping and that of the last step.

        The last step already takes back what shaping has paid, so that shaping cannot change which policy is optimal.
        """
        last = self.length - 1
        for host in np.flatnonzero(hosts_N):
            begun = torch.nonzero(self.is_init_TN[: last + 1, host])
            earlier = slice(int(begun[-1]) if len(begun) else 0, last)
            self.reward_TN[earlier, host] = self.shaping_TN[earlier, host]

    def minibatches(self, num: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield `num` shuffled sets of rows whose sizes differ by one at most; steps stay in order within a row."""
        assert num <= self.num_hosts, f"{num} minibatches of {self.num_hosts} rows"
        yield from torch.randperm(self.num_hosts, generator=generator).tensor_split(num)

    def folded(self, chunk: int) -> "Rollout":
        """Return the same steps in rows of `chunk`: row c * N + n holds chunk c of host n.

        The recurrent state at the start of later chunks depends on the policy: set `initial_state` before a replay.
        """
        assert self.num_steps % chunk == 0, f"{self.num_steps} steps in chunks of {chunk}"
        part = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.shape[:2] == (self.num_steps, self.num_hosts):
                setattr(part, name, folded(value, chunk))
        part.seen = TensorObservation(**{name: folded(tensor, chunk) for name, tensor in self.seen.tensors().items()})
        part.chunks = self.num_steps // chunk
        part.num_steps, part.num_hosts, part.length = chunk, part.chunks * self.num_hosts, chunk
        return part

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rollout holds, as tensors and numbers."""
        plain = {name: value for name, value in vars(self).items() if name != "seen"}
        return plain | {"seen": self.seen.tensors()}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "Rollout":
        """Return the rollout that `state_dict` was called on."""
        rollout = Rollout.__new__(Rollout)
        rollout.taught_TNH = None  # states of earlier versions lack this and the next
        rollout.shaping_TN = torch.zeros_like(state["reward_TN"])
        for name, value in state.items():
            setattr(rollout, name, TensorObservation(**value) if name == "seen" else value)
        return rollout

    @staticmethod
    def joined(rollouts: Sequence["Rollout"]) -> "Rollout":
        """Return one rollout with the hosts of several, side by side, in their order."""
        first, *others = rollouts
        if not others:
            return first
        whole = copy.copy(first)
        for name, value in vars(first).items():
            if isinstance(value, Tensor):
                setattr(whole, name, torch.cat([getattr(rollout, name) for rollout in rollouts], dim=1))
        seen = [rollout.seen.tensors() for rollout in rollouts]
        whole.seen = TensorObservation(**{name: torch.cat([tensors[name] for tensors in seen], dim=1) for name in seen[0]})
        whole.num_hosts = sum(rollout.num_hosts for rollout in rollouts)
        return whole

    def origin(self, step: int, row: int) -> tuple[int, int]:
        """Return step and host of a row's step before folding."""
        chunk, host = divmod(row, self.num_hosts // self.chunks)
        return chunk * self.num_steps + step, host
