"""The modules of docs/extending/ run as plugins, as the pages have them; tests/outside runs plugins from the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from esper import evaluate
from esper.cli.overrides import check
from esper.cli.readiness import ready
from esper.config import ConfigError
from esper.notices import UserNotice
from esper.plugins import load_plugins
from esper.task import loading
from esper.telemetry.jsonl import read_records
from esper.training.trainer import Trainer

PAGES = "\n".join(page.read_text() for page in (Path(__file__).parents[2] / "docs" / "extending").glob("*.md"))
SHORT = ["hosts=2", "steps=6", "updates=1", "agent=random", "agent.wait_weight=0.2", "devices=[cpu]"]


def module(name: str) -> str:
    """Return the module of this name on the pages."""
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if f"plugins=[{name}]" in block.splitlines()[0]
    ]
    return code


Run = Callable[..., Path]


@pytest.fixture
def plugin(own_parts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Load a module of the page, changed by a replacement, and return a function that trains and returns the run's folder."""
    monkeypatch.setattr(loading, "_loaded", {})  # tasks are known by their config, which the replacement does not change

    def load(name: str, change: tuple[str, str] = ("", "")) -> Run:
        code = module(name)
        assert change[0] in code
        (tmp_path / name).write_text(code.replace(*change))
        load_plugins([str(tmp_path / name)])

        def train(*overrides: str) -> Path:
            config = check([*overrides])
            ready(config)
            Trainer(config, tmp_path / "run").run()
            return tmp_path / "run"

        return train

    return load


def parameters_grown(printed: str) -> int:
    """Return the parameters that the run's hosts have grown, from its summary."""
    found = re.search(r"parameters grown\s+(\d+)", printed)
    assert found, printed
    return int(found.group(1))


def test_a_host_and_a_seed_of_the_page_train_and_are_evaluated(plugin, capsys):
    run = plugin("my_growth.py")("task=mine", "blueprint=[norm,swish]", *SHORT)
    printed = capsys.readouterr().out
    assert "random on mine" in printed
    assert parameters_grown(printed) > 0
    metrics = json.loads((run / "metrics.jsonl").read_text())
    sentence = r"(\d+) in all seeds, (\d+) in fossilized ones at the end of the last update, mean per host of ([\d,]+) param"
    shown = re.search(sentence, printed)
    assert shown
    grown, kept, host = (int(number.replace(",", "")) for number in shown.groups())
    assert (grown, host + kept) == (round(metrics["host/parameters_grown"]), round(metrics["host/parameters_committed"]))
    evaluate.main([f"checkpoint={run}", "hosts=2", "controllers=[policy]"])
    assert "random" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("nn.ReLU()", "nn.PReLU()"), "task=mine host=mine: segments.0.1 is a PReLU, which has no stacked form"),
        (("nn.SiLU()", "nn.PReLU(c)"), "blueprint=swish: 1 is a PReLU, which has no stacked form"),
    ],
)
def test_layers_without_a_stacked_form_train_with_one_member_per_shard(plugin, capsys, change, sentence):
    train = plugin("my_growth.py", change)
    with pytest.raises(ConfigError, match=rf"^{re.escape(sentence)}.*members_per_shard=1$"):
        train("task=mine", "blueprint=[swish]", *SHORT)
    train("task=mine", "blueprint=[swish]", *SHORT, "devices.cpu.members_per_shard=1")
    assert parameters_grown(capsys.readouterr().out) > 0


def test_a_layer_that_draws_random_numbers_is_refused_with_one_member_per_shard_too(plugin):
    train = plugin("my_growth.py", ("nn.ReLU()", "nn.Dropout(0.1)"))
    sentence = "task=mine host=mine: layer segments.0.1 is a Dropout, which draws from torch's global random stream"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        train("task=mine", "blueprint=[swish]", *SHORT, "devices.cpu.members_per_shard=1")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("nn.SiLU()", "nn.Softmax2d()"), "blueprint=swish: 1 is a Softmax2d, which has no stacked form"),
        (
            ("born_as_zero(nn.Conv2d(c, c, 1))", "nn.Conv2d(c, c, 1)"),
            "blueprint=swish: the seed in slot r0c0 is not the identity",
        ),
    ],
)
def test_a_wrong_seed_is_refused_before_the_run(plugin, change, sentence):
    train = plugin("my_growth.py", change)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        train("task=mine", "blueprint=[swish]", *SHORT)


