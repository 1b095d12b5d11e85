"""All hosts as one program by `torch.func`: `vmap` over stacked parameters, and `grad` of the loss of each."""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from esper.optimisers.sgd import SGDConfig
from esper.task.base import Task

Tensors = dict[str, Tensor]


class Vmapped:
    """Trains by the same rule as `torch.optim.SGD` after `clip_grad_norm_` on each host."""

    def __init__(self, task: Task, modules: list[nn.Module], optimiser: SGDConfig) -> None:
        self.task, self.config = task, optimiser
        self.host = deepcopy(modules[0])
        self.params, self.buffers = stack_module_state(modules)
        self.momenta = {name: torch.zeros_like(weight) for name, weight in self.params.items()}

        def loss(params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.host, (params, buffers), (x,)), y)

        self.grads = vmap(grad(loss))

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take one step of every host on its batch `[M, B, ...]`."""
        config = self.config
        with torch.no_grad():
            self.host.train()
            grads = self.grads(self.params, self.buffers, x, y)
            norm_M = torch.sqrt(sum(slope.flatten(1).square().sum(1) for slope in grads.values()))
            scale_M = (config.max_norm / (norm_M + 1e-6)).clamp(max=1.0)
            for name, weight in self.params.items():
                slope = grads[name] * scale_M.view(-1, *[1] * (weight.dim() - 1)) + config.weight_decay * weight
                self.momenta[name].mul_(config.momentum).add_(slope)
                weight.sub_(config.learning_rate * self.momenta[name])

    def accuracy(self) -> float:
        """Return the mean validation accuracy [pp]."""
        self.host.eval()
        with torch.no_grad():
            forward = vmap(lambda params, buffers: functional_call(self.host, (params, buffers), (self.task.data.valid_x,)))
            right = forward(self.params, self.buffers).argmax(-1) == self.task.data.valid_y
        return 100 * float(right.float().mean())
