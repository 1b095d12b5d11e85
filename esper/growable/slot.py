"""A slot of a module that is not Esper's: a forward hook that blends a seed into the output of a submodule."""

# B batch

import copy
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.utils.hooks import RemovableHandle

from esper.growable.caches import cached_positions, warn_of_cache
from esper.growable.features import features_of, fits, in_order_of_seeds, in_own_order, refuse_nested, with_features
from esper.growable.newborn import check_newborn
from esper.growth.compatibility import AXES
from esper.growth.mode import set_evaluation
from esper.hosts.base import SlotSpec
from esper.lifecycle.roles import Blend
from esper.seeds.bank import seed_module
from esper.seeds.blueprints.base import BlueprintConfig, is_informed
from esper.seeds.informed import inform
from esper.seeds.slot_gradients import SlotGradients


def slots_after(submodule: nn.Module) -> list["GrowingSlot"]:
    """Return the slots after a submodule."""
    hooks = submodule._forward_hooks.values()  # pyright: ignore[reportPrivateUsage]
    return [slot for hook in hooks if isinstance(slot := getattr(hook, "__self__", None), GrowingSlot)]


def parameter_near(module: nn.Module, path: str) -> Tensor:
    """Return a parameter with the device and dtype that a seed after a submodule needs: of the submodule, else of the nearest
    layer before it, else of any. Types of one byte only store weights, and tensors on the meta device have none."""
    before, wanted = list[Tensor](), module.get_submodule(path)
    for layer in module.modules():
        if layer is wanted:
            break
        before = [*layer.parameters(recurse=False), *before]
    near = chain(wanted.parameters(), before, module.parameters())
    usable = [parameter for parameter in near if parameter.is_floating_point() and parameter.element_size() > 1]
    return next((parameter for parameter in usable if not parameter.is_meta), (*usable, torch.empty(0))[0])


def _positive(features: Tensor) -> bool:
    """Return whether no feature is below 0; False where that is unknown."""
    try:
        return bool((features >= 0).all())
    except RuntimeError:  # a tensor without values, as on the meta device
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedRole:
    """What a seed does in a forward pass."""

    alpha: float
    """Blend weight, in [0, 1]."""
    straight: bool
    """True if the seed learns behind the module, straight-through: alpha is 0, but the seed's gradient is that of alpha 1."""
    opens: bool
    """True if the seed's gradient reaches the layers before it."""
    learns: bool
    """True if the seed's parameters get a gradient."""


OFF = SeedRole(alpha=0.0, straight=False, opens=False, learns=False)
IN_LOOP = SeedRole(alpha=1.0, straight=False, opens=True, learns=True)
"""Role of an incubating seed in the pass of a closed loop."""


