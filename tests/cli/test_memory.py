"""Lack of memory ends a command with one sentence, and the run resumes to the numbers of one that had enough."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.cli.command import in_one_sentence
from esper.memory import memory_shortage
from esper.pool.shard import Shard
from esper.seeds.blueprints.plain import NormBranch
from esper.telemetry.jsonl import read_records
from esper.training.resume import find_checkpoint
from tests.forked import run_forked

TINY = ["hosts=2", "steps=3", "agent=random", "telemetry.writers=[jsonl]", "blueprint=[norm]", "devices=[cpu]"]
TINY += ["task.batch_size=32", "task.epoch_samples=64", "telemetry.page_hosts=0", "hydra.run.dir=run"]


def on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB")


def of_the_driver() -> None:
    raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")


def of_a_fork() -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


GENUINE: dict[str, tuple[Callable[[], object], str]] = {
    "torch": (lambda: torch.empty(1 << 56, dtype=torch.uint8), "CPU"),
    "numpy": (lambda: np.ones(1 << 56, np.uint8), "CPU"),
    "python": (lambda: bytearray(1 << 60), "CPU"),
    "gpu": (on_a_gpu, "GPU"),
    "driver": (of_the_driver, "GPU"),
    "fork": (of_a_fork, "CPU"),
}
"""Allocations that this machine refuses, or what a GPU raises, and where memory runs out."""


@pytest.mark.parametrize("kind", GENUINE)
def test_every_kind_of_shortage_is_one_sentence(kind, capsys) -> None:
    allocate, where = GENUINE[kind]
    with pytest.raises(SystemExit) as stopped, in_one_sentence():
        allocate()
    assert stopped.value.code == 2
    wanted = f"esper: out of memory on the {where}; what was saved before is intact: lower hosts or task.batch_size\n"
    assert capsys.readouterr().err == wanted


@pytest.mark.parametrize("error", [RuntimeError("shape"), ValueError("out of memory")])
def test_other_errors_keep_their_traceback(error) -> None:
    assert memory_shortage(error) is None
    with pytest.raises(type(error)), in_one_sentence():
        raise error


def untimed(folder: Path) -> list[dict[str, float]]:
    records = read_records(folder / "metrics.jsonl")
    return [{tag: value for tag, value in record.items() if not tag.startswith("time/")} for record in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Return the numbers of a run that has enough memory."""
    cwd = tmp_path_factory.mktemp("whole")
    assert run_forked("esper.train", *TINY, "updates=4", cwd=cwd).returncode == 0
    return untimed(cwd / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "owner", "name"), [("torch", NormBranch, "forward"), ("gpu", Shard, "train_epoch")])
def test_a_run_without_memory_resumes_to_equal_numbers(tmp_path, monkeypatch, whole, kind, owner, name) -> None:
    """Memory runs out in the third update: in a seed, in training."""
    allocate, where = GENUINE[kind]
    real = getattr(owner, name)

    def starving(*arguments, **options):
        if (tmp_path / "run/checkpoints/checkpoint_000002.pt").exists():
            allocate()
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, starving)
        done = run_forked("esper.train", *TINY, "updates=4", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"esper: out of memory on the {where}; all earlier updates are saved: free some memory and resume with: python -m "
        r"esper.train resume=\S+run, or start a new run with smaller hosts or task.batch_size",
        done.stderr.splitlines()[-1],
    )
    assert find_checkpoint(str(tmp_path / "run"), "x").stem.endswith("2")
    assert run_forked("esper.train", "resume=run", cwd=tmp_path).returncode == 0
    np.testing.assert_equal(untimed(tmp_path / "run"), whole)


def test_the_sandbox_names_its_keys(tmp_path) -> None:
    """A true limit: the address space of the process ends where it stands when the second update begins."""
    (tmp_path / "my_limit.py").write_text(LIMIT)
    words = ["plugins=[my_limit.py]", "env=sandbox", "hosts=64", "steps=8", "updates=3", "agent=limited", "hydra.run.dir=run"]
    done = run_forked("esper.train", *words, "telemetry=quiet", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"esper: out of memory on the CPU; .* resume=\S+run, or .* smaller hosts or steps", last)
    assert find_checkpoint(str(tmp_path / "run"), "x").stem.endswith("1")


LIMIT = '''
import resource
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import esper
from esper.agent.scripted.base import RandomConfig

@dataclass(kw_only=True, slots=True)
class LimitedConfig(RandomConfig):
    """Random actions, and a copy of every observation that is never given back."""

    def build(self, spec, *, seed, buffer=None):
        agent, kept = RandomConfig.build(self, spec, seed=seed, buffer=buffer), []
        act = agent.act

        def starving(*arguments, **options):
            if Path("run/checkpoints/checkpoint_000001.pt").exists():
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                if not kept:
                    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20), resource.RLIM_INFINITY))
                kept.append(np.ones(32 << 20, np.uint8))
            return act(*arguments, **options)

        agent.act = starving
        return agent

esper.register("agent", "limited", LimitedConfig)
'''
