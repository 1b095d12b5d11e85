"""The table of blueprints, and the check of blueprints against slots."""

from collections.abc import Mapping, Sequence

from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.attention import AttentionConfig, FlexAttentionConfig
from esper.seeds.blueprints.base import BlueprintConfig, required
from esper.seeds.blueprints.cnn import BottleneckConfig, ConvHeavyConfig, ConvLightConfig, ConvSmallConfig, DepthwiseConfig
from esper.seeds.blueprints.dense import LoraConfig, LoraLargeConfig, MLPSeedConfig, MLPSmallSeedConfig
from esper.seeds.blueprints.plain import NormConfig

BLUEPRINTS: dict[str, type] = {
    "norm": NormConfig,
    "attention": AttentionConfig,
    "conv_small": ConvSmallConfig,
    "conv_light": ConvLightConfig,
    "conv_heavy": ConvHeavyConfig,
    "depthwise": DepthwiseConfig,
    "bottleneck": BottleneckConfig,
    "lora": LoraConfig,
    "lora_large": LoraLargeConfig,
    "mlp_small": MLPSmallSeedConfig,
    "mlp": MLPSeedConfig,
    "flex_attention": FlexAttentionConfig,
}
"""Options of the group `blueprint`; a new blueprint takes one line here."""


def check_blueprints(chosen: Mapping[str, BlueprintConfig], slots: Sequence[SlotSpec], task: str) -> None:
    """Check that every chosen blueprint can grow in every slot in use, since a controller may plant any of them anywhere.

    Args:
        chosen: the blueprints of a run, by name.
        slots: the slots in use.
        task: name of the task, for messages.

    Raises:
        ValueError: a blueprint cannot grow in a slot, or none is chosen; the message lists valid blueprints.
    """
    for name, blueprint in chosen.items():
        for slot in slots:
            if (obstacle := blueprint.obstacle(slot)) is not None:
                others = ",".join(one for one in able(slots) if one != name)
                raise ValueError(
                    f"blueprint={name} cannot grow in the hosts of {task}: {obstacle}; choose from blueprint=[{others}]"
                )
    if not chosen:
        raise ValueError(f"blueprint=[] is empty: choose from blueprint=[{','.join(able(slots))}]")


def able(slots: Sequence[SlotSpec]) -> list[str]:
    """Return the names of the blueprints that can be planted, with their default settings, in each of these slots."""
    kinds = {name: kind for name, kind in BLUEPRINTS.items() if not required(kind)}
    return [name for name, kind in kinds.items() if all(kind().obstacle(slot) is None for slot in slots)]
