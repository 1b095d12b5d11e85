"""Seeds in a network of your own, with a training loop of your own: `esper.grow(module, slots=...)`.

Lifecycle (docs/lifecycle.md), blueprints and blending are those of Esper's hosts; there is one host, and you are the controller.
See docs/howto/grow.md.
"""

# K blueprints

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from esper.evaluation.exported import write
from esper.growable import refusal
from esper.growable.reasons import reason
from esper.growable.score import Contribution, Score, check_scores, difference, mean_score, measure, measured
from esper.growable.seed_groups import SeedGroups
from esper.growable.slot import (
    OFF,
    GrowingSlot,
    OneInput,
    SeedRole,
    checked_loss,
    computed_in_loop,
    evaluating,
    on_cpu,
    parameter_near,
    slot_gradients,
)
from esper.growable.stored import as_lists, as_state, decode, encode
from esper.growable.topology import able_in, blueprint_for, choice, contents, labelled, planted, replant, settings, whole
from esper.growable.wrapper import ModuleWrapper
from esper.lifecycle import operations
from esper.lifecycle.gates import GatesConfig, gate_open, may_fossilize
from esper.lifecycle.operations import may_germinate, may_prune, may_retarget, may_switch
from esper.lifecycle.ramps import Curve
from esper.lifecycle.roles import Blend, Incubation
from esper.lifecycle.slots import SlotsConfig
from esper.lifecycle.stages import EMPTY, BoolArray, SlotState, Stage, empty
from esper.measure.potential import SlotSensor
from esper.seeds.blueprints.base import BlueprintConfig, is_informed
from esper.seeds.slot_gradients import SlotGradients


