"""A custom host class, named by its import path on the command line."""

import re
import sys
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import ConfigError
from esper.evaluate import main
from esper.evaluation.held_out import Evaluation
from esper.hosts.custom import IMPORTED, CustomConfig
from esper.notices import UserNotice
from esper.task.digits import DigitsConfig
from esper.training import provenance
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
import numpy as np
import torch
import torch.nn.functional as F
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

class Softmax(nn.Module):
    def forward(self, x):
        return x.softmax(-1)

class Probabilities(MyHost):
    def __init__(self, shape, num_classes):
        super().__init__(shape, num_classes)
        self.segments[1].append(Softmax())

class Wider(Host):
    def __init__(self, shape, num_classes):
        whole = MyHost(shape, num_classes)
        super().__init__(whole.segments, [SlotSpec("r0c0", 7, Layout.IMAGES)])

class Misfit(Host):
    def __init__(self, shape, num_classes):
        super().__init__([nn.Identity(), nn.Linear(3, num_classes)], [SlotSpec("r0c0", shape[0])])

class SlotsByName(MyHost):
    def __init__(self, shape, num_classes):
        super().__init__(shape, num_classes)
        self.slots = tuple(slot.name for slot in self.slots)

class NoLayout(Host):
    def __init__(self, shape, num_classes):
        super().__init__([nn.Identity(), nn.Linear(3, num_classes)], [SlotSpec("r0c0", shape[0], "image")])