def test_the_governor_and_the_writer_of_the_page(plugin):
    overrides = ["governor=limit", "governor.loss=0", "telemetry.writers=[jsonl,{text:{digits:3}}]"]
    run = plugin("my_watch.py")(*overrides, *SHORT)
    (record,) = read_records(run / "metrics.jsonl")
    assert record["governor/rollbacks_divergence"] == 2 * 6, "every host in every epoch"
    assert (run / "returns.txt").read_text() == f"update 1: {record['policy/return']:.3f}\n"


def test_the_controller_of_the_page_plants_after_the_time_it_was_given(plugin, capsys):
    overrides = ["hosts=4", "steps=9", "updates=1", "agent=patient", "agent.after=2", "slots=all", "devices=[cpu]"]
    run = plugin("my_controller.py")(*overrides)
    assert "patient on digits" in capsys.readouterr().out
    decisions = [json.loads(line) for line in (run / "decisions.jsonl").read_text().splitlines()]
    planted = [one for one in decisions if one["op"] == "germinate"]
    assert min(int(one["id"].split("/")[2]) for one in decisions) == 2
    assert len({one["slot"] for one in planted}) > 1
    assert len(planted) > 4
    assert {one["op"] for one in decisions} >= {"germinate", "advance"}
    assert not any(one["refused"] for one in decisions)


def test_the_reward_of_the_page_pays(plugin):
    overrides = ["hosts=2", "steps=6", "updates=1", "reward=brisk", "reward.trial=2", "agent=schedule", "devices=[cpu]"]
    (record,) = read_records(plugin("my_reward.py")(*overrides) / "metrics.jsonl")
    assert record["reward/on_trial"] == -2 * 4, "one seed, on trial for four host epochs, and then kept"
    assert record["policy/return"] == pytest.approx(record["reward/on_trial"] + record["reward/terminal"], rel=1e-5)


STUBBORN = """
from dataclasses import dataclass
import numpy as np
import esper
from esper.agent.base import AgentConfig
from esper.buffer.transition import Decision
from esper.env.actions import Op

@dataclass(kw_only=True, slots=True)
class StubbornConfig(AgentConfig):
    def build(self, spec, *, seed, buffer=None):
        return Stubborn()

class Stubborn:
    def start(self, num_hosts):
        return {}

    def act(self, observation, state, *, is_init, uniform, greedy=False):
        action = np.zeros(uniform.shape, np.int64)
        action[:, 0] = Op.FOSSILIZE
        return Decision(action=action, state={})

esper.register("agent", "stubborn", StubbornConfig)
"""


@pytest.mark.usefixtures("own_parts")
def test_a_controller_whose_actions_are_refused_is_warned_once(tmp_path):
    (tmp_path / "stubborn_agent.py").write_text(STUBBORN)
    load_plugins([str(tmp_path / "stubborn_agent.py")])
    overrides = ["agent=stubborn", "hosts=2", "steps=3", "updates=2", "telemetry=quiet"]
    with pytest.warns(UserNotice) as caught:
        Trainer(check(overrides), tmp_path / "run").run()
    texts = [str(one.message) for one in caught if "illegal" in str(one.message)]
    (text,) = texts
    assert text.startswith("update 1: 6 of 6 actions were illegal and had no effect: choose from observation.legal_slots")


@pytest.mark.slow
@pytest.mark.usefixtures("own_parts")
def test_reinforce_of_the_page_is_short_and_beats_random(tmp_path):
    """Mean return of the last ten updates, over two seeds: random gets some 10 % of the optimum, REINFORCE more than half."""
    assert len(module("my_learner.py").splitlines()) < 90
    (tmp_path / "my_learner.py").write_text(module("my_learner.py"))
    load_plugins([str(tmp_path / "my_learner.py")])
    sandbox = ["env=sandbox", "steps=6", "hosts=64", "updates=40", "telemetry=quiet"]

    def share(folder, *overrides):
        shares = []
        for seed in (0, 1):
            Trainer(check([*sandbox, *overrides, f"seed={seed}"]), tmp_path / folder / str(seed)).run()
            records = read_records(tmp_path / folder / str(seed) / "metrics.jsonl")
            shares += [record["sandbox/share_of_optimum"] for record in records[-10:]]
        return sum(shares) / len(shares)

    assert share("learner", "agent=reinforce", "agent.learning_rate=0.02") > 0.5
    assert share("random", "agent=random", "updates=10") < 0.25
