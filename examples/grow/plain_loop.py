"""Grow a network in a training loop of your own, and compare it with one that does not grow. Needs Esper only.

python examples/grow/plain_loop.py [epochs]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import esper

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
train, val = torch.arange(1200), torch.arange(1200, len(x))


def run(grows: bool) -> float:
    torch.manual_seed(0)
    order = torch.Generator().manual_seed(0)  # of its own, since planting draws from the global one
    module = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16, 10))
    net = esper.grow(module, slots={"early": "1", "late": "2"}, example=x[:2])
    optimizer = torch.optim.Adam(net.module.parameters(), lr=3e-3)
    net.attach(optimizer)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x[batch]), y[batch])

    def correct() -> torch.Tensor:
        return 100.0 * (net(x[val]).argmax(1) == y[val])

    for epoch in range(1, epochs + 1):
        if grows and epoch == 2:  # plant the seed whose first gradient promises most
            potential = net.potential(lambda: loss(train[:256]))
            where = {(slot, one): value for slot, values in potential.items() for one, value in values.items() if value == value}
            slot, blueprint = max(where, key=where.__getitem__)
            net.germinate(slot, blueprint)
            print(f"epoch {epoch}: planted {blueprint} in slot {slot}")
        net.begin_epoch()
        for batch in train[torch.randperm(len(train), generator=order)].split(64):
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
        for slot, one in net.contributions(correct).items():
            print(f"epoch {epoch}: the seed in slot {slot} contributes {one.value:.1f} +- {one.error:.1f} pp")
    net.eval()
    return float(correct().mean())


grown, alone = run(grows=True), run(grows=False)
print(f"accuracy {grown:.1f} % with the seed, {alone:.1f} % without growth")