class NoSlots(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()

class NoArguments(nn.Module):
    pass

class Changed(MyHost):
    def __init__(self, shape, num_classes, place, layer):
        super().__init__(shape, num_classes)
        self.segments[place].insert(0 if place == 1 else 1, layer)

class Does(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.does = forward

    def forward(self, x):
        return self.does(x)

def host(place, layer):
    class Mine(Changed):
        def __init__(self, shape, num_classes):
            super().__init__(shape, num_classes, place, layer())
    return Mine

def does(place, forward):
    return host(place, lambda: Does(forward))

class Weighted(MyHost):
    def __init__(self, shape, num_classes, change):
        super().__init__(shape, num_classes)
        with torch.no_grad():
            change(self.segments[0][0].weight)

class ByNumpy(Weighted):
    def __init__(self, shape, num_classes):
        super().__init__(shape, num_classes, lambda weight: weight.fill_(np.random.rand()))

class NotFinite(Weighted):
    def __init__(self, shape, num_classes):
        super().__init__(shape, num_classes, lambda weight: weight.fill_(torch.nan))

class Frozen(Weighted):
    def __init__(self, shape, num_classes):
        super().__init__(shape, num_classes, lambda weight: weight.requires_grad_(False))

class NoisyTraining(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)

class Moving(nn.BatchNorm2d):
    def forward(self, x):
        self.num_batches_tracked.add_(1)
        return super().forward(x)

class OwnTraining(nn.Module):
    def forward(self, x):
        return x * np.random.rand() if self.training else x

Dropout, Rand = host(1, NoisyTraining), does(1, lambda x: x + torch.rand_like(x))
Numpy, NumpyTraining = does(0, lambda x: x * np.random.rand()), host(1, OwnTraining)
Double, Detached = does(0, lambda x: x.double()), does(1, lambda x: x.detach())
Batch, Hosts = does(0, lambda x: x - x.mean(0)), does(0, lambda x: x.softmax(1))
InPlace, Evaluated = does(1, lambda x: x.mul_(2)), host(1, lambda: Moving(6))
Signed = does(1, lambda x: x * (1.0 if x.mean().item() > 0 else 0.5))
Peak = does(0, lambda x: x / x.abs().max())
Error = does(1, lambda x: {}["lost"])

text = "no class"
"""


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """What is recorded as imported is the same before and after the test."""
    before = {**IMPORTED}
    yield
    assert before == IMPORTED


@pytest.fixture
def on_the_path(nothing_left: None, own_parts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the module `my_hosts` on Python's search path."""
    (tmp_path / "my_hosts.py").write_text(MODULE)
    (tmp_path / "imports.py").write_text("import no_such_module")
    (tmp_path / "broken.py").write_text("# a comment\n1 / 0")
    (tmp_path / "misspelt.py").write_text("clas Host: ...")
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
def test_a_run_records_the_source_of_a_custom_host(tmp_path) -> None:
    train(tmp_path / "run", "host.path=my_hosts:MyHost")
    (record,) = provenance.read(tmp_path / "run" / provenance.FILE)
    assert record["esper"]["plugins"]["my_hosts"] == sha256((tmp_path / "my_hosts.py").read_bytes()).hexdigest()


@pytest.mark.usefixtures("on_the_path")
def test_an_edited_host_is_noticed_and_a_lost_one_is_one_sentence(tmp_path, monkeypatch) -> None:
    overrides = [*SHORT, "host.path=my_hosts:MyHost"]
    Trainer(check(overrides), tmp_path / "run").run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Evaluation.load(str(tmp_path / "run"), hosts=2).env.close()
    (tmp_path / "my_hosts.py").write_text(MODULE.replace("nn.ReLU()", "nn.Tanh()"))
    del sys.modules["my_hosts"]
    sentence = "the source of my_hosts has changed since this run was trained: restore it, or expect other numbers"
    with pytest.warns(UserNotice, match=sentence):
        Evaluation.load(str(tmp_path / "run"), hosts=2).env.close()
    with pytest.warns(UserNotice, match=sentence):
        Trainer(check([*overrides, "updates=2"]), tmp_path / "run").run()
    monkeypatch.delitem(sys.modules, "my_hosts")
    (tmp_path / "my_hosts.py").unlink()
    with pytest.raises(ConfigError, match=r"^host\.path=my_hosts:MyHost: No module named 'my_hosts': check the spelling"):
        Evaluation.load(str(tmp_path / "run"), hosts=2)


@pytest.mark.usefixtures("on_the_path")
def test_a_custom_host_of_text_trains(tmp_path) -> None:
    text = ["task=python_text", "blueprint=[mlp_small]", "task.epoch_samples=32", "task.valid_samples=8", "steps=2"]
    train(tmp_path / "run", "host.path=my_hosts:Words", "host.context=8", *text)
    assert list((tmp_path / "run").rglob("*.pt"))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("my_host:MyHost", "host.path=my_host:MyHost: No module named 'my_host': check the spelling, or add its folder"),
        ("imports:Host", "host.path=imports:Host imports no_such_module, which is not installed"),
        ("my_hosts.py:Words", "name the module instead of the file, as in my_hosts:Words"),
        ("my_hosts:YourHost", "host.path=my_hosts:YourHost: module 'my_hosts' has no attribute 'YourHost'"),
        ("my_hosts:text", "host.path=my_hosts:text is not a subclass of torch.nn.Module: name one"),
        ("my_hosts", "host.path must name a module and a class, as in my_package.my_module:MyHost, got my_hosts"),
        ("broken:Host", "host.path=broken:Host cannot be imported: ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("misspelt:Host", "host.path=misspelt:Host cannot be imported: SyntaxError: "),
        ("my_hosts:SlotsByName", "SlotsByName is not a host: give it `segments`, a ModuleList, and `slots`, a tuple of SlotSpec"),
        ("my_hosts:NoLayout", "SlotSpec of r0c0: there is no layout 'image': choose from images, vectors, sequences"),
        ("my_hosts:NoSlots", "NoSlots is not a host: give it `segments`, a ModuleList, and `slots`"),
        ("my_hosts:NoArguments", "cannot be called as NoArguments(shape, num_classes)"),
        ("my_hosts:NineClasses", "the host's output has the shape (3, 9), and the task needs (3, 10), one logit per class"),
        ("my_hosts:Probabilities", "the host returns probabilities, and the loss takes logits: leave the softmax out"),
        ("my_hosts:Wider", "slot r0c0 declares images with 7 channels, but its features have the shape (3, 6, 3, 3)"),
        ("my_hosts:Misfit", "task=digits host=custom: segment 1 of the host fails on (3, 1, 8, 8)"),
        ("my_hosts:Dropout", "the host draws random numbers in its forward, so that a resumed run would differ: remove dropout"),
        ("my_hosts:Rand", "task=digits host=custom: the host draws random numbers in its forward"),
        (
            "my_hosts:Numpy",
            "the host returns a different output for the same input in a second call: remove random numbers and state",
        ),
        ("my_hosts:NumpyTraining", "the host returns a different output for the same input in a second call"),
        ("my_hosts:ByNumpy", "the host draws initial weights from a random stream other than torch's, so that a resumed run"),
        ("my_hosts:NotFinite", "segment 0 of the host has an output that is NaN or infinite at birth: correct its forward"),
        ("my_hosts:Frozen", "the host passes no gradient to its parameter segments.0.0.weight: use it, and remove detach"),
        ("my_hosts:Double", "segment 0 of the host returns torch.float64: return torch.float32"),
        ("my_hosts:Detached", "the host passes no gradient to slot r0c0: use it, and remove detach"),
        ("my_hosts:Batch", "the host mixes the samples of a batch in evaluation mode: compute each sample alone"),
        (
            "my_hosts:Hosts",
            "the host mixes the hosts of a shard, as a view with a fixed number of channels does: see docs/extending/hosts.md",
        ),
        ("my_hosts:Signed", "the host cannot run under torch.func.vmap (vmap: It looks like you're calling .item() on a Tensor"),
        ("my_hosts:Peak", "the host mixes the samples of a batch in evaluation mode: compute each sample alone"),
        ("my_hosts:InPlace", "segment 1 of the host changes its input in place: use inplace=False"),
        ("my_hosts:Error", "segment 1 of the host fails on (3, 6, 3, 3) with KeyError: 'lost' (my_hosts.py, line 1"),
    ],
)
@pytest.mark.usefixtures("on_the_path")
def test_an_unusable_class_is_refused_in_one_sentence(path, sentence) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as raised:
        ready(check([*SHORT, f"host.path={path}"]))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("on_the_path")
def test_a_host_that_changes_its_buffers_in_evaluation_is_refused() -> None:
    alone = ["devices=[cpu]", "devices.cpu.members_per_shard=1"]
    with pytest.raises(ConfigError, match="the host changes its buffers in evaluation mode, so that measuring would change it"):
        ready(check([*SHORT, *alone, "host.path=my_hosts:Evaluated"]))


def test_a_custom_host_cannot_be_lesioned() -> None:
    with pytest.raises(ValueError, match=r"needs a host with parts to lesion: set task\.instances=healthy"):
        DigitsConfig().check_host(CustomConfig(path="a:B"))
