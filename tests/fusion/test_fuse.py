"""Fused layers and hosts equal single ones."""

import copy

import pytest
import torch
from torch import nn

from esper.fusion.batch_last import is_batch_last
from esper.fusion.fuse import Fleet, flatten_parameters, fuse
from esper.fusion.layers import CausalAttention, ChannelScale, MaskedConv2d, MaskedLinear, Positions
from esper.fusion.layout import add_members, side_by_side, take_members
from esper.fusion.precision import HALF, Precision, computed_in
from esper.fusion.stacked import STACKED, FusionError
from esper.hosts.cnn import CNNConfig

CENTRE = torch.zeros(3, 3).index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(1.0))
LAYERS = {
    "conv": (lambda: nn.Conv2d(3, 5, 3, padding=1), (3, 7, 7)),
    "conv_1x1": (lambda: nn.Conv2d(5, 3, 1), (5, 7, 7)),
    "conv_no_bias_stride": (lambda: nn.Conv2d(3, 7, 3, stride=2, bias=False), (3, 7, 7)),
    "conv_dilated": (lambda: nn.Conv2d(1, 3, 3, dilation=2, padding=2), (1, 7, 5)),
    "conv_groups": (lambda: nn.Conv2d(9, 15, 3, groups=3, padding=1), (9, 5, 5)),
    "conv_depthwise": (lambda: nn.Conv2d(7, 7, 3, groups=7, padding=1, bias=False), (7, 5, 5)),
    "masked_conv": (lambda: MaskedConv2d(3, 5, 3, CENTRE, padding=1), (3, 7, 7)),
    "batch_norm": (lambda: nn.BatchNorm2d(5, momentum=0.3, eps=1e-3), (5, 7, 7)),
    "batch_norm_of_one_channel": (lambda: nn.BatchNorm2d(1), (1, 7, 7)),
    "group_norm": (lambda: nn.GroupNorm(1, 5, eps=1e-3), (5, 7, 7)),
    "group_norm_of_one_channel": (lambda: nn.GroupNorm(1, 1), (1, 7, 7)),
    "group_norm_groups": (lambda: nn.GroupNorm(3, 9), (9, 3, 3)),
    "max_pool": (lambda: nn.MaxPool2d(2), (5, 7, 4)),
    "max_pool_padded": (lambda: nn.MaxPool2d(3, 2, 1), (5, 7, 4)),
    "linear": (lambda: nn.Linear(5, 7), (5,)),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "scale_of_images": (lambda: ChannelScale(5), (5, 3, 3)),
    "scale_of_vectors": (lambda: ChannelScale(5), (5,)),
    "scale_of_sequences": (lambda: ChannelScale(5), (7, 5)),
    "masked_linear": (lambda: MaskedLinear(5, 3, (torch.arange(5) % 2).double()), (5,)),
    "linear_of_sequences": (lambda: nn.Linear(5, 7), (6, 5)),
    "linear_no_bias_of_sequences": (lambda: nn.Linear(5, 3, bias=False), (6, 5)),
    "layer_norm": (lambda: nn.LayerNorm(5, eps=1e-3), (5,)),
    "layer_norm_of_sequences": (lambda: nn.LayerNorm(5), (7, 5)),
    "layer_norm_no_bias_of_sequences": (lambda: nn.LayerNorm(5, bias=False), (7, 5)),
    "embedding": (lambda: nn.Embedding(11, 5), (7,)),
    "positions": (lambda: Positions(9, 5), (7, 5)),
    "attention": (lambda: CausalAttention(2), (7, 12)),
    "attention_lesioned": (lambda: CausalAttention(2, lesioned=True), (7, 12)),
    "flatten": (nn.Flatten, (3, 5, 7)),
    "flatten_vectors": (nn.Flatten, (5,)),
}


def samples(name, members):
    """Return a batch of each member `[M, B, ...]`: tokens for an embedding, else numbers."""
    shape = (members, 4, *LAYERS[name][1])
    return torch.randint(11, shape) if name == "embedding" else torch.randn(shape)


def random_module(make):
    """Randomise all parameters and buffers of a module."""
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        for name, buffer in module.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 2.0)
    return module


def test_every_stacked_layer_has_a_case():
    assert {type(make()) for make, _ in LAYERS.values()} == set(STACKED)


def member_grads(stacked):
    """Return the gradients of each member's parameters."""
    return zip(*[parameter.grad for parameter in stacked.parameters()], strict=True)


