"""All blueprints by name, and whether those of a run can grow in its hosts."""

from collections.abc import Mapping, Sequence

from esper.hosts.base import SlotSpec
from esper.seeds.blueprints.attention import AttentionConfig, FlexAttentionConfig
from esper.seeds.blueprints.base import BlueprintConfig
from esper.seeds.blueprints.cnn import BottleneckConfig, ConvHeavyConfig, ConvLightConfig, ConvSmallConfig, DepthwiseConfig
from esper.seeds.blueprints.dense import LoraConfig, LoraLargeConfig, MLPSeedConfig, MLPSmallSeedConfig
from esper.seeds.blueprints.plain import NoopConfig, NormConfig

BLUEPRINTS: dict[str, type] = {
    "noop": NoopConfig,
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
"""Name -> config; the group `blueprint` of the config. A new blueprint is one line here."""


def check_blueprints(chosen: Mapping[str, BlueprintConfig], slots: Sequence[SlotSpec], task: str) -> None:
    """Every chosen blueprint must be able to grow in every slot in use, since a controller may plant any of them anywhere.

    Args:
        chosen: the blueprints of a run, by name.
        slots: the slots in use.
        task: how the person who asked knows the task.

    Raises:
        ValueError: one cannot, or none may be planted at all; the message names those that can.
    """
    able = [name for name, kind in BLUEPRINTS.items() if _able(kind(), slots)]
    for name, blueprint in chosen.items():
        for slot in slots:
            if (obstacle := blueprint.obstacle(slot)) is not None:
                raise ValueError(
                    f"blueprint={name} cannot grow in the hosts of {task}: {obstacle}; choose from blueprint=[{','.join(able)}]"
                )
    if not any(blueprint.plantable for blueprint in chosen.values()):
        raise ValueError(
            f"blueprint=[{','.join(chosen)}] offers nothing that can be planted: choose from blueprint=[{','.join(able)}]"
        )


def _able(blueprint: BlueprintConfig, slots: Sequence[SlotSpec]) -> bool:
    return blueprint.plantable and all(blueprint.obstacle(slot) is None for slot in slots)
