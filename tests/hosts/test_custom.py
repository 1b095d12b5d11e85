"""A host class of one's own, named by its import path on the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from esper.evaluate import main
from esper.hosts.custom import CustomConfig
from esper.task.digits import DigitsConfig

ROOT = Path(__file__).parents[2]
SHORT = ["hosts=2", "steps=6", "updates=1", "agent=random", "agent.wait_weight=0.2", "devices=[cpu]", "task.instances=healthy"]
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
def typed_at_a_shell(tmp_path: Path):
    """Runs `python -m esper.train host=custom` with the module on the search path."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "my_hosts.py").write_text(MODULE)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path / "parts"), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-m", "esper.train", "host=custom", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_a_host_of_one_s_own_trains_and_is_evaluated(typed_at_a_shell, tmp_path, monkeypatch, capsys) -> None:
    done = typed_at_a_shell("host.path=my_hosts:MyHost", *SHORT)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "multirun" / "single").iterdir()
    monkeypatch.syspath_prepend(str(tmp_path / "parts"))
    main([f"checkpoint={run}", "hosts=2", "controllers=[random]"])
    assert "random" in capsys.readouterr().out
    assert list(run.glob("evaluation*.json"))


def test_so_does_one_for_text(typed_at_a_shell) -> None:
    text = ["task=python_text", "blueprint=[mlp_small]", "task.epoch_samples=32", "task.valid_samples=8"]
    done = typed_at_a_shell("host.path=my_hosts:Words", "host.context=8", *text, *SHORT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("my_host:MyHost", "host.path=my_host:MyHost: No module named 'my_host': check the spelling, or add its folder"),
        ("my_hosts:YourHost", "host.path=my_hosts:YourHost: module 'my_hosts' has no attribute 'YourHost'"),
        ("my_hosts:text", "host.path=my_hosts:text is not a class derived from torch.nn.Module"),
        ("my_hosts", "host.path must name a module and a class, as in my_package.my_module:MyHost, got my_hosts"),
        ("my_hosts:NoSlots", "host.path=my_hosts:NoSlots: NoSlots is not a host: give it `segments`, a ModuleList, and `slots`"),
        ("my_hosts:NoArguments", "cannot be called as NoArguments(shape, num_classes)"),
        ("my_hosts:NineClasses", "the host's output has the shape (2, 9), and the task needs (2, 10), one logit per class"),
        ("my_hosts:Wider", "slot r0c0 promises images with 7 channels, and its features have the shape (2, 6, 3, 3)"),
        ("my_hosts:Misfit", "task=digits host=custom: segment 1 of the host fails on (2, 1, 8, 8)"),
    ],
)
def test_what_is_no_host_for_the_task_is_one_sentence(typed_at_a_shell, tmp_path, path, sentence) -> None:
    done = typed_at_a_shell(f"host.path={path}", *SHORT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "multirun").exists()


def test_it_has_no_parts_to_lesion() -> None:
    with pytest.raises(ValueError, match=r"needs a host with parts to lesion: set task\.instances=healthy"):
        DigitsConfig().check_host(CustomConfig(path="a:B"))