class GrowableModule(ModuleWrapper):
    """A module with slots in which seeds grow. Call it like the module itself, whose other attributes it has, too.

    Every method that plants, moves or removes a seed raises ValueError, in one sentence, if the lifecycle does not permit it.
    """

    def __init__(
        self,
        module: nn.Module,
        places: Mapping[str, str],
        slots: Sequence[GrowingSlot],
        rules: SlotsConfig,
        gates: GatesConfig,
    ) -> None:
        """See `grow`; `places` has the path of each slot's submodule by the name of the slot."""
        super().__init__()
        self.module, self.rules, self.gates = module, rules, gates
        self._names, self._paths = tuple(places), tuple(places.values())
        self._chosen_S = refusal.chosen(rules, self._names)
        self._state = empty(1, len(places))
        self._born: list[int] = []
        """Slots with a seed, in the order of their planting."""
        self._groups: SeedGroups | None = None
        self._trained, self._incubated = False, False
        """Whether there was a training pass, and a call of `incubate`, since the last `begin_epoch`."""
        self._whole, self._learns_in_loop = True, False
        self.slots = nn.ModuleList(slots)
        for slot, path in zip(self._slots, self._paths, strict=True):
            slot.hook(module.get_submodule(path))
        self._watch()

    def __getstate__(self) -> dict[str, Any]:  # a copy or a file would hold the optimizer, and its state of all parameters
        return self.__dict__ | {"_groups": None, "_whole": True}

    def __setstate__(self, state: dict[str, Any]) -> None:  # files of earlier versions lack what was added later
        super().__setstate__({"_trained": False, "_incubated": False} | state)

    @property
    def _slots(self) -> list[GrowingSlot]:
        return cast(list[GrowingSlot], list(self.slots))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._learns_in_loop and self.training and torch.is_grad_enabled():  # plain values, for torch.compile
            self._trained = True
        return self.module(*args, **kwargs)

    # ---- what there is

    def stage(self, slot: str) -> Stage:
        """Return the stage of a slot."""
        return Stage(int(self._state.stage[0, self._index(slot)]))

    def alpha(self, slot: str) -> float:
        """Return the blend weight of the seed in a slot, 0 without a seed."""
        return float(self._state.alpha[0, self._index(slot)])

    def seed(self, slot: str) -> nn.Module | None:
        """Return the module of the seed in a slot; None if there is none."""
        return self._slots[self._index(slot)].seed

    # ---- what you can do

    def attach(self, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        """Let an optimizer train the seeds: each is a parameter group from its planting to its removal.

        Args:
            optimizer: optimizer of the module. One that was attached before is left as it is.
            settings: settings of these groups, such as `lr=1e-3`; others are the optimizer's defaults.
        """
        groups = SeedGroups(optimizer, settings)
        groups.check({name: slot.seed for name, slot in zip(self._names, self._slots, strict=True)}, self._groups)
        groups.warn_of_others(self.module)
        self._groups = groups
        self._update()

    def germinate(
        self,
        slot: str,
        blueprint: str | BlueprintConfig,
        *,
        blend: str = "add",
        alpha: float = 1.0,
        ramp: int = 0,
        curve: str = "linear",
        loss: Callable[[], Tensor] | None = None,
    ) -> nn.Module:
        """Plant a seed, and return its module. Its output is zero at birth; `begin_epoch` starts its training.

        Args:
            slot: name of the slot.
            blueprint: name of a blueprint, for its default settings, or its config.
            blend: how the seed joins the features: add, multiply, or gate (add, with a learned weight per sample).
            alpha: blend weight at the end of blending, in (0, 1].
            ramp: epochs of blending from 0 to alpha, at least 0; no effect without incubation, with a warning.
            curve: course of alpha: linear, cosine, sigmoid_gentle, sigmoid, sigmoid_sharp.
            loss: function that returns the loss of one batch, for a blueprint with `init=informed`.
        """
        index = self._permitted(slot, "germinate", may_germinate(self._state, self.rules, self._chosen_S))
        here, how, shape = self._slots[index], choice("blend", Blend, blend), choice("curve", Curve, curve)
        refusal.check_weight(alpha, above=0)
        refusal.warn_of_processes()
        config, ticks = blueprint_for(blueprint, here), whole("ramp", ramp)
        refusal.warn_of_idle_ramp(ticks, self.rules.incubation.value)
        gradients = self._gradients(refusal.informing(loss), [here])[0] if is_informed(config) else None
        here.plant(config, how, parameter_near(self.module, self._paths[index]), gradients)
        self._set(
            operations.germinate(
                self._state,
                self._only(index),
                blueprint_N=np.zeros(1, dtype=np.int64),
                blend_N=np.array([how]),
                target_N=np.array([alpha], dtype=np.float32),
                ticks_N=np.array([ticks]),
                curve_N=np.array([shape]),
            )
        )
        self._born.append(index)
        self._update()
        seed = here.seed
        assert seed is not None
        return seed

    def advance(self, slot: str) -> Stage:
        """Move a seed to its next stage, a holding one to fossilized, and return the stage; a closed gate is a ValueError."""
        is_open = gate_open(self._state, self.gates) | may_fossilize(self._state, self.gates)
        self._set(operations.advance(self._state, self._only(self._permitted(slot, "advance", is_open)), self.rules))
        return self.stage(slot)

    def fossilize(self, slot: str) -> None:
        """Keep a seed for good: it must be holding, and its contribution measured."""
        index = self._permitted(slot, "fossilize", may_fossilize(self._state, self.gates))
        self._set(operations.fossilize(self._state, self._only(index)))

    def set_alpha(self, slot: str, alpha: float, *, ramp: int = 0, curve: str = "linear") -> None:
        """Move the blend weight of a blending or holding seed to a new target in [0, 1], over `ramp` epochs; 0: at once."""
        refusal.check_weight(alpha)
        index = self._permitted(slot, "set_alpha", may_retarget(self._state))
        target, ticks, shape = np.array([alpha], dtype=np.float32), np.array([whole("ramp", ramp)]), choice("curve", Curve, curve)
        state = operations.retarget(self._state, self._only(index), target_N=target, ticks_N=ticks, curve_N=np.array([shape]))
        self._set(state)

    def switch(self, slot: str) -> None:
        """Switch a fossil off, or on again, if `rules.switchable`."""
        self._set(
            operations.switch(self._state, self._only(self._permitted(slot, "switch", may_switch(self._state, self.rules))))
        )

    def prune(self, slot: str, *, ramp: int = 0, curve: str = "linear") -> None:
        """Remove a seed that is not a fossil: at once or, if it is blending or holding, over `ramp` epochs of falling alpha."""
        index = self._permitted(slot, "prune", may_prune(self._state, self.rules))
        ticks, shape = np.array([whole("ramp", ramp)]), np.array([choice("curve", Curve, curve)])
        refusal.check_ramp(ramp, slot, self.stage(slot))
        self._set(operations.ramp_down(self._state, self._only(index), ticks_N=ticks, curve_N=shape))

    def begin_epoch(self) -> None:
        """Apply what happens without an action: ramps, ages, automatic stages. Call it before the training of each epoch.

        Raises:
            RuntimeError: a seed trained in a closed loop, and `incubate` was not called.
        """
        refusal.check_whole(self._whole, "begin_epoch")
        self._check_places()
        refusal.check_incubated(self._trained, self._incubated)
        learnt_S = operations.roles(self._state, self.rules).learns[0] & (self._state.stage_age[0] >= 1)  # for an epoch
        for name, slot, learned in zip(self._names, self._slots, learnt_S, strict=True):
            if learned and slot.untrained():
                refusal.warn_untrained(name)
        self._set(operations.tick(self._state, self.rules, self.gates))
        self._trained, self._incubated = False, False

    def incubate(self, loss: Callable[[], Tensor]) -> None:
        """Compute the gradients of the seeds that train behind the module (closed loop), in a second pass that includes them.

        Nothing else gets a gradient; the pass runs in evaluation mode. Without such a seed, it does nothing.

        Args:
            loss: function that computes the loss of the current batch as it is backpropagated, such as
                `lambda: criterion(net(x), y)`, or `lambda: scaler.scale(criterion(net(x), y)) / batches` with a gradient scaler
                and gradients that are accumulated.
        """
        refusal.check_whole(self._whole, "incubate")
        self._check_places()
        learns_S, behind_S = self._in_loop(), operations.roles(self._state, self.rules).behind[0]
        slots = [slot for slot, behind in zip(self._slots, behind_S, strict=True) if behind]
        learning = [one for slot, learns in zip(self._slots, learns_S, strict=True) if learns for one in slot.learning()]
        if learning:
            with computed_in_loop(self, slots, learning), evaluating(self), torch.enable_grad():
                checked_loss(loss).backward(inputs=learning)
        self._incubated = True

    # ---- what you can measure

    @contextmanager
    def without(self, slot: str) -> Generator[None]:
        """Switch the seed of a slot off within a `with` block."""
        here = self._slots[self._index(slot)]
        role, whole = here.role, self._whole
        here.play(replace(OFF, learns=role.learns))
        self._whole = False
        try:
            yield
        finally:
            here.play(role)
            self._whole = whole

    def contributions(self, score: Score) -> dict[str, Contribution]:
        """Measure what each blended seed is worth: the score minus the score without it. Gates read the result.

        Args:
            score: function that returns the score of the network on validation data, higher is better: a number, or a tensor or
                array of one value per sample, whose mean is the score and whose paired differences give the standard error. It
                runs without gradients, in evaluation mode, once for the network and once per seed.
        """
        refusal.check_whole(self._whole, "contributions")
        self._check_places()
        refusal.warn_of_no_epoch({name: self.stage(name) for name in self._names})
        with evaluating(self), torch.no_grad():
            score_now, found = measure(score), dict[str, Contribution]()
            for name in filter(self.alpha, self._names):
                with self.without(name):
                    found[name] = difference(score_now, measure(score))
        check_scores(score_now, found, self.gates.contribution_z)
        self._state = measured(self._state, self._names, found, mean_score(score_now))
        return found

    def potential(
        self, loss: Callable[[], Tensor], blueprints: Sequence[str | BlueprintConfig] = ()
    ) -> dict[str, dict[str, float]]:
        """Measure how much a newborn seed of each blueprint would lower the loss, by slot; see `esper.measure.potential`.

        Args:
            loss: function that returns the mean loss of one batch of training data.
            blueprints: names or configs; by default every blueprint that can grow in the slot.

        Returns:
            Growth potential by slot and blueprint, as in conv_light or, for a config, conv_light(kernel=5) [nats per unit of the
            seed's learning rate]; NaN, with a warning, in a slot on which the loss does not depend, or where the batch has too
            few samples.
        """
        refusal.check_places(self.module, dict(zip(self._paths, self._slots, strict=True)))
        found: dict[str, dict[str, float]] = {}
        for slot, gradients in zip(self._slots, self._gradients(loss, self._slots), strict=True):
            configs = labelled(blueprints or able_in(slot.spec), slot)
            found[slot.spec.name] = dict.fromkeys(configs, math.nan)
            if gradients is None:
                refusal.warn_unreached(slot.spec.name)
                continue
            refusal.warn_of_no_gradient(slot.spec.name, gradients.grad)
            sensor = SlotSensor(list(configs.values()), slot.spec, gradients.grad.device)
            found[slot.spec.name] = dict(zip(configs, sensor.measure(gradients)[0].tolist(), strict=True))
        return found

    # ---- what you can take away

    def export(self, folder: Path | str, samples: Tensor, format: str = "pytorch") -> float:
        """Write the grown network to files that need no Esper, and return their largest relative error against its outputs.

        Args:
            folder: folder of the files, created if it is missing.
            samples: at least three samples, on which the outputs of the files are compared with those of the network.
            format: pytorch, export, safetensors or onnx; see docs/howto/export.md.
        """
        refusal.check_export(format, samples)
        self._check_places()
        with evaluating(self):
            with torch.no_grad():
                refusal.check_exported(self(samples))  # a wrong shape fails here, in one line
            about = contents(self.module, dict(zip(self._names, self._slots, strict=True)), samples)
            return write(OneInput(on_cpu(self)), samples.cpu(), Path(folder), format, about)

    def get_extra_state(self) -> Tensor:
        """Return what a checkpoint holds besides parameters: the state of the slots, and the blueprints of their seeds."""
        own = settings(self._names, self._paths, self._slots, self.rules)
        return encode(own | {"state": as_lists(self._state), "seeds": planted(self._slots), "born": self._born})

    def set_extra_state(self, state: Tensor | Mapping[str, Any]) -> None:
        """Plant the seeds of a checkpoint, unless they are there; `load_state_dict` then loads their parameters."""
        saved = decode(state)
        refusal.check_checkpoint(saved, settings(self._names, self._paths, self._slots, self.rules))
        replant(self._slots, saved["seeds"], [parameter_near(self.module, path) for path in self._paths])
        self._state, self._born = as_state(saved["state"], len(self._slots)), list(saved["born"])
        self._trained, self._incubated = False, False
        self._play()
        self._update()

    # ---- how it is done

    def _index(self, slot: str) -> int:
        refusal.check_slot(slot, self._names)
        return self._names.index(slot)

    def _only(self, index: int) -> BoolArray:
        return (np.arange(len(self.slots)) == index)[None]

    def _permitted(self, slot: str, doing: str, may_NS: BoolArray) -> int:
        """Return the index of a slot in which an operation is permitted."""
        refusal.check_whole(self._whole, doing)
        index = self._index(slot)
        if not may_NS[0, index]:
            why = reason(doing, self._state, index, self.rules, self.gates, self._chosen_S)
            raise ValueError(f"{doing} is not permitted: slot {slot} {why}")
        refusal.check_places(self.module, {self._paths[index]: self._slots[index]})
        return index

    def _check_places(self) -> None:
        """Raise ValueError if a submodule with a seed was replaced."""
        refusal.check_places(self.module, {self._paths[index]: self._slots[index] for index in self._born})

    def _set(self, state: SlotState) -> None:
        """Set the state of the slots, and clear those that it empties."""
        self._state = state
        for index, slot in enumerate(self._slots):
            if slot.seed is not None and state.blueprint[0, index] == EMPTY:
                slot.clear()
                self._born.remove(index)
        self._play()
        self._update()

    def _in_loop(self) -> BoolArray:
        """Return which seeds learn in the pass of a closed loop `[S]`."""
        roles = operations.roles(self._state, self.rules)
        return (roles.behind & roles.learns)[0] & (self.rules.incubation is Incubation.closed_loop)

    def _play(self) -> None:
        """Give every seed its role, and drop the gradients of seeds that do not learn, so that no optimizer applies them."""
        roles, self._learns_in_loop = operations.roles(self._state, self.rules), bool(self._in_loop().any())
        closed = self.rules.incubation is Incubation.closed_loop
        for index, slot in enumerate(self._slots):
            alpha, behind, learns = float(roles.alpha[0, index]), bool(roles.behind[0, index]), bool(roles.learns[0, index])
            if roles.blueprint[0, index] == EMPTY or (behind and closed):
                slot.play(replace(OFF, learns=learns))
            else:
                slot.play(SeedRole(alpha=alpha, straight=behind, opens=bool(roles.open[0, index]), learns=learns))
            if slot.seed is not None and not learns:
                slot.seed.zero_grad(set_to_none=True)

    def _update(self) -> None:
        if self._groups is not None:
            self._groups.update([seed for index in self._born if (seed := self._slots[index].seed) is not None])

    def _gradients(self, loss: Callable[[], Tensor], slots: list[GrowingSlot]) -> list[SlotGradients | None]:
        with evaluating(self):
            return slot_gradients(slots, loss)
