"""The table of hosts."""

from esper.hosts.base import HostConfig
from esper.hosts.cnn import CNNConfig
from esper.hosts.custom import CustomConfig
from esper.hosts.mlp import MLPConfig
from esper.hosts.transformer import TransformerConfig

HOSTS: dict[str, type[HostConfig]] = {
    "cnn": CNNConfig,
    "mlp": MLPConfig,
    "transformer": TransformerConfig,
    "custom": CustomConfig,
}
"""Option -> config. The presets in conf/host/ are based on these."""
