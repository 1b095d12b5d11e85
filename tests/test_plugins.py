"""Registration and import of parts from outside: every mistake is one sentence. tests/outside runs such parts."""

import importlib
import json
import os
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import esper
from esper import plugins
from esper.cli.command import in_one_sentence
from esper.cli.help import groups
from esper.cli.overrides import check, check_over
from esper.config import GROUPS, ConfigError
from esper.lifecycle.slots import SlotsConfig
from esper.notices import UserNotice
from esper.plugins import load_plugins, split_plugins
from esper.ranges import check_ranges
from esper.reward.modes import MinimalConfig, RewardConfig
from esper.reward.table import RENT, TERMINAL
from esper.reward.terms import RentUnit
from esper.training.config_io import from_plain, resumed, to_plain
from esper.training.provenance import FILE, versions, warn_of_changed_parts
from esper.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("own_parts")


@dataclass(kw_only=True, slots=True)
class MineConfig(MinimalConfig):
    """A reward."""


@dataclass(kw_only=True, slots=True)
class LostConfig(RewardConfig):
    """Pays for something without saying how much."""

    pays = {"terminal": TERMINAL}  # noqa: RUF012


@dataclass(kw_only=True, slots=True)
class TypoConfig(RewardConfig):
    """Names its weight wrongly."""

    pays = {"trminal": TERMINAL}  # noqa: RUF012
    terminal: float = 1.0


@dataclass(kw_only=True, slots=True)
class UnreadConfig(RewardConfig):
    """Has a term without the field that it reads."""

    pays = {"rent": RENT}  # noqa: RUF012
    rent: float = 1.0


@dataclass(kw_only=True, slots=True)
class FixedUnitConfig(RewardConfig):
    """Has what its term reads, but not as a key."""

    pays = {"rent": RENT}  # noqa: RUF012
    rent_unit = RentUnit.params
    rent: float = 1.0


@dataclass(kw_only=True, slots=True)
class NeedyConfig(MinimalConfig):
    """Has a key without a default."""

    trial: float

    def __post_init__(self) -> None:
        MinimalConfig.__post_init__(self)
        check_ranges("reward", self, {"[0, inf)": ["trial"]})


class Bare(MinimalConfig):
    """Inherits its fields, and would declare none of its own."""


PLUGIN = """
from dataclasses import dataclass
from esper import register
from esper.reward.modes import MinimalConfig

@dataclass(kw_only=True, slots=True)
class MineConfig(MinimalConfig):
    ...

register("reward", "mine", MineConfig)
"""


