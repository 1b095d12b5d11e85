"""Policies that are passed on: they decide as in their run, in evaluation, in Python, and as a program."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import esper
from esper.agent.base import Learner
from esper.checkpoint import load_run
from esper.cli.overrides import check
from esper.config import ConfigError
from esper.env.actions import Head
from esper.env.spec import as_observation
from esper.evaluate import main as evaluate
from esper.evaluation import bundle
from esper.evaluation.held_out import Evaluation
from esper.export import ExportConfig
from esper.export import main as export
from esper.telemetry.config import TelemetryConfig
from esper.training.resume import continued, find_checkpoint
from esper.training.trainer import Trainer

WORDS = ["hosts=4", "steps=3", "updates=1", "telemetry=quiet", "agent.minibatches=2", "agent.hidden=8", "task.epoch_samples=128"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "run"
    Trainer(check(WORDS), folder).run()
    evaluate([f"checkpoint={folder}", "hosts=3", "controllers=[policy]"])
    return folder


@pytest.fixture(scope="module")
def saved(run: Path) -> Path:
    return esper.save_policy(run, run.parent / "digits", note="A policy for a test.")


def test_the_folder_holds_what_its_card_says(run: Path, saved: Path) -> None:
    assert {path.name for path in saved.iterdir()} == {
        "README.md",
        "config.yaml",
        "evaluation.json",
        "observation.json",
        "policy.pt",
    }
    card = (saved / "README.md").read_text()
    (report,) = (json.loads(path.read_text()) for path in run.glob("evaluation_*.json"))
    mean = next(row["return"]["mean"] for row in report["rows"] if row["controller"] == "policy")
    assert card.startswith("# digits\n\nA policy for a test.\n\nA policy of `agent=ppo`")
    assert f"| the policy | {mean:.1f} ± " in card
    assert "1 update of 4 hosts x 3 epochs on `task=digits`" in card
    assert "hosts" not in json.loads((saved / "evaluation.json").read_text())
    table = json.loads((saved / "observation.json").read_text())
    state = load_run(saved / "policy.pt")
    names = state["agent"]["names"]
    assert (table["features"], table["slots"]) == (names["features"], names["slots"])
    assert table["actions"]["blueprint"] == names["blueprints"]
    assert "optimizer" not in state["agent"]
    assert (saved / "policy.pt").stat().st_size < find_checkpoint(str(run), "checkpoint").stat().st_size / 2


def test_every_command_reads_it_and_no_run_resumes_from_it(run: Path, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (Evaluation.load(str(place), hosts=3).run(["policy"])["policy"] for place in (run, saved))
    assert np.array_equal(one.values["return"], other.values["return"])
    with pytest.raises(ConfigError, match="names a policy without its training state"):
        continued(check([f"resume={saved}"]), [])
    with pytest.raises(ConfigError, match="digits exists and is not empty"):
        esper.save_policy(run, saved)


def test_a_policy_that_replaces_another_leaves_none_of_its_files(run: Path, tmp_path: Path) -> None:
    copy, out = shutil.copytree(run, tmp_path / "run"), tmp_path / "out"
    esper.save_policy(copy, out)
    (out / "policy.pt2").write_text("a program of the earlier policy")
    (evaluation,) = copy.glob("evaluation_*.json")
    evaluation.write_text("{")
    with pytest.raises(ConfigError, match=r"evaluation_.* is damaged: remove it, or evaluate the run again"):
        esper.save_policy(copy, out, overwrite=True)
    evaluation.unlink()
    esper.save_policy(copy, out, overwrite=True)
    assert {path.name for path in out.iterdir()} == {"README.md", "config.yaml", "observation.json", "policy.pt"}
    assert "It was not evaluated" in (out / "README.md").read_text()
    (copy / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json is damaged"):
        esper.save_policy(copy, out, overwrite=True)


def test_a_policy_that_is_saved_over_itself_keeps_its_evaluation(saved: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(saved, tmp_path / "digits")
    (copy / "policy.pt2").write_text("its program")
    esper.save_policy(copy, copy, note="Another note.", overwrite=True)
    assert {path.name for path in copy.iterdir()} == {*(path.name for path in saved.iterdir()), "policy.pt2"}
    assert (copy / "evaluation.json").read_bytes() == (saved / "evaluation.json").read_bytes()
    told, before = ((one / "README.md").read_text().partition("There is no clear difference between")[2] for one in (copy, saved))
    assert told == before != ""


def test_it_decides_in_python_as_in_an_evaluation(run: Path, saved: Path) -> None:
    policy = esper.load_policy(saved)
    with pytest.raises(ConfigError, match="call make_vec_env first"):
        policy.act({})
    env = policy.make_vec_env(num_envs=3)
    evaluation = Evaluation.load(str(run), hosts=3)
    wanted = evaluation.grow(evaluation.controller("policy_greedy"), greedy=True).values["return"]
    observation, _ = env.reset(options={"episode": 0})
    total, terminated = np.zeros(3), None
    for _ in range(env.num_steps):
        observation, reward, terminated, _, _ = env.step(policy.act(observation, terminated, greedy=True))
        total += reward
    np.testing.assert_allclose(total, wanted, rtol=1e-5)
    assert terminated is not None
    assert terminated.all()
    policy.start(3, seed=1)
    first, memory = policy.act(observation), policy._state
    policy.start(3, seed=1)
    assert np.array_equal(policy.act(observation), first)
    policy.act(observation, np.zeros(3, bool))
    assert not torch.equal(policy._state["h"], memory["h"])
    policy.act(env.reset(options={"episode": 1})[0])
    env.step(env.action_space.sample())
    with pytest.raises(ConfigError, match=r"terminated is missing: write act\(observation, terminated\)"):
        policy.act(env.observation())
    policy.act(observation)
    assert torch.equal(policy._state["h"], memory["h"]), "after reset, it has forgotten the past"
    copy = pickle.loads(pickle.dumps(env))
    assert np.array_equal(copy.reset(options={"episode": 0})[0]["features"], env.reset(options={"episode": 0})[0]["features"])
    with pytest.raises(ConfigError, match="the observation lacks features, slots, blueprints, legal_slots, legal_values"):
        policy.act({"a": observation["features"]})
    with pytest.raises(ConfigError, match=r"the policy decides for 3 hosts, got observations of 2 and terminated of 3"):
        policy.act({name: part[:2] for name, part in observation.items()})
    with pytest.raises(ConfigError, match=r"features is that of a single host, without the axis of hosts: give features\[None\]"):
        policy.act({name: part[0] for name, part in observation.items()})
    with pytest.raises(
        ConfigError, match=r"slots has the shape \(3, 1, \d+\), but the policy reads \[hosts, 3, \d+\]: give what"
    ):
        policy.act({**observation, "slots": observation["slots"][:, :1]})
    with pytest.raises(ConfigError, match=r"overrides must be a list, got 'steps=3'"):
        policy.make_vec_env("steps=3")
    with pytest.raises(ConfigError, match="num_envs must be a whole number of at least 1, got 0"):
        policy.make_vec_env(num_envs=0)
    with pytest.raises(ConfigError, match="split must be training or held_out, got 'test'"):
        policy.make_vec_env(split="test")
    with pytest.raises(ConfigError, match=r"hosts=8 cannot be changed in an evaluation, since the number of hosts is set else"):
        policy.make_vec_env(["hosts=8"])
    with pytest.raises(ConfigError, match="nowhere does not exist: name the folder"):
        esper.load_policy("nowhere")
    with pytest.raises(ConfigError, match="this policy was trained with the blueprints"):
        policy.make_vec_env(["blueprint=[norm]"], num_envs=2)


@pytest.mark.parametrize(
    "words",
    [
        [],
        pytest.param(["agent=ppo_mlp", "agent.heads.style=free", "agent.standardize=true"], marks=pytest.mark.slow),
    ],
    ids=["lstm", "mlp"],
)
def test_the_program_decides_as_the_policy(
    words: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run
    if words:
        folder = tmp_path / "run"
        Trainer(check([*WORDS, *words]), folder).run()
    esper.save_policy(folder, folder / "export" / "policy_000001")  # an earlier export, which is written over
    attached = list[Path]()
    monkeypatch.setattr(TelemetryConfig, "attach", lambda _, run, files: attached.extend(files))
    export([f"checkpoint={folder}", "format=policy"])
    assert folder / "export" / "policy_000001" / "policy.pt2" in attached, "trackers receive it"
    assert "policy.pt2" in capsys.readouterr().out
    loaded: Any = torch.export.load(folder / "export" / "policy_000001" / "policy.pt2").module()
    evaluation = Evaluation.load(str(folder), hosts=5)
    agent, env, random = evaluation.controller("policy"), evaluation.env, np.random.default_rng(0)
    assert isinstance(agent, Learner)
    arrays, _ = env.reset()
    state, starts = agent.start(5), np.ones(5, dtype=np.bool_)
    memory = state or dict.fromkeys("hc", torch.zeros(5, 8))
    chosen = []
    for _ in range(3):
        seen, uniform = as_observation(arrays), random.random((5, len(Head)))
        drawn = agent.act(seen, state, is_init=starts, uniform=uniform)
        greedy = agent.act(seen, state, is_init=starts, uniform=uniform, greedy=True)
        inputs = (seen.features, seen.slots, seen.blueprints, seen.legal_slots, seen.legal_values, uniform, starts)
        action, probable, h, c = loaded(*map(torch.as_tensor, inputs), memory["h"], memory["c"])
        assert np.array_equal(action.numpy(), drawn.action)
        assert np.array_equal(probable.numpy(), greedy.action)
        state, memory = drawn.state, {"h": h, "c": c}
        arrays, _, starts, _, _ = env.step(drawn.action)
        chosen.append(drawn.action)
    assert len({row.tobytes() for rows in chosen for row in rows}) > 1, "the policy does more than one thing"


class Other:
    """A program that always waits and forgets."""

    def module(self) -> Any:
        return lambda *inputs: (torch.zeros(9, 8, dtype=torch.int64),) * 2 + (torch.zeros(9, 8),) * 2


def test_a_program_that_decides_otherwise_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stub in {"export": lambda *_, **__: None, "save": lambda *_: None, "load": lambda _: Other()}.items():
        monkeypatch.setattr(torch.export, name, stub)
    with pytest.raises(ConfigError, match="does not decide as the policy does"):
        bundle.export_program(esper.save_policy(run, tmp_path / "policy"))


def test_what_learns_nothing_is_no_policy(tmp_path: Path) -> None:
    Trainer(check(["hosts=2", "steps=2", "updates=1", "telemetry=quiet", "agent=wait", "env=sandbox"]), tmp_path / "run").run()
    with pytest.raises(ConfigError, match="agent=wait learns nothing, so there is no policy to save"):
        esper.save_policy(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="so there is no policy to load"):
        esper.load_policy(tmp_path / "run").make_vec_env(num_envs=2)
    with pytest.raises(ValueError, match="leave host, hosts, episode and controller out"):
        ExportConfig(checkpoint="x", format="policy", host=1)


def test_the_exported_network_is_the_one_that_was_evaluated(run: Path, tmp_path: Path) -> None:
    (report,) = (json.loads(path.read_text()) for path in run.glob("evaluation_*.json"))
    export([f"checkpoint={run}", "host=1", "hosts=3"])
    about = json.loads((run / "export" / "update_000001_host_1_of_3_episode_0_policy" / "topology.json").read_text())
    assert about["test_accuracy"] == report["hosts"]["policy"]["accuracy"][1]
    export([f"checkpoint={run}", "host=1", "hosts=2", "steps=1"])
    about = json.loads((run / "export" / "update_000001_host_1_of_2_episode_0_policy_steps=1" / "topology.json").read_text())
    assert about["transfer"] == {"source": ["steps=3"], "target": ["steps=1"]}
    for host in (-1, 3):
        with pytest.raises(ConfigError, match=rf"host={host} is not among hosts=3, which are counted from 0: choose 0 to 2"):
            esper.grown_network(run, host=host, hosts=3)
    with pytest.raises(ConfigError, match="controller=ppo may need training"):
        esper.grown_network(run, hosts=3, controller="ppo")


def test_too_few_hosts_for_the_devices_are_one_sentence_and_a_policy_takes_as_many(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bundle.from_plain(load_run(find_checkpoint(str(run), "checkpoint"))["config"])
    config.devices = dict.fromkeys(["cpu", "cuda:0", "cuda:1"], config.devices["auto"])
    with pytest.raises(ConfigError, match=r"hosts=2 cannot be distributed over 3 devices .*: raise hosts to at least 3"):
        Evaluation(config, {}, hosts=2)
    asked: list[int] = []
    monkeypatch.setattr(bundle, "from_plain", lambda _: config)
    monkeypatch.setattr(bundle, "Evaluation", lambda *_, hosts, **__: asked.append(hosts) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        esper.save_policy(run, tmp_path / "out")
    assert asked == [3]


def test_a_training_that_goes_on_may_remove_the_checkpoint(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Evaluation.__init__

    def build(evaluation: Evaluation, *arguments: Any, **named: Any) -> None:
        for path in (copy / "checkpoints").glob("*.pt"):  # it was read before
            path.unlink()
        built(evaluation, *arguments, **named)

    monkeypatch.setattr(Evaluation, "__init__", build)
    monkeypatch.setattr("esper.export.export_program", lambda _: None)  # it reads the policy that was written
    for form, made in (("pytorch", "*/network.py"), ("policy", "*/policy.pt")):
        copy = Path(shutil.copytree(run, tmp_path / form, ignore=shutil.ignore_patterns("export")))
        export([f"checkpoint={copy}", f"format={form}", *(["hosts=2"] if form == "pytorch" else [])])
        assert list((copy / "export").glob(made))


def test_a_grown_network_grows_on(run: Path, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        esper.save_policy(run, tmp_path / "policy")
        network = esper.grown_network(run, host=1, hosts=2, controller="heuristic")
        assert torch.get_num_threads() == 2, "the caller's own"
    finally:
        torch.set_num_threads(1)
    x = torch.randn(4, 1, 8, 8)
    net = esper.grow(network, slots={"again": "slots.0"}, example=x)
    assert torch.equal(net.eval()(x), network(x))
    seed = net.germinate("again", "conv_light")
    net.begin_epoch()
    net(x).sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in seed.parameters())