@pytest.mark.parametrize("held", [False, True], ids=["alone", "in_a_fleet"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("members", [1, 3, 8])
@pytest.mark.parametrize(
    ("name", "samples_last"), [(name, last) for name in LAYERS for last in (False, True) if not last or len(LAYERS[name][1]) != 2]
)
def test_a_stacked_layer_matches_its_layers(float64, name, samples_last, members, training, held):
    layers = [random_module(LAYERS[name][0]).train(training).double() for _ in range(members)]
    x_MB = samples(name, members)
    float_input = x_MB.is_floating_point()
    xs = [part.clone().requires_grad_(float_input) for part in x_MB]
    fleet = Fleet(layers)
    stacked = fleet.bind() if held else fuse(layers)
    stacked.train(training)
    assert type(stacked) is STACKED[type(layers[0])]
    x = side_by_side(x_MB, samples_last=samples_last).requires_grad_(float_input)
    y = stacked(x)
    wanted = [layer(part) for layer, part in zip(layers, xs, strict=True)]
    assert is_batch_last(y) == samples_last or not isinstance(layers[0], nn.Linear | nn.LayerNorm)
    assert torch.allclose(y, side_by_side(torch.stack(wanted)), atol=1e-12)
    pull = torch.randn_like(torch.stack(wanted))
    y.backward(side_by_side(pull))
    torch.autograd.backward(wanted, list(pull))
    if float_input:
        assert torch.allclose(x.grad, side_by_side(torch.stack([part.grad for part in xs])), atol=1e-11)
    for parameter in [parameter for layer in layers for parameter in layer.parameters()]:
        assert parameter.grad.any()
    gradients = [torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in layers if list(layer.parameters())]
    of_members = fleet.flat.grad if held else [torch.cat([row.flatten() for row in rows]) for rows in member_grads(stacked)]
    assert not gradients or torch.allclose(torch.stack(gradients), torch.stack(list(of_members)), atol=1e-11)
    for buffer, _ in layers[0].named_buffers():
        if buffer != "num_batches_tracked":
            assert torch.allclose(
                stacked.get_buffer(buffer), torch.stack([layer.get_buffer(buffer) for layer in layers]), atol=1e-12
            )


STREAM = ("embedding", "positions")
"""Layers that return single precision whatever they are given: they start the residual stream of sequences."""


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("precision", [Precision.bf16, Precision.fp16])
@pytest.mark.parametrize("name", LAYERS)
def test_a_stacked_layer_in_half_precision_rounds_its_layers(name, precision, training):
    """Half precision in, half precision out; gradients of weights and running statistics are in single precision."""
    layers = [random_module(LAYERS[name][0]).train(training).float() for _ in range(3)]
    fleet, half, x_MB = Fleet(layers), HALF[precision], samples(name, 3)
    if float_input := x_MB.is_floating_point():
        x_MB = x_MB.to(half).float()
    stacked = fleet.bind().train(training)
    with computed_in(precision, torch.device("cpu")):
        x = side_by_side(x_MB.to(half) if float_input else x_MB).requires_grad_(float_input)
        y = stacked(x)
    assert y.dtype is (torch.float32 if name in STREAM else half)
    xs = [part.clone().requires_grad_(float_input) for part in x_MB]
    wanted = [layer(part) for layer, part in zip(layers, xs, strict=True)]
    pull = torch.randn_like(torch.stack(wanted)).to(half).float()
    y.backward(side_by_side(pull).to(y.dtype))
    torch.autograd.backward(wanted, list(pull))
    pairs = [(y, side_by_side(torch.stack(wanted)))]
    if float_input:
        pairs.append((x.grad, side_by_side(torch.stack([part.grad for part in xs]))))
    if fleet.flat.numel():
        gradients = [torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in layers]
        assert fleet.flat.grad.dtype is torch.float32
        pairs.append((fleet.flat.grad, torch.stack(gradients)))
    for buffer in fleet.buffers.values():
        assert buffer.dtype is not half
    for rounded, exact in pairs:
        assert (rounded - exact).norm() <= 2 * torch.finfo(half).eps * exact.norm()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("surfaces", [["pre"], ["post"]], ids=str)
@pytest.mark.parametrize("samples_last", [False, True])
@pytest.mark.parametrize("members", [1, 3, 8])
def test_a_fused_host_matches_its_hosts(float64, members, samples_last, surfaces, training):
    config = CNNConfig(base_channels=3, pools=3, surfaces=surfaces)
    hosts = [
        random_module(lambda m=m: config.build((1, 8, 8), 10, [m % 2 == 0, False, m % 3 == 0])).train(training)
        for m in range(members)
    ]
    fleet = Fleet(hosts)
    xs = [torch.randn(6, 1, 8, 8) for _ in range(members)]
    for _ in range(2):  # two batches, so that the running statistics move twice
        logits = fleet.bind().train(training)(side_by_side(torch.stack(xs), samples_last=samples_last))
        wanted = [host(x) for host, x in zip(hosts, xs, strict=True)]
    assert torch.allclose(logits, torch.cat(wanted, 1), atol=1e-11)
    logits.square().sum().backward()
    for index, (host, out) in enumerate(zip(hosts, wanted, strict=True)):
        out.square().sum().backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in host.parameters()])
        assert torch.allclose(fleet.flat.grad[index], gradient, rtol=1e-9, atol=1e-9)
    for name, buffer in fleet.buffers.items():
        if "num_batches" not in name:
            for index, host in enumerate(hosts):
                assert torch.allclose(buffer[index], host.get_buffer(name), atol=1e-12), name
    assert any("running_var" in name for name in fleet.buffers)