@pytest.mark.parametrize(
    ("group", "name", "kind", "sentence"),
    [
        ("rewrd", "mine", MineConfig, "there is no group rewrd to register mine in: choose one of .*; did you mean reward?"),
        ("telemetry", "mine", MineConfig, "there is no group telemetry"),
        ("reward", "typo", TypoConfig, "TypoConfig.pays names the weight trminal, .*: did you mean terminal"),
        ("reward", "unread", UnreadConfig, "UnreadConfig.pays has the term rent, which reads rent_unit, .*: add it"),
        ("reward", "lost", LostConfig, "LostConfig.pays names the weight terminal, .* add terminal: float = 1.0"),
        (
            "reward",
            "shaped",
            MineConfig,
            "reward=shaped exists already, as esper.reward.modes.ShapedConfig: register .*MineConfig",
        ),
        ("task", "digits_mlp", MineConfig, "task=digits_mlp exists already, as a preset in conf/: register "),
        ("reward", "a=b", MineConfig, "'a=b' cannot name an option"),
        ("blueprint", "my.block", MineConfig, "'my.block' cannot name .* whose keys have dots: use letters, digits and _ -"),
        ("reward", "mine", MineConfig(), "reward=mine needs a dataclass, got MineConfig"),
        ("reward", "mine", Bare, "reward=mine needs a dataclass, got .*Bare: put @dataclass"),
        ("reward", "mine", SlotsConfig, "reward=mine must derive from .*RewardConfig, and esper.lifecycle"),
        ("blueprint", "mine", MineConfig, "blueprint=mine must derive from .*BlueprintConfig"),
        ("writer", "mine", MineConfig, "writer=mine must derive from .*WriterConfig"),
    ],
)
def test_a_refused_registration_is_one_sentence(group: str, name: str, kind: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        esper.register(group, name, kind)
    assert "\n" not in str(raised.value)
    assert name == "shaped" or name not in GROUPS.get(group, {})


def test_what_a_term_reads_need_not_be_a_key() -> None:
    esper.register("reward", "fixed_unit", FixedUnitConfig)
    assert check(["reward=fixed_unit"]).reward.rent_unit == RentUnit.params


@pytest.mark.parametrize(
    ("value", "sentence"),
    [([], "reward.trial is not set"), (["reward.trial=-1"], "reward.trial must be .*, got -1.0: choose a value in range")],
)
def test_a_key_without_a_default_must_be_set(value: list[str], sentence: str) -> None:
    esper.register("reward", "needy", NeedyConfig)
    assert getattr(check(["reward=needy", "reward.trial=2"]).reward, "trial", None) == 2.0
    with pytest.raises(ConfigError, match=sentence):
        check(["reward=needy", *value])


def test_a_registered_option_is_like_any_other() -> None:
    esper.register("reward", "mine", MineConfig)
    esper.register("reward", "mine", MineConfig)
    config = check(["reward=mine", "reward.prune_cost=2"])
    assert config.choice("reward") == check(["reward_mode=mine"]).choice("reward") == "mine"
    assert type(config.reward) is MineConfig
    assert config.reward.prune_cost == 2
    assert "mine" in groups()["reward"]
    with pytest.raises(ConfigError, match=r"did you mean mine\?"):
        check(["reward=mina"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plugins=[a]", "seed=1"], ["a"]),
        (["+plugins=[a,'to/b.py']"], ["a", "to/b.py"]),
        (["seed=1"], []),
        (["plugins=[]"], []),
    ],
)
def test_plugins_are_read_from_the_command_line(words: list[str], expected: list[str]) -> None:
    names, others = split_plugins(words)
    assert names == expected
    assert others == [word for word in words if "plugins" not in word]
    with pytest.raises(ConfigError, match=r"plugins must be a list, got a: write 'plugins=\[my_parts\]'"):
        split_plugins(["plugins=a"])


def test_a_plugin_that_registers_nothing_warns(tmp_path: Path) -> None:
    file = tmp_path / "parts_that_forget.py"
    file.write_text("x = 1")
    with pytest.warns(UserWarning, match=r"plugins=\[.*parts_that_forget.py\] registers no part: call esper.register"):
        load_plugins([str(file)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "import nowhere_at_all",
            r"cannot be imported: ModuleNotFoundError: No module named .* \(broken_parts.py, line 1",
        ),
        ("\nx = 1 / 0", r"cannot be imported: ZeroDivisionError: division by zero \(broken_parts.py, line 2\)$"),
        ("x = (", r"cannot be imported: SyntaxError: .*\(broken_parts.py, line 1\)$"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        (PLUGIN.replace('"mine"', '"shaped"'), "cannot be imported: reward=shaped exists already"),
    ],
)
def test_a_plugin_that_fails_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "broken_parts.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as raised:
        load_plugins([str(file)])
    assert str(raised.value).startswith(f"plugins=[{file}] ")
    assert "\n" not in str(raised.value)


FAILS = """
def draw():
    open("no_such_weights.npy")
"""


@pytest.mark.parametrize(("plugin", "name"), [("failing_parts.py", "failing_parts.py"), ("failing_package", "helper.py")])
def test_an_error_in_a_running_plugin_keeps_its_traceback_and_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, plugin: str, name: str
) -> None:
    place = tmp_path if plugin == name else tmp_path / plugin
    place.mkdir(exist_ok=True)
    (place / "__init__.py").write_text(PLUGIN.replace('"mine"', '"failing"'))
    file = place / name
    file.write_text(PLUGIN.replace('"mine"', '"failing_too"') + FAILS)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins([str(file) if plugin == name else plugin])
    module = importlib.import_module(file.stem if plugin == name else f"{plugin}.{file.stem}")
    with pytest.raises(SystemExit) as ended, in_one_sentence():
        module.draw()
    assert ended.value.code == 1
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    line = 1 + file.read_text().splitlines().index('    open("no_such_weights.npy")')
    assert last.startswith(f"esper: {name}, line {line}: FileNotFoundError: ")
    assert "continue a run with resume=" in last


