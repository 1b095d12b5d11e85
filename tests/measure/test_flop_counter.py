"""FLOPs of running code, against PyTorch's own counter."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from esper.measure.flop_counter import FlopCounter

CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 5)
        ),
        torch.randn(2, 3, 8, 8),
    ),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8)),
    "vectors": (nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.LayerNorm(8)), torch.randn(3, 4, 8)),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("case", CASES)
def test_it_counts_as_the_counter_of_pytorch_does(case: str, mode: Callable[[], AbstractContextManager[object]]) -> None:
    module, x = CASES[case]
    with mode(), FlopCounterMode(display=False) as theirs:
        expected = module(x)
    with mode(), FlopCounter() as ours:
        y = module(x)
    assert ours.flops == theirs.get_total_flops() > 0
    assert torch.equal(y, expected)


def seven(x: Tensor, out_val: Tensor) -> int:
    return 7 * out_val.numel()


def test_kernels_without_a_formula_may_get_one() -> None:
    with FlopCounter({torch.ops.aten.sin: seven}) as counter:
        torch.sin(torch.zeros(3))
        torch.cos(torch.zeros(3))
    assert counter.flops == 21