class GrowingSlot(nn.Module):
    """One slot: `slot(h)` is the output h of its submodule, with the seed blended in if there is one."""

    def __init__(self, spec: SlotSpec, features: Tensor, order: str | None = None) -> None:
        """
        Args:
            features: features of the example in this slot, in the order of seeds.
            order: order of the axes in the output of the submodule, if it is not that of seeds.
        """
        super().__init__()
        self.spec, self.order = spec, order
        self._shape: torch.Size | None = features.shape[1:]
        self._positive = _positive(features)
        self._single = False
        """Whether the last features were a single position."""
        self._cached = 0
        """Number of positions in the cache that the submodule got."""
        self.probed: list[BlueprintConfig] = []
        """Blueprints of the user's own that `probe` has accepted."""
        self.seed: nn.Module | None = None
        self.blueprint: BlueprintConfig | None = None
        self.blend = Blend.ADD
        self._born: list[tuple[int, Tensor]] = []
        self._learnable: list[str] = []
        """Names of the seed's parameters, except those that the blueprint froze. `load_state_dict` may replace the parameters."""
        self.role = OFF
        self.play(OFF)
        self.capturing = False
        """If true, append the outputs of the slot to `captured`."""
        self.captured: list[Tensor] = []
        self.saving = False
        """Whether the state of the whole network is being taken."""

    def __setstate__(self, state: dict[str, Any]) -> None:  # files of earlier versions lack what was added later
        added = {"order": None, "_shape": None, "_positive": False, "_single": False, "_cached": 0, "probed": [], "saving": False}
        super().__setstate__(added | state)

    def hook(self, submodule: nn.Module) -> RemovableHandle:
        """Put the slot after a submodule, before the hooks of others, such as those that note hidden states."""
        return submodule.register_forward_hook(self._after, prepend=True, with_kwargs=True)

    def _after(self, _: nn.Module, given: tuple[object, ...], *rest: Any) -> Any:
        """Return the output of the slot for an output of the submodule, the last argument. The one before holds the keyword
        arguments, except in files of earlier versions."""
        output = rest[-1]
        if self.seed is None and not self.capturing:
            return output
        own: Any = features_of(output)
        if isinstance(own, Proxy):
            raise ValueError(
                f"slot {self.spec.name}: torch.fx would leave its seed out of the graph: write the network by net.export, or "
                "trace a module that has no seeds"
            )
        if not torch.compiler.is_compiling():
            self._cached = cached_positions([*given, *rest[0].values()]) if len(rest) == 2 else 0
        order = self.order if self.order and fits(own, self.order) else None
        h = in_order_of_seeds(own, order) if order else own
        features = self(h)
        if features is h:
            return output
        return with_features(output, in_own_order(features, order, own) if order else features)

    def _replicate_for_data_parallel(self) -> nn.Module:
        raise RuntimeError("nn.DataParallel cannot copy slots to several devices: use DistributedDataParallel")

    def probe(self, blueprint: BlueprintConfig) -> None:
        """Raise ValueError if a seed of a blueprint that is not Esper's cannot grow here; see `check_newborn`."""
        if type(blueprint).__module__.startswith("esper.") or blueprint in self.probed or self._shape is None:
            return
        features = torch.randn((2, *self._shape), generator=torch.Generator().manual_seed(0))
        check_newborn(blueprint, self.spec, features.abs() if self._positive else features)
        self.probed.append(blueprint)

    @torch.inference_mode(False)
    def plant(self, blueprint: BlueprintConfig, how: Blend, like: Tensor, gradients: SlotGradients | None) -> None:
        """Plant a newborn seed, with initial weights from torch's global random stream.

        Args:
            like: a tensor with the dtype and device of the seed's parameters.
            gradients: slot gradients, which a blueprint with informed initial weights needs.
        """
        seed = seed_module(blueprint, self.spec, gated=how is Blend.GATE)
        if is_informed(blueprint) and gradients is not None:
            branch = seed if how is not Blend.GATE else seed.get_submodule("branch")
            inform(branch, gradients.scaled() if how is Blend.MULTIPLY else gradients)
        self.seed, self.blueprint, self.blend = seed.to(like.device, like.dtype), blueprint, how
        self._learnable = [name for name, parameter in self.seed.named_parameters() if parameter.requires_grad]
        self._set_learning(self.role.learns)
        self._born = [(parameter._version, parameter.detach().clone()) for parameter in self.seed.parameters()]

    def untrained(self) -> bool:
        """Return whether there is a seed whose parameters were never written to since it was planted.

        PyTorch does not count what an optimizer writes to `parameter.data`, so values are compared too.
        """
        if self.seed is None:
            return False
        pairs = zip(self.seed.parameters(), self._born, strict=True)
        same = all(now._version == version and now.equal(value.to(now)) for now, (version, value) in pairs)
        self._born = self._born if same else [(-1, value.new_empty(0)) for _, value in self._born]
        return same

    def clear(self) -> None:
        """Remove the seed."""
        self.seed, self.blueprint = None, None
        self._born, self._learnable = [], []
        self.play(OFF)

    def play(self, role: SeedRole) -> None:
        """Set the role of the seed until the next call. Parameters that a user froze stay so while it goes on learning."""
        if role.learns is not self.role.learns:
            self._set_learning(role.learns)
        self.role = role
        self._blended, self._straight, self._opens = role.alpha > 0, role.straight, role.opens
        with torch.inference_mode(False):  # a measurement without gradients also sets roles
            self._alpha = torch.tensor(role.alpha, device="cpu")  # no number: torch.compile would compile again for each value

    def learning(self) -> list[nn.Parameter]:
        """Return the parameters of the seed that get a gradient."""
        return [] if self.seed is None else [one for one in self.seed.parameters() if one.requires_grad]

    def _set_learning(self, learns: bool) -> None:
        if self.seed is not None:
            for name in self._learnable:
                self.seed.get_parameter(name).requires_grad_(learns)

    def forward(self, h: Tensor) -> Tensor:
        if self.seed is not None and (self._blended or (self._straight and torch.is_grad_enabled())):
            h = self._with(self.seed, h)
        if self.capturing:
            single = h.dim() == AXES[self.spec.layout][0] - 1
            h = h if h.requires_grad else h.detach().requires_grad_()
            h = h[None] if single else h
            self.captured.append(h)
            h = h[0].clone() if single else h.clone()  # the code after the slot may work in place
        return h

    def _with(self, seed: nn.Module, h: Tensor) -> Tensor:
        """Return the output of the slot with its seed.

        Raises:
            ValueError: the features have other axes than those of the example, or are nested.
        """
        refuse_nested(self.spec.name, h)
        axes = AXES[self.spec.layout][0]
        if h.dim() == axes - 1:  # a single sample, as in torch.vmap
            return self._with(seed, h[None])[0]
        if h.dim() != axes:
            raise ValueError(
                f"slot {self.spec.name}: seeds grow on {self.spec.layout} here, as in the example of esper.grow, but this output "
                f"has the shape {tuple(h.shape)}: give esper.grow a batch as example"
            )
        if not torch.compiler.is_compiling():
            single = h.dim() == 3 and h.shape[1] == 1 and self._shape is not None and self._shape[0] > 1
            if (single and self._single) or (h.dim() == 3 and self._cached > h.shape[1]):
                warn_of_cache(self.spec.name, seed)
            self._single = single
        given = h if self._opens else h.detach()
        if torch.is_grad_enabled() and not given.requires_grad and given.device.type == "cpu":
            # torch 2.13 crashes in the backward of a group norm on channels-last images that need no gradient.
            given = given.contiguous()
        delta = seed(self._in_its_precision(seed, given)).to(h.dtype)
        if self.blend is Blend.MULTIPLY:
            delta = (h.detach() if self._straight else h) * torch.tanh(delta)
        if self._straight:
            return h + (delta - delta.detach())  # 0, or NaN where delta is not finite
        return h + (self.role.alpha if torch.compiler.is_exporting() else self._alpha) * delta

    @staticmethod
    def _in_its_precision(seed: nn.Module, h: Tensor) -> Tensor:
        """Return features in the precision of a seed's parameters, which may differ where a network mixes precisions."""
        if not h.is_meta and torch.is_autocast_enabled(h.device.type):
            return h
        return h.to(next((one.dtype for one in seed.parameters() if one.is_floating_point()), h.dtype))


