"""A learner, an environment, a buffer and a host from outside: help, runs, a sweep, and an exact resume after a kill."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.checkpoint import Checkpoints, load, update_of
from esper.cli.overrides import check, check_over
from esper.config import ConfigError
from esper.plugins import load_plugins
from esper.telemetry.jsonl import read_records
from esper.training.config_io import from_plain, to_plain
from esper.training.trainer import Trainer
from tests.outside.test_outside import HERE, output, start
from tests.seeds.test_extending import module

pytestmark = pytest.mark.usefixtures("own_parts")
LAMPS = ["env=lamps", "env.prize=2", "steps=3", "hosts=8", "telemetry=quiet"]
REINFORCE = [*LAMPS, "agent=reinforce", "agent.learning_rate=0.03"]


@pytest.fixture
def plugins(tmp_path: Path) -> str:
    """Override that imports the parts; the learner is that of docs/extending/agents.md."""
    (tmp_path / "my_learner.py").write_text(module("my_learner.py"))
    return f"plugins=[{tmp_path / 'my_learner.py'},{HERE / 'my_worlds.py'}]"


@pytest.fixture
def imported(own_parts: None, plugins: str) -> None:
    """The parts in this process."""
    load_plugins(plugins.removeprefix("plugins=[").removesuffix("]").split(","))


def measured(folder: Path) -> list[dict[str, float]]:
    """Metrics of a run, without the clock."""
    records = read_records(folder / "metrics.jsonl")
    return [{tag: value for tag, value in record.items() if not tag.startswith("time/")} for record in records]


def newest(folder: Path) -> dict[str, Any]:
    path = Checkpoints(folder / "checkpoints").latest()
    assert path is not None
    return load(path)


def run(folder: Path, *overrides: str) -> list[dict[str, float]]:
    Trainer(check([*overrides]), folder).run()
    return measured(folder)


def same(one: Any, two: Any) -> bool:
    """True if two nested states are equal bit for bit."""
    if torch.is_tensor(one):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def test_a_killed_learner_resumes_as_if_nothing_had_happened(plugins: str, tmp_path: Path) -> None:
    process = start("train", plugins, *REINFORCE, "updates=5000", "hydra.run.dir=run", cwd=tmp_path)
    folder = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoint_000002.pt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    path = Checkpoints(folder).latest()
    assert path is not None, err
    assert 2 <= update_of(path) < 5000
    updates = update_of(path) + 2
    output("train", "resume=run", f"updates={updates}", cwd=tmp_path)
    load_plugins(plugins.removeprefix("plugins=[").removesuffix("]").split(","))
    whole = run(tmp_path / "whole", *REINFORCE, f"updates={updates}")
    assert measured(tmp_path / "run") == whole
    assert same(newest(tmp_path / "run")["agent"], newest(tmp_path / "whole")["agent"])
    assert whole[0]["agent/loss"] != whole[-1]["agent/loss"]


def test_help_and_a_sweep(plugins: str, tmp_path: Path) -> None:
    shown = " ".join(output("train", "--help", plugins, cwd=tmp_path).split())
    for option in ("lamps", "archive", "stripe", "reinforce"):
        assert option in shown
    swept = ["agent.learning_rate=0.001,0.3", "updates=2", "hydra.sweep.dir=both"]
    output("train", "-m", plugins, *REINFORCE[:-1], *swept, cwd=tmp_path)
    slow, fast = (measured(tmp_path / "both" / job) for job in "01")
    assert slow[0] == fast[0], "the same policy and the same hosts"
    assert slow[1]["agent/loss"] != fast[1]["agent/loss"]


@pytest.mark.usefixtures("imported")
def test_an_environment_pays_and_is_described(tmp_path: Path) -> None:
    records = run(tmp_path / "two", *REINFORCE, "updates=2")
    assert [record["update"] for record in records] == [1, 2]
    assert all(record["policy/return"] % 0.25 == 0 for record in records), "eight hosts, and steps of 2 points"
    (half,) = run(tmp_path / "one", *REINFORCE, "env.prize=1", "updates=1")
    assert records[0]["policy/return"] == 2 * half["policy/return"] != 0
    trainer = Trainer(check(REINFORCE), tmp_path / "unused")
    assert trainer.config.title().startswith("reinforce on lamps: ")
    assert trainer.hparams()["prize"] == 2
    with pytest.raises(ConfigError, match="task=digits has no effect with env=lamps: leave it out"):
        check([*REINFORCE, "task=digits"])
    back = from_plain(to_plain(check(REINFORCE)))
    assert check_over(back, ["agent=random"]).choice("env") == "lamps"


@pytest.mark.usefixtures("imported")
def test_a_learner_learns_there(tmp_path: Path) -> None:
    """The best return is one prize per step, 6 points."""
    records = run(tmp_path, *LAMPS, "hosts=32", "agent=reinforce", "agent.learning_rate=0.05", "updates=40")
    assert records[0]["policy/return"] < 2
    assert records[-1]["policy/return"] > 4


@pytest.mark.usefixtures("imported")
def test_a_buffer_is_learned_from_and_resumed(tmp_path: Path) -> None:
    words = [*LAMPS, "agent.baseline=critic", "agent.twins=1", "agent.hidden=8", "agent.epochs=1", "buffer=archive"]
    words += ["agent.learning_rate=0.02", "buffer.every=1"]
    with pytest.raises(ConfigError, match=r"buffer=archive needs agent\.baseline=critic, got blend"):
        check([*words, "agent.baseline=blend", "agent.twins=2"])
    with pytest.raises(ConfigError, match="buffer=archive has no effect, since this agent does not learn from a buffer"):
        check([*REINFORCE, "buffer=archive"])
    config = check([*words, "updates=5"])
    whole = Trainer(config, tmp_path / "whole")
    whole.run()
    part = Trainer(config, tmp_path / "part")
    collect = part.collect

    def collect_three(*given: Any) -> Any:
        if part.update == 3:
            raise InterruptedError
        return collect(*given)

    part.collect = collect_three  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InterruptedError):
        part.run()
    Trainer(config, tmp_path / "part").run()
    assert measured(tmp_path / "part") == measured(tmp_path / "whole")
    for name in ("agent", "buffer"):
        assert same(newest(tmp_path / "part")[name], newest(tmp_path / "whole")[name])
    rarely = run(tmp_path / "rarely", *words, "buffer.every=2", "updates=5")
    assert rarely[0] == measured(tmp_path / "whole")[0]
    assert rarely[2:] != measured(tmp_path / "whole")[2:]


@pytest.mark.usefixtures("imported")
def test_a_host_is_trained_with_its_key(tmp_path: Path) -> None:
    words = ["host=stripe", "hosts=2", "steps=2", "agent=wait", "telemetry=quiet", "devices=[cpu]", "task.instances=healthy"]
    small, large = (run(tmp_path / width, *words, f"host.width={width}", "updates=2") for width in ("2", "7"))
    assert len(small) == len(large) == 2
    assert small[0]["host/accuracy"] != large[0]["host/accuracy"]