# ---- unfusing


def test_member_returns_a_plain_module():
    config = CNNConfig(base_channels=3)
    hosts = [random_module(lambda m=m: config.build((1, 8, 8), 10, [m == 0, m == 1, False])) for m in range(3)]
    fleet = Fleet(hosts)
    fleet.bind().train()(torch.randn(5, 3, 8, 8))
    x = torch.randn(4, 3, 8, 8)
    whole = fleet.bind().eval()(x).view(4, 3, 10)
    for index, host in enumerate(hosts):
        alone = fleet.member(index).eval()
        assert type(alone) is type(host)
        assert flatten_parameters(alone).equal(flatten_parameters(host))
        assert torch.allclose(alone(x[:, index : index + 1]), whole[:, index], atol=1e-5)
        assert alone.get_buffer("segments.0.0.mask").equal(host.get_buffer("segments.0.0.mask"))
        assert not alone.get_buffer("segments.0.1.running_mean").equal(host.get_buffer("segments.0.1.running_mean"))


def test_a_fleet_does_not_change_its_modules():
    hosts = [CNNConfig().build((1, 8, 8), 10, [False] * 3) for _ in range(2)]
    before = [copy.deepcopy(host.state_dict()) for host in hosts]
    fleet = Fleet(hosts)
    with torch.no_grad():
        fleet.flat.add_(1.0)
    fleet.bind().train()(torch.randn(4, 2, 8, 8))
    for host, old in zip(hosts, before, strict=True):
        assert all(torch.equal(old[name], value) for name, value in host.state_dict().items())


def test_members_can_be_taken_and_added():
    chosen = torch.tensor([0, 2, 3])
    images = torch.randn(2, 20, 3, 3)
    for x in (images, images.contiguous(memory_format=torch.channels_last), torch.randn(2, 20)):
        part = take_members(x, chosen, 4)
        assert part.equal(torch.cat([x[:, 0:5], x[:, 10:20]], 1))
        wanted = torch.cat([x[:, 0:5] * 3, x[:, 5:10], x[:, 10:20] * 3], 1)
        assert torch.allclose(add_members(x, chosen, part * 2, 4), wanted)
        assert torch.allclose(x, wanted)


def test_bind_takes_any_number_of_rows():
    fleet = Fleet([random_module(lambda: nn.Conv2d(2, 3, 1)) for _ in range(4)])
    x = torch.randn(2, 4, 3, 3)
    chosen = torch.tensor([1, 3])
    some = fleet.bind(fleet.flat.index_select(0, chosen))(x)
    alone = [fleet.member(int(index))(part) for index, part in zip(chosen, x.chunk(2, 1), strict=True)]
    assert torch.allclose(some, torch.cat(alone, 1), atol=1e-6)


