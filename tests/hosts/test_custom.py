"""A custom host class, named by its import path on the command line."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import ConfigError
from esper.evaluate import main
from esper.hosts.custom import CustomConfig
from esper.task.digits import DigitsConfig
from esper.training.trainer import Trainer

SHORT = [
    "host=custom",
    "telemetry=quiet",
    "hosts=2",
    "steps=6",
    "updates=1",
    "agent=random",
    "devices=[cpu]",
    "task.instances=healthy",
]
MODULE = """
from torch import nn
from esper.fusion.layout import Layout
from esper.hosts.base import Host, SlotSpec

class MyHost(Host):
    def __init__(self, shape, num_classes):
        before = nn.Sequential(nn.Conv2d(shape[0], 6, 3, stride=2), nn.ReLU())
        after = nn.Sequential(nn.Flatten(), nn.Linear(6 * 3 * 3, num_classes))
        super().__init__([before, after], [SlotSpec("r0c0", 6, Layout.IMAGES)])

class Words(Host):
    def __init__(self, shape, num_classes):
        super().__init__([nn.Embedding(num_classes, 8), nn.Linear(8, num_classes)], [SlotSpec("r0c0", 8, Layout.SEQUENCES)])

class NineClasses(MyHost):
    def __init__(self, shape, num_classes):
        super().__init__(shape, num_classes - 1)

class Wider(Host):
    def __init__(self, shape, num_classes):
        whole = MyHost(shape, num_classes)
        super().__init__(whole.segments, [SlotSpec("r0c0", 7, Layout.IMAGES)])

class Misfit(Host):
    def __init__(self, shape, num_classes):
        super().__init__([nn.Identity(), nn.Linear(3, num_classes)], [SlotSpec("r0c0", shape[0])])

class NoSlots(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()

class NoArguments(nn.Module):
    pass

text = "no class"
"""


@pytest.fixture
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the module `my_hosts` on Python's search path."""
    (tmp_path / "my_hosts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_hosts", None)


def train(folder: Path, *overrides: str) -> None:
    config = check([*SHORT, *overrides])
    ready(config)
    Trainer(config, folder).run()


@pytest.mark.usefixtures("on_the_path")
def test_a_custom_host_trains_and_is_evaluated(tmp_path, capsys) -> None:
    train(tmp_path / "run", "host.path=my_hosts:MyHost")
    main([f"checkpoint={tmp_path / 'run'}", "hosts=2", "controllers=[random]"])
    assert "random" in capsys.readouterr().out
    assert list((tmp_path / "run").glob("evaluation*.json"))


@pytest.mark.usefixtures("on_the_path")
def test_a_custom_host_of_text_trains(tmp_path) -> None:
    text = ["task=python_text", "blueprint=[mlp_small]", "task.epoch_samples=32", "task.valid_samples=8", "steps=2"]
    train(tmp_path / "run", "host.path=my_hosts:Words", "host.context=8", *text)
    assert list((tmp_path / "run").rglob("*.pt"))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("my_host:MyHost", "host.path=my_host:MyHost: No module named 'my_host': check the spelling, or add its folder"),
        ("my_hosts:YourHost", "host.path=my_hosts:YourHost: module 'my_hosts' has no attribute 'YourHost'"),
        ("my_hosts:text", "host.path=my_hosts:text is not a class derived from torch.nn.Module"),
        ("my_hosts", "host.path must name a module and a class, as in my_package.my_module:MyHost, got my_hosts"),
        ("my_hosts:NoSlots", "NoSlots is not a host: give it `segments`, a ModuleList, and `slots`"),
        ("my_hosts:NoArguments", "cannot be called as NoArguments(shape, num_classes)"),
        ("my_hosts:NineClasses", "the host's output has the shape (3, 9), and the task needs (3, 10), one logit per class"),
        ("my_hosts:Wider", "slot r0c0 declares images with 7 channels, but its features have the shape (3, 6, 3, 3)"),
        ("my_hosts:Misfit", "task=digits host=custom: segment 1 of the host fails on (3, 1, 8, 8)"),
    ],
)
@pytest.mark.usefixtures("on_the_path")
def test_an_unusable_class_is_refused_in_one_sentence(path, sentence) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as raised:
        ready(check([*SHORT, f"host.path={path}"]))
    assert "\n" not in str(raised.value)


def test_a_custom_host_cannot_be_lesioned() -> None:
    with pytest.raises(ValueError, match=r"needs a host with parts to lesion: set task\.instances=healthy"):
        DigitsConfig().check_host(CustomConfig(path="a:B"))
