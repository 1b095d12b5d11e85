"""Seeds on a GPU: windowed attention by its own kernel, and `esper.grow` in a network of a user, with a recurrent layer."""

import copy
import io
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import esper
from esper.growable.module import GrowableModule
from esper.seeds.blueprints.attention import by_flex, by_mask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device on this machine")


def test_the_window_by_flex_attention_has_the_same_gradient() -> None:
    grads = list[Tensor]()
    qkv = torch.randn(3, 2, 4, 130, 16, device="cuda")
    for attend in (by_flex, by_mask):
        leaf = qkv.clone().requires_grad_()
        attend(*leaf, 16).square().sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad)
    assert torch.allclose(*grads, atol=2e-2)


def test_the_window_can_be_computed_in_several_threads() -> None:
    failed = list[BaseException]()

    def attend(positions: int) -> None:
        try:
            for _ in range(3):
                leaf = torch.randn(3, 1, 2, positions, 16, device="cuda", requires_grad=True)
                by_flex(*leaf, 7).sum().backward()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=attend, args=(positions,)) for positions in (24, 40, 56)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


class Recurrent(nn.Module):
    """A convolution, and an LSTM over the columns of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm, self.head = nn.Conv2d(1, 4, 1), nn.LSTM(32, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(self.conv(x).flatten(1, 2).transpose(1, 2))
        return self.head(y[:, -1])


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(16, 1, 8, 8).cuda(), torch.randint(0, 3, (16,)).cuda()


def grown() -> GrowableModule:
    torch.manual_seed(0)
    return esper.grow(Recurrent().cuda(), ["conv"], batch()[0][:2], incubation="closed_loop")


def test_a_seed_grows_behind_a_network_with_a_recurrent_layer() -> None:
    net, (x, y) = grown(), batch()
    optimizer = torch.optim.Adam(net.module.parameters(), lr=0.01)
    net.attach(optimizer)
    assert net.potential(lambda: cross_entropy(net(x), y))["conv"]["conv_light"] > 0
    seed = net.germinate("conv", "conv_light")
    before = copy.deepcopy(seed.state_dict())
    for _ in range(2):
        net.begin_epoch()
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        net.incubate(lambda: cross_entropy(net(x), y))
        optimizer.step()
    assert any(not value.equal(before[name]) for name, value in seed.state_dict().items())


@pytest.mark.parametrize("format", ["pytorch", "safetensors", "onnx"])
def test_checkpoints_and_files_of_a_network_on_a_gpu(format: str, tmp_path: Path) -> None:
    net, (x, _), file = grown(), batch(), io.BytesIO()
    net.germinate("conv", "conv_light")
    net.begin_epoch()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = grown()
    other.load_state_dict(torch.load(file, map_location="cuda", weights_only=True))
    assert other.eval()(x).equal(net.eval()(x))
    assert next(other.seed("conv").parameters()).is_cuda  # pyright: ignore[reportOptionalMemberAccess]
    assert net.export(tmp_path, x, format) < 1e-3
    assert next(net.parameters()).is_cuda