# ---- what cannot be fused


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda: nn.RMSNorm(4), "RMSNorm"),
        (lambda: nn.PReLU(), "PReLU"),
        (lambda: nn.BatchNorm1d(4), "BatchNorm1d"),
        (lambda: nn.ConvTranspose2d(3, 3, 2), "ConvTranspose2d"),
        (lambda: nn.Unflatten(1, (3, 1)), "Unflatten"),
        (lambda: nn.Softmax(1), "Softmax"),
        (lambda: nn.MultiheadAttention(3, 1), "MultiheadAttention with in_proj_weight beside its layers"),
    ],
)
def test_a_layer_without_a_stacked_form_is_refused_with_a_remedy(layer, name):
    modules = [nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.ReLU(), layer())) for _ in range(2)]
    with pytest.raises(FusionError, match=rf"1\.1 is a {name}, .* devices\.<name>\.members_per_shard=1"):
        fuse(modules)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(3, 3, 3, padding="same"),
        lambda: nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"),
        lambda: nn.BatchNorm2d(3, momentum=None),
        lambda: nn.BatchNorm2d(3, affine=False),
        lambda: nn.BatchNorm2d(3, track_running_stats=False),
        lambda: nn.GroupNorm(1, 3, affine=False),
        lambda: nn.LayerNorm([3, 3]),
        lambda: nn.LayerNorm(3, elementwise_affine=False),
        lambda: nn.Embedding(5, 3, padding_idx=0),
        lambda: nn.Embedding(5, 3, max_norm=1.0),
        lambda: nn.Embedding(5, 3, sparse=True),
        lambda: nn.Flatten(2),
        lambda: nn.Flatten(0),
        lambda: nn.Flatten(1, 2),
    ],
)
def test_an_unsupported_variant_of_a_layer_is_refused(layer):
    with pytest.raises(FusionError, match=r"devices\.<name>\.members_per_shard=1"):
        fuse([nn.Sequential(layer()) for _ in range(2)])


WITHOUT_PARAMETERS = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
    "max_pool": lambda: nn.MaxPool2d(2),
    "avg_pool": lambda: nn.AvgPool2d(2),
    "adaptive_pool": lambda: nn.AdaptiveAvgPool2d(1),
    "upsample": lambda: nn.Upsample(scale_factor=2),
    "zero_pad": lambda: nn.ZeroPad2d(1),
    "instance_norm": lambda: nn.InstanceNorm2d(4),
    "local_response": lambda: nn.LocalResponseNorm(2),
    "softmax": lambda: nn.Softmax(1),
    "softmax2d": nn.Softmax2d,
    "softmin": lambda: nn.Softmin(1),
    "log_softmax": lambda: nn.LogSoftmax(1),
    "glu": lambda: nn.GLU(1),
    "pixel_shuffle": lambda: nn.PixelShuffle(2),
    "channel_shuffle": lambda: nn.ChannelShuffle(2),
    "layer_norm_bare": lambda: nn.LayerNorm([4, 6, 6], elementwise_affine=False),
    "group_norm_bare": lambda: nn.GroupNorm(2, 4, affine=False),
    "flatten": nn.Flatten,
    "dropout": nn.Dropout,
    "dropout2d": nn.Dropout2d,
    "alpha_dropout": nn.AlphaDropout,
    "feature_alpha_dropout": nn.FeatureAlphaDropout,
    "rrelu": nn.RReLU,
}


@pytest.mark.parametrize("name", WITHOUT_PARAMETERS)
def test_layers_without_parameters_are_refused_or_equivalent(name):
    layers = [WITHOUT_PARAMETERS[name]() for _ in range(3)]
    xs = [torch.randn(2, 4, 6, 6) for _ in layers]
    try:
        fused = Fleet([nn.Sequential(nn.Conv2d(4, 4, 1), layer) for layer in layers]).module[1]
    except FusionError:
        return
    wanted = torch.cat([layer(x) for layer, x in zip(layers, xs, strict=True)], 1)
    assert torch.allclose(fused(torch.cat(xs, 1)), wanted, atol=1e-6)


def test_a_fleet_of_one_takes_a_parameter_without_axes() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.temperature = nn.Linear(3, 2), nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.temperature * self.map(x)

    module, x = Tempered(), torch.randn(4, 3)
    fleet = Fleet([module], torch.device("cpu"))
    torch.testing.assert_close(fleet.bind()(x), module(x))
    fleet.bind()(x).sum().backward()
    assert fleet.flat.grad is not None
    assert fleet.flat.shape == (1, 9)


def test_a_group_norm_without_a_stacked_form_learns_from_images_that_need_no_gradient():
    """In torch 2.13, its backward crashes on channels-last images that need no gradient."""
    module = nn.Sequential(nn.GroupNorm(1, 4), nn.Conv2d(4, 4, 3, padding="same"))
    x, fleet = torch.randn(2, 4, 5, 5).contiguous(memory_format=torch.channels_last), Fleet([module])
    assert not fleet.stacked
    fleet.bind()(x).square().sum().backward()
    module(x.contiguous()).square().sum().backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    torch.testing.assert_close(fleet.flat.grad[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("token", [5, -1])
def test_a_member_does_not_read_the_embedding_of_another(token):
    fleet = Fleet([nn.Sequential(nn.Embedding(5, 2)) for _ in range(2)])
    with pytest.raises(IndexError, match=f"token {token} is not one of the 5 rows of an embedding"):
        fleet.bind()(side_by_side(torch.tensor([[[0, 1]], [[token, 1]]])))
