"""`torch.compile` of a network with slots: the same numbers, without a new program for every value of alpha."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.debugging import aot_eager, eager  # pyright: ignore

import esper
from esper.growable.module import GrowableModule
from tests.growable.test_grow import SLOTS, batch, module, moved


def lived(incubation: str, compiled: Callable[[GrowableModule], Any], blend: str, ramp: int) -> list[float]:
    """Return what a network computes, and what is measured, in the epochs of a seed's life."""
    torch.manual_seed(3)
    (x, y), found = batch(), list[float]()
    net = esper.grow(module(), SLOTS, x, incubation=incubation)
    program = compiled(net)
    optimizer = torch.optim.SGD(net.module.parameters(), lr=0.1)
    net.attach(optimizer)

    def loss() -> torch.Tensor:
        return F.cross_entropy(program(x), y)

    for epoch in range(8):
        if epoch == 1:
            found.append(net.potential(loss, ["conv_light"])["early"]["conv_light"])
            net.germinate("early", "conv_light", blend=blend, ramp=ramp)
            moved(net.seed("early"))
        if epoch == 3:
            net.advance("early")
        if epoch == 7:
            net.prune("early")
        net.begin_epoch()
        optimizer.zero_grad()
        loss().backward()
        net.incubate(loss)
        optimizer.step()
        with torch.no_grad():
            found += [float(loss()), *(one.value for one in net.contributions(lambda: -F.cross_entropy(program(x), y)).values())]
    assert net.stage("early").name == "PRUNED"
    return found


def compiled_life(incubation: str, blend: str, ramp: int, backend: Callable[..., Any] = aot_eager) -> tuple[list[float], int]:
    """Return the same of a compiled network, and the number of programs."""
    torch.compiler.reset()
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return backend(graph, inputs)

    with torch._dynamo.config.patch(recompile_limit=32):  # pyright: ignore
        return lived(incubation, lambda net: torch.compile(net, backend=counted, fullgraph=True), blend, ramp), len(graphs)


@pytest.mark.slow
@pytest.mark.parametrize(("incubation", "blend"), [("straight_through", "multiply"), ("closed_loop", "gate")])
def test_a_compiled_network_lives_the_same_life(incubation: str, blend: str) -> None:
    found, count = compiled_life(incubation, blend, 3)
    assert found == pytest.approx(lived(incubation, lambda net: net, blend, 3), rel=1e-5, abs=1e-6)
    assert incubation != "straight_through" or compiled_life(incubation, blend, 1, eager)[1] == count, (
        "alpha needs no new program"
    )