class StateHook:
    """Warns if the state of a module is taken without that of the seed in a slot."""

    def __init__(self, slot: GrowingSlot) -> None:
        self.slot = slot

    def __call__(self, _: nn.Module, __: object, *___: object) -> None:
        if self.slot.seed is not None and not self.slot.saving:
            warnings.warn(
                f"this state_dict leaves out the seed in slot {self.slot.spec.name}: call state_dict of the network that "
                "esper.grow returned, not of its module",
                stacklevel=3,
            )


def on_cpu(network: nn.Module) -> nn.Module:
    """Return a network, or a copy on the CPU of one that is elsewhere."""
    elsewhere = any(part.device.type != "cpu" for part in chain(network.parameters(), network.buffers()))
    return copy.deepcopy(network).cpu() if elsewhere else network


class OneInput(nn.Module):
    """A module with one input tensor, as exporters want it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """Put a module into evaluation mode, and each of its modules back into its own mode afterwards.

    A module with a `train` of its own, such as a LoRA layer that merges its weights for evaluation, is called.
    """
    modes = {one: one.training for one in module.modules()}
    set_evaluation(module)
    try:
        yield
    finally:
        for one, mode in modes.items():
            if one.training is not mode and type(one).train is not nn.Module.train:
                one.train(mode)  # which may set the modes of others
        for one, mode in modes.items():
            one.training = mode


@contextmanager
def computed_in_loop(network: nn.Module, slots: Sequence[GrowingSlot], learning: Sequence[nn.Parameter]) -> Generator[None]:
    """Compute the seeds of these slots at alpha 1 within a `with` block, in which only these parameters get a gradient."""
    kept, roles = {id(parameter) for parameter in learning}, [slot.role for slot in slots]
    held = [one for one in network.parameters() if one.requires_grad and id(one) not in kept]
    try:
        for parameter in held:
            parameter.requires_grad_(False)
        for slot in slots:
            slot.play(replace(IN_LOOP, learns=slot.role.learns))
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)
        for slot, role in zip(slots, roles, strict=True):
            slot.play(role)


def checked_loss(loss: Callable[[], Tensor]) -> Tensor:
    """Return the loss that a function computes.

    Raises:
        ValueError: it is no function, or does not return a loss that can be backpropagated.
    """
    if not callable(loss):
        raise ValueError(f"loss must be a function, such as lambda: criterion(net(x), y), got a {type(loss).__name__}")
    try:
        value = loss()
    except Exception as error:
        error.add_note("The network is in evaluation mode here, in which some models return another output.")
        raise
    given = cast(object, value)
    if not isinstance(given, Tensor) or given.numel() != 1:
        got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
        raise ValueError(f"loss() must return the mean loss of a batch, a tensor with one number, got {got}")
    if not value.requires_grad:
        raise ValueError(
            "loss() must return a loss that depends on the network, without detach() or torch.no_grad(); with activation "
            "checkpointing, use use_reentrant=False"
        )
    return value


def slot_gradients(slots: list[GrowingSlot], loss: Callable[[], Tensor]) -> list[SlotGradients | None]:
    """Return the features that leave each slot in one forward pass, and the gradient of the loss at them; None for a slot on
    which the loss does not depend.

    Raises:
        ValueError: a slot is passed through more than once, or the loss depends on none of them.
    """
    for slot in slots:
        slot.captured, slot.capturing = [], True
    try:
        with torch.enable_grad(), torch.compiler.set_stance("force_eager"):  # a compiled program returns copies of the features
            value = checked_loss(loss)
            for slot in slots:
                if len(slot.captured) > 1:
                    raise ValueError(
                        f"slot {slot.spec.name} ran {len(slot.captured)} times in loss(): let it compute one batch, and "
                        "put the slot after a submodule that is used once per forward pass"
                    )
            reached = {slot.spec.name: slot.captured[0] for slot in slots if slot.captured}
            ends = torch.autograd.grad(value, [*reached.values()], allow_unused=True) if reached else ()
            grads = dict(zip(reached, cast(tuple[Tensor | None, ...], ends), strict=True))
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise ValueError("there are no gradients at slots: with activation checkpointing, use use_reentrant=False") from error
    finally:
        for slot in slots:
            slot.captured, slot.capturing = [], False
    names, single = [slot.spec.name for slot in slots], torch.get_default_dtype()  # of newborn seeds
    if all(grads.get(name) is None for name in names):
        raise ValueError(f"the loss does not depend on slot {' or '.join(names)}: let loss() return the loss of a forward pass")
    found = dict[str, SlotGradients]()
    for name, grad in grads.items():
        if grad is not None:
            found[name] = SlotGradients(features=reached[name].detach()[None].to(single), grad=grad[None].to(single))
    return [found.get(name) for name in names]
