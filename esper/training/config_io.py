"""What a checkpoint holds of a config: taken apart, put together again, compared with what a run that goes on is asked for."""

from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from esper.config import GROUPS, MANY, Config, ConfigError, option
from esper.measure.counterfactuals import CounterfactualsConfig

CHANGEABLE = ("updates", "resume", "telemetry")
"""Keys that may change when a run goes on: they do not touch what was learnt."""


def to_plain(config: Config) -> dict[str, Any]:
    """The config as primitives: the chosen option of each group, and every value."""
    choices: dict[str, Any] = {}
    for group in GROUPS:
        node = getattr(config, group)
        choices[group] = list(node) if group in MANY else option(group, node)
    values = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return {"choices": choices, "values": values}


def from_plain(plain: dict[str, Any]) -> Config:
    """The config that `to_plain` took apart.

    Raises:
        ConfigError: it was written by another version, whose options or keys are not these.
    """
    values = dict(plain["values"])
    try:
        for group, chosen in plain["choices"].items():
            options = GROUPS[group]
            if lost := [name for name in (chosen if group in MANY else [chosen]) if name not in options]:
                raise ConfigError(
                    f"{group}={lost[0]} is not an option here: import the module that adds it, or start a new run with one of "
                    f"{', '.join(options)}"
                )
            if group in MANY:
                values[group] = {name: _revive(options[name], values[group][name]) for name in chosen}
            else:
                values[group] = _revive(options[chosen], values[group])
        if "counterfactuals" in values:  # written since there is such a key
            values["counterfactuals"] = _revive(CounterfactualsConfig, values["counterfactuals"])
        return Config(**values)
    except (KeyError, TypeError, OmegaConfBaseException) as error:
        raise ConfigError(f"the saved config is of another version of esper ({error}): start a new run") from error


def _revive(node: type, values: dict[str, Any]) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(node), values))


def difference(saved: Config, asked: Config) -> str | None:
    """The first key in which two configs differ, of those that may not change when a run goes on; None where there is none."""
    a, b = flat(to_plain(saved)), flat(to_plain(asked))
    for key in [*a, *(key for key in b if key not in a)]:
        if a.get(key) != b.get(key) and key.split(".")[0] not in CHANGEABLE:
            return key
    return None


def flat(plain: dict[str, Any]) -> dict[str, Any]:
    """Values of what `to_plain` gave, by dotted key; a group's choice stands under its name."""
    values: dict[str, Any] = dict(plain["choices"])

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for key, value in cast(dict[str, Any], node).items():
                walk(f"{prefix}.{key}" if prefix else key, value)
        else:
            values[prefix] = node

    walk("", plain["values"])
    return values


def resumed(saved: Config, asked: Config, words: list[str]) -> Config:
    """The config of a run that goes on: what it was, with the changes that may be made.

    Args:
        saved: the config in the run's checkpoint.
        asked: the config of the command that goes on with it.
        words: the overrides of that command.

    Raises:
        ConfigError: a word asks for a change that may not be made.
    """
    keys = [word.lstrip("+~").partition("=")[0].strip() for word in words]
    for key, word in zip(keys, words, strict=True):
        if key.split(".")[0].split("@")[0] not in CHANGEABLE:
            raise ConfigError(
                f"{word} cannot be changed when a run goes on (only {', '.join(CHANGEABLE)} can): leave it out or start a new run"
            )
    config = from_plain(to_plain(saved))
    config.resume = asked.resume
    if "updates" in keys:
        config.updates = asked.updates
    if any(key.split(".")[0] == "telemetry" for key in keys):
        config.telemetry = asked.telemetry
    return config
