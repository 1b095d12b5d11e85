"""Configs in checkpoints: their plain form, and which keys may change when a run is resumed."""

import pytest
from omegaconf import OmegaConf

from esper.config import GROUPS, ConfigError
from esper.training import config_io
from esper.training.config_io import differences, from_plain, resumed, to_plain
from tests.training.small_run import config


def test_a_config_comes_back_from_its_plain_form():
    asked = config("task.instances=healthy", "blueprint=[norm,conv_light]", "blueprint.conv_light.kernel=5", "reward=sparse")
    back = from_plain(to_plain(asked))
    assert back == asked
    assert not differences(back, asked)
    assert differences(back, config())
    assert differences(config("seed=7", "steps=9"), config()) == {"seed": 7, "steps": 9}
    assert not differences(config(), config("updates=9"))
    assert differences(config("reward=sparse"), config("reward=shaped")) == {"reward": "sparse"}, "its keys follow from that"


def test_only_some_keys_may_change_when_a_run_is_resumed():
    saved = config("seed=7")
    continued = resumed(saved, config("updates=9", "resume=."), ["updates=9", "resume=."])
    assert (continued.seed, continued.updates) == (7, 9)
    for word in ("seed=3", "reward=sparse", "reward_mode=sparse", "agent.clip=0.1", "experiment=healthy"):
        with pytest.raises(ConfigError, match=rf"{word} cannot change when a run is resumed: .*only updates, telemetry"):
            resumed(saved, config(word), [word])


def test_overrides_of_a_run_may_be_repeated_when_it_is_resumed():
    words = ["experiment=healthy", "seed=7", "reward_mode=sparse", "reward.rent=0.1", "agent.clip=0.1"]
    assert resumed(config(*words), config(*words, "updates=9"), [*words, "updates=9"]) == config(*words, "updates=9")
    for one in ("reward_mode=sparse", "agent=ppo"):  # its option alone
        assert resumed(config(*words), config(one), [one]) == config(*words)
    with pytest.raises(ConfigError, match="the run has reward=sparse, and the command asks for reward=shaped"):
        resumed(config(*words), config("reward=shaped"), ["reward=shaped"])
    with pytest.raises(ConfigError, match=r"has agent\.clip=0\.1, and the command asks for agent\.clip=0\.2;"):
        resumed(config(*words), config(*words[:3], "agent.clip=0.2"), ["agent.clip=0.2"])


def test_one_key_of_telemetry_leaves_the_others_as_the_run_had_them():
    saved = config("telemetry=full", "telemetry.every=7", "telemetry.page_hosts=2")
    for words in (["telemetry.page_hosts=3"], ["telemetry.page_hosts=3", "telemetry=full"]):
        telemetry = resumed(saved, config("telemetry=full", *words), words).telemetry
        assert (telemetry.every, telemetry.page_hosts) == (7, 3)
    other = resumed(saved, config("telemetry=quiet"), ["telemetry=quiet"])
    assert other.telemetry == config("telemetry=quiet").telemetry


def test_where_the_data_lies_may_change_when_a_run_is_resumed():
    own = ["task=image_folder", "host.kernel=1"]
    saved, asked = config(*own, "task.folder=here"), config(*own, "task.folder=there", "task.epoch_samples=512")
    assert resumed(saved, asked, ["task.folder=there"]) == config(*own, "task.folder=there")
    assert not differences(saved, config(*own, "task.folder=there"))
    with pytest.raises(ConfigError, match=r"the run has task\.epoch_samples=.* asks for task\.epoch_samples=512"):
        resumed(saved, asked, ["task.folder=there", "task.epoch_samples=512"])


def test_a_plain_config_of_another_version_is_refused():
    plain = to_plain(config())
    plain["options"]["reward"] = "of_the_future"
    with pytest.raises(ConfigError, match=r"reward=of_the_future is not an option here.*start a new run"):
        from_plain(plain)
    plain["values"]["gates"]["of_the_future"] = 1
    plain["options"]["reward"] = "shaped"
    with pytest.raises(ConfigError, match="another version"):
        from_plain(plain)


def test_interpolations_in_a_saved_config_are_not_resolved(monkeypatch):
    monkeypatch.setenv("SECRET", "xyz")
    plain = to_plain(config())
    plain["values"]["task"]["split_seed"] = "${oc.env:SECRET}"
    with pytest.raises(ConfigError, match=r"the interpolation task\.split_seed=\$\{oc\.env:SECRET\}, which Esper never"):
        from_plain(plain)
    plain["values"]["task"]["split_seed"] = 0
    plain["values"]["slots"]["where"] = ["${oc.env:SECRET}"]
    with pytest.raises(ConfigError, match=r"the interpolation slots\.where=\['\$\{oc\.env:SECRET\}'\], which Esper never"):
        from_plain(plain)


def test_values_are_those_of_omegaconf():
    needed = {"custom": {"path": "module:Host"}}
    for options in GROUPS.values():
        for name, kind in options.items():
            node = kind(**needed.get(name, {}))
            theirs = OmegaConf.to_container(OmegaConf.structured(node), enum_to_str=True)
            assert repr(config_io._plain(node)) == repr(theirs), name  # members of a StrEnum equal strings, but look otherwise
