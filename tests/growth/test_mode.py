"""Evaluation mode, in which cuDNN can compute the gradients of recurrent layers too."""

import torch
from torch import Tensor, nn

from esper.growth.mode import set_evaluation
from esper.growth.network import GrowingNetwork
from esper.hosts.base import Host, SlotSpec
from esper.optimisers.sgd import SGDConfig


class Last(nn.Module):
    """A recurrent layer; `modes` says whether it was in training mode in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.modes = nn.GRU(3, 4, batch_first=True), list[bool]()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.gru.training)
        y, _ = self.gru(x[:, None])
        return y[:, -1]


def test_only_recurrent_layers_without_dropout_stay_in_training_mode() -> None:
    layers = nn.ModuleList([nn.GRU(2, 2, 2), nn.GRU(2, 2, 2, dropout=0.5), nn.BatchNorm2d(2), nn.Dropout()])
    set_evaluation(layers)
    assert [layer.training for layer in layers] == [True, False, False, False]


def test_slot_gradients_of_a_host_with_a_recurrent_layer_are_computed_in_its_training_mode() -> None:
    host = Host([nn.Linear(2, 3), Last()], [SlotSpec("one", 3)])
    network = GrowingNetwork([host], [], optimiser=SGDConfig())
    last = next(layer for layer in network.host.module.modules() if isinstance(layer, Last))
    last.modes.clear()
    network.capture(torch.randn(5, 2), torch.zeros(1, 5, dtype=torch.long))
    assert last.modes == [True]
    assert not network.host.module.training