def test_a_plugin_that_is_not_there_or_not_alone_is_one_sentence(tmp_path: Path) -> None:
    for name in ("nowhere_at_all", "nowhere.at_all", str(tmp_path / "nowhere_at_all.py")):
        with pytest.raises(ConfigError, match="is not found: run from its folder, put that on PYTHONPATH, or give the path"):
            load_plugins([name])
    for name, sentence in (
        ("json.py", "shares its name with the module .*: rename the file"),
        ("time.py", "shares its name with the module time: rename the file"),  # built into Python
        ("parts_v1.2.py", "cannot be imported, since its name has a dot: rename the file, without dots"),
    ):
        (tmp_path / name).write_text("")
        with pytest.raises(ConfigError, match=rf"{re.escape(name)}\] {sentence}"):
            load_plugins([str(tmp_path / name)])
    files = [tmp_path / folder / "own_parts_twice.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text("")
    with pytest.raises(ConfigError, match=rf"\[{files[1]}\] shares its name with the module {files[0]}: rename the file"):
        load_plugins(map(str, files))


def forget() -> None:
    """As a new process: the plugin's module and option are gone."""
    GROUPS["reward"].pop("mine")
    sys.modules.pop("my_own_parts")


def test_a_config_brings_its_plugins_back_also_when_their_file_has_moved(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "my_own_parts.py"
    file.write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    load_plugins(["my_own_parts.py"])
    plain = to_plain(check(["plugins=[my_own_parts.py]", "reward=mine", "reward.rent=3"]))
    assert plain["values"]["plugins"] == [str(file)]
    before = plugins.plugin_digests()["my_own_parts"]
    assert versions()["plugins"]["my_own_parts"] == before
    file.write_text(PLUGIN + "# edited\n")
    assert plugins.plugin_digests()["my_own_parts"] != before
    forget()
    back = from_plain(plain)
    assert (back.choice("reward"), getattr(back.reward, "rent", None)) == ("mine", 3)
    assert check_over(back, ["steps=9"]).choice("reward") == "mine"
    forget()
    (tmp_path / "there").mkdir()
    moved = file.rename(tmp_path / "there" / file.name)
    sys.path.remove(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"plugins=\[{file}\] is not found: run from its folder"):
        from_plain(plain)
    load_plugins([str(moved)])  # as plugins=[there/my_own_parts.py] on the command line does
    assert from_plain(plain).choice("reward") == "mine"
    asked = check([f"plugins=[{moved}]"])
    assert resumed(from_plain(plain), asked, [f"plugins=[{moved}]", "resume=x"]).plugins == [str(moved)]
    assert str(moved.parent) in os.environ["PYTHONPATH"]
    more = tmp_path / "more_parts.py"  # which has not moved
    more.write_text(PLUGIN.replace('"mine"', '"more"'))
    load_plugins([str(more)])
    saved = from_plain(plain)
    saved.plugins.append(str(more))
    assert resumed(saved, asked, [f"plugins=[{moved}]", "resume=x"]).plugins == [str(moved), str(more)]


def test_a_plugin_that_was_edited_after_training_is_noticed(tmp_path: Path) -> None:
    file, record = tmp_path / "my_own_parts.py", tmp_path / FILE
    file.write_text(PLUGIN)
    load_plugins([str(file)])
    trained = {"esper": versions(), "first_update": 0, "updates": 1}
    record.write_text(json.dumps([trained]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_changed_parts(tmp_path)
        file.write_text(PLUGIN + "# edited\n")
        record.write_text(json.dumps([trained | {"updates": 0}]))  # it failed before it trained anything
        warn_of_changed_parts(tmp_path)
    record.write_text(json.dumps([trained]))
    with pytest.warns(UserNotice, match=r"^the source of my_own_parts has changed since this run was trained: restore it, or"):
        warn_of_changed_parts(tmp_path)


def test_an_installed_plugin_needs_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_parts.py").write_text(PLUGIN)
    info = tmp_path / "my_own_parts-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-own-parts\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[esper.parts]\nmine = my_own_parts\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins._load_installed.cache_clear()
    try:
        load_plugins([])
        assert check(["reward=mine"]).choice("reward") == "mine"
        GROUPS["reward"].pop("mine")
        sys.modules.pop("my_own_parts")
        (tmp_path / "my_own_parts.py").write_text("1 / 0")
        plugins._load_installed.cache_clear()
        with pytest.raises(ConfigError, match=r"the installed plugin mine \(my_own_parts\) cannot be imported: Zero"):
            load_plugins([])
    finally:
        sys.modules.pop("my_own_parts", None)
        plugins._load_installed.cache_clear()


# ---- names of options


@pytest.fixture
def dear(tmp_path: Path) -> list[str]:
    """Overrides that choose an option of the user's own, in YAML."""
    folder = tmp_path / "own" / "reward"
    folder.mkdir(parents=True)
    (folder / "dear.yaml").write_text("defaults:\n  - shaped\n  - _self_\nrent: 5.0\n")
    return [f"hydra.searchpath=[file://{tmp_path / 'own'}]", "reward=dear"]


def test_an_option_in_yaml_goes_by_its_name(tmp_path: Path, dear: list[str]) -> None:
    tiny = ["hosts=2", "steps=2", "updates=1", "agent=wait", "telemetry=quiet", "devices=[cpu]"]
    config = check([*dear, *tiny])
    trainer = Trainer(config, tmp_path / "run")
    assert "reward dear" in trainer.config.title()
    assert trainer.hparams()["reward"] == "dear"
    trainer.env.close()
    plain = to_plain(config)
    assert (plain["choices"]["reward"], plain["options"]["reward"], plain["values"]["reward"]["rent"]) == ("dear", "shaped", 5.0)
    back = from_plain(plain)
    assert back == config
    assert back.choice("reward") == "dear"
    judged = check_over(back, ["steps=3"])  # without the user's folder
    assert (judged.choice("reward"), getattr(judged.reward, "rent", None)) == ("dear", 5.0)
    assert check_over(back, ["reward=sparse"]).choice("reward") == "sparse"


def test_two_names_of_one_class_are_told_apart_and_an_unknown_class_has_a_name() -> None:
    assert [check([f"slots={name}"]).choice("slots") for name in ("all", "every_block")] == ["all", "every_block"]
    config = check(["reward=sparse"])
    config.reward = MineConfig()
    assert config.choice("reward") == "MineConfig"
