"""What growth may be asked for on CIFAR-10: hosts from fair to hopeless, with slots before and after their poolings."""

from dataclasses import dataclass, field

from esper.hosts.cnn import CNNConfig
from esper.task.cifar10 import Cifar10Config

BOTH = ("pre", "post")


def _host(
    blocks: int, base_channels: int, *, kernel: int = 3, pools: int | None = None, surfaces: tuple[str, ...] = BOTH
) -> CNNConfig:
    """Every block pooled, unless said otherwise."""
    return CNNConfig(
        blocks=blocks,
        base_channels=base_channels,
        kernel=kernel,
        pools=blocks if pools is None else pools,
        surfaces=list(surfaces),
    )


@dataclass(kw_only=True, slots=True)
class Cifar10MultichannelConfig(Cifar10Config):
    """The fair host with slots on both sides of its poolings: which resolution does a seed want?"""

    host: CNNConfig = field(default_factory=lambda: _host(3, 8))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10PostpoolConfig(Cifar10Config):
    """A strong host of 16, 32 and 64 channels with slots after its poolings only: cheap seeds at low resolution."""

    host: CNNConfig = field(default_factory=lambda: _host(3, 16, surfaces=("post",)))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10HighresConfig(Cifar10Config):
    """A strong host of 16, 32 and 64 channels with slots before its poolings only: dear seeds at high resolution."""

    host: CNNConfig = field(default_factory=lambda: _host(3, 16, surfaces=("pre",)))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10ScaleConfig(Cifar10Config):
    """Five blocks, 8 to 128 channels, a slot in each: where in a deep host is growth worth its rent?"""

    host: CNNConfig = field(default_factory=lambda: _host(5, 8, surfaces=("pre",)))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10DeepMultichannelConfig(Cifar10Config):
    """The five blocks of `scale` with slots on both sides of their poolings: ten places to choose from."""

    host: CNNConfig = field(default_factory=lambda: _host(5, 8))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10ImpairedConfig(Cifar10Config):
    """A host of 1, 2 and 4 channels that sees no neighbours (77 parameters): only seeds can save it."""

    host: CNNConfig = field(default_factory=lambda: _host(3, 1, kernel=1))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10MinimalConfig(Cifar10Config):
    """A host of 2, 4 and 8 channels that sees no neighbours and has no poolings (164 parameters): seeds do all the work."""

    host: CNNConfig = field(default_factory=lambda: _host(3, 2, kernel=1, pools=0, surfaces=("pre",)))
    """The host's architecture."""


@dataclass(kw_only=True, slots=True)
class Cifar10DeepImpairedConfig(Cifar10Config):
    """Five blocks of 2 to 32 channels that see no neighbours (1,140 parameters): a rescue at depth, ten places to choose from."""

    host: CNNConfig = field(default_factory=lambda: _host(5, 2, kernel=1))
    """The host's architecture."""
