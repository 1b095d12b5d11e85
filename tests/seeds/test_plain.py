"""A fleet of one plain module, for layers without a stacked form (members_per_shard=1)."""

import pytest
import torch
from torch import nn

from esper.fusion.fuse import Fleet, flatten_parameters
from esper.fusion.stacked import FusionError
from esper.optimisers.sgd import SGDConfig


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.PReLU()
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.act(self.one(x)))


class Recurrent(nn.Module):
    """The last state of an LSTM, which holds its weights in a list of its own too."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Listed(nn.Module):
    """Parameters in a ParameterList."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(2)])

    def forward(self, x):
        return torch.relu(x @ self.weights[0]) @ self.weights[1]


MODULES = {
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4)), (5, 4)),
    "batch_norm_1d": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (5, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 4, 2), (5, 4, 3, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (5, 3, 4)),
    "rms_norm": (lambda: nn.RMSNorm(4), (5, 3, 4)),
    "same_padding": (lambda: nn.Conv2d(4, 4, 3, padding="same"), (5, 4, 3, 3)),
    "tied": (Tied, (5, 4)),
    "recurrent": (Recurrent, (5, 3, 4)),
    "listed": (Listed, (5, 4)),
    "glu": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GLU()), (5, 4)),
}
each_module = pytest.mark.parametrize("name", MODULES)


@each_module
def test_a_plain_fleet_trains_like_the_module(float64, name):
    make, shape = MODULES[name]
    torch.manual_seed(1)
    module = make()
    fleet = Fleet([module])
    assert not fleet.stacked
    assert fleet.flat[0].equal(flatten_parameters(module))
    assert all(buffer.shape[0] == 1 for buffer in fleet.buffers.values())
    config = SGDConfig(max_norm=float("inf"), weight_decay=0.0)
    ours = config.build(fleet.flat)
    theirs = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    born = flatten_parameters(module)
    for _ in range(4):
        x = torch.randn(shape)
        loss, wanted = fleet.bind()(x).square().mean(), module(x).square().mean()
        assert torch.allclose(loss, wanted, atol=1e-12)
        for each in (loss, wanted):
            each.backward()
        ours.step(config.at(0)[0])
        theirs.step()
        theirs.zero_grad()
    after = flatten_parameters(module)
    assert torch.allclose(fleet.flat[0], after, atol=1e-10)
    assert (after != born).all() or name in ("attention", "batch_norm_1d", "recurrent")
    for key, buffer in module.named_buffers():
        assert torch.allclose(fleet.buffers[key][0], buffer)
        assert fleet.member(0).get_buffer(key).equal(fleet.buffers[key][0])
    assert flatten_parameters(fleet.member(0)).equal(fleet.flat[0])


def test_buffers_of_a_plain_fleet_can_be_read_and_written():
    fleet = Fleet([nn.BatchNorm1d(4)])
    fleet.buffers["running_mean"].fill_(7.0)
    x = torch.randn(6, 4)
    y = fleet.bind().eval()(x)
    assert torch.allclose(y, (x - 7.0) / (1 + 1e-5) ** 0.5, atol=1e-5)
    fleet.bind_some(torch.tensor([0])).train()(x)
    assert (fleet.buffers["running_mean"] == 7.0).all()
    fleet.bind().train()(x)
    assert not (fleet.buffers["running_mean"] == 7.0).any()


@each_module
def test_a_plain_fleet_of_two_is_refused(name):
    make, _ = MODULES[name]
    with pytest.raises(FusionError, match=r"members_per_shard=1"):
        Fleet([make(), make()])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        nn.Dropout,
        nn.RReLU,
        lambda: nn.LSTM(4, 4, 2, dropout=0.5),
        lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
        lambda: nn.Dropout2d(0.2),
    ],
)
def test_a_module_that_draws_random_numbers_is_refused(make, count):
    with pytest.raises(FusionError, match=r"^layer 0\.0 is a .*, which draws from torch's global random stream"):
        Fleet([nn.Sequential(nn.Sequential(make(), nn.PReLU())) for _ in range(count)])
