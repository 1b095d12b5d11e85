"""Evaluation on held-out hosts."""

import json
import shutil
import warnings
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest

from esper.cli.overrides import check
from esper.config import ConfigError
from esper.evaluate import EvaluateConfig, _foreign_reward, growths, main, parse
from esper.evaluation.held_out import ORACLE, Choice, Evaluation
from esper.evaluation.outcomes import HELD_OUT, SPENT, HostOutcomes, summarise
from esper.evaluation.presentation import oracle_sentence
from esper.evaluation.progress import Progress
from esper.notices import UserNotice
from esper.task.instances import Split
from esper.training.resume import find_checkpoint
from esper.training.trainer import Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    overrides = ["hosts=4", "steps=3", "updates=1", "telemetry=quiet", "agent.minibatches=2", "agent.hidden=8"]
    Trainer(check([*overrides, "task.epoch_samples=256", "task.valid_samples=100"]), folder).run()
    return folder


def test_every_controller_grows_the_same_held_out_hosts(folder):
    evaluation = Evaluation.load(str(folder), hosts=3)
    outcomes = evaluation.run()
    assert list(outcomes) == ["policy", "policy_greedy", "heuristic", "greedy_potential", "random", "wait", "periodic"]
    assert len({tuple(outcome.instance) for outcome in outcomes.values()}) == 1
    again = evaluation.grow(evaluation.controller("wait"))
    assert np.array_equal(again.values["accuracy"], outcomes["wait"].values["accuracy"])
    assert evaluation.env.split is Split.HELD_OUT
    other = Evaluation.load(str(folder), hosts=3, episode=1)
    assert not np.array_equal(other.grow(other.controller("wait")).values["return"], again.values["return"])


def test_the_policy_has_the_trained_weights(folder):
    evaluation = Evaluation.load(str(folder), hosts=2)
    trained = evaluation.controller("policy").state_dict()["network"]
    saved = evaluation.agent_state["network"]
    assert all(trained[name].equal(saved[name]) for name in saved)


@pytest.mark.parametrize("name", ["ppo", "schedule_bandit", "nothing"])
def test_an_untrained_agent_is_no_controller(folder, name):
    """With fresh weights it would evaluate something that nobody asked for."""
    evaluation = Evaluation.load(str(folder), hosts=2)
    for asked in (lambda: evaluation.controller(name), lambda: evaluation.run([name])):
        with pytest.raises(ConfigError, match=f"controller={name} .*choose from policy, policy_greedy"):
            asked()


@pytest.mark.slow
def test_search_adds_the_best_schedule_the_oracle_and_the_best_static_net(folder):
    evaluation = Evaluation.load(str(folder), hosts=2)
    asked = EvaluateConfig(checkpoint=str(folder), controllers=["wait"], schedules=True)
    evaluation.progress = Progress(growths(evaluation, asked, None), StringIO())
    outcomes = evaluation.run(["wait"]) | evaluation.search()
    assert evaluation.progress.done == evaluation.progress.total
    searched = EvaluateConfig(checkpoint=str(folder), controllers=["wait"], search_per_host=["tpe"])
    assert growths(evaluation, searched, None) == 2, "searches are compared with the policy"
    assert [name.split(" (")[0] for name in outcomes] == ["wait", "best schedule", "oracle schedule by kind", "best static net"]


def test_schedules_that_plant_before_any_event_are_weak_references(folder, monkeypatch):
    evaluation = Evaluation.load(str(folder), hosts=2)
    monkeypatch.setattr(evaluation, "choose", lambda **_: Choice(best="wait", for_kind={}, flops=0, seconds=0))
    monkeypatch.setattr(evaluation, "grow_schedules", lambda _: (None, None))
    monkeypatch.setattr(evaluation, "grow_static", lambda _: None)
    with warnings.catch_warnings(action="error"):
        evaluation.search()
    evaluation.config.task.events.kinds.append("rotate")
    with pytest.warns(UserWarning, match="plant in the first host epoch only, so they are weak .*event_oracle"):
        evaluation.search()


def test_the_oracle_knows_kinds_without_their_events_and_counts_the_unseen(folder, monkeypatch):
    def grown(_, name):
        values = np.full(2, {"schedule wait": 1.0}.get(name, 2.0))
        return HostOutcomes(values={"return": values}, instance=["ooo shift@2", "oxo"], kept=[[]] * 2)

    evaluation = Evaluation.load(str(folder), hosts=2)
    monkeypatch.setattr(evaluation, "grow", grown)
    choice = Choice(best="wait", for_kind={"ooo, an event stays": "norm in r0c1"}, flops=0, seconds=0)
    assert evaluation.grow_schedules(choice)[1].values["return"].tolist() == [2.0, 1.0]
    assert evaluation.unseen == 1
    choice.for_kind["ooo shift@2"] = "wait"
    assert evaluation.grow_schedules(choice)[1].values["return"].tolist() == [1.0, 1.0], "this kind has a schedule of its own"
    report = {"unseen_kinds": 1, "hosts": {"policy": {"return": [3.0, 2.0]}, ORACLE: {"return": [2.0, 1.0]}}}
    assert oracle_sentence(report).endswith(
        "2 hosts; 1 of these hosts is of kinds that the oracle was not chosen on, and gets the best overall schedule"
    )


def test_kinds_of_enough_hosts_have_a_schedule_of_their_own(folder, monkeypatch):
    kinds = ["ooo a@1"] * 4 + ["ooo b@1"] * 3 + ["ooo c@1"]

    def grown(_, env, *, name):
        norm, value = "norm in r0c0" in name, {"a": -1.0, "b": 1.0, "c": 5.0}
        values = np.array([value[kind[4]] * norm for kind in kinds])
        outcomes = {"return": values, "validation": -values} | dict.fromkeys(SPENT, values)
        return HostOutcomes(values=outcomes, instance=kinds, kept=[[]] * 8)

    evaluation = Evaluation.load(str(folder), hosts=8)
    monkeypatch.setattr(evaluation, "grow", grown)
    assert evaluation.choose().for_kind == {"ooo, an event stays": "norm in r0c0", "ooo a@1": "wait"}
    by_accuracy = evaluation.choose(by="validation")
    assert by_accuracy.best == "wait"
    assert by_accuracy.for_kind == {"ooo, an event stays": "wait", "ooo a@1": "norm in r0c0"}


def test_differences_are_paired_host_by_host():
    def outcome(values):
        values = np.array(values, dtype=np.float32)
        scale = dict.fromkeys(HELD_OUT, 1) | {"accuracy": 2}
        return HostOutcomes(values={name: scale[name] * values for name in HELD_OUT}, instance=["o"] * 3, kept=[[]] * 3)

    rows = summarise({"wait": outcome([1, 20, 300]), "better": outcome([2, 21, 301])})
    difference = rows[1]["return_over_wait"]
    assert difference == pytest.approx({"mean": 1, "low": 1, "high": 1})
    assert rows[1]["accuracy_over_wait"]["mean"] == pytest.approx(2)
    assert rows[0]["return_over_wait"] == pytest.approx({"mean": 0, "low": 0, "high": 0})


@pytest.mark.parametrize(
    ("target", "paid", "usual"),
    [
        (("task=fashion_drift", "task.pretrain=30"), "shaped", "online"),
        (("task=fashion_drift",), "online", ""),
        (("task=mnist5k",), "online", "shaped"),
        (("task.split_seed=3",), "sparse", ""),
        (("task=needs_more",), "sparse", ""),
        ((), "sparse", ""),
    ],
)
def test_a_foreign_task_names_its_usual_reward(target, paid, usual):
    evaluation = SimpleNamespace(transfer=SimpleNamespace(target=target), config=SimpleNamespace(choice=lambda group: paid))
    said = _foreign_reward(evaluation)
    assert said == (f"reward={paid}; to pay what runs of this task are usually paid, add reward={usual}" if usual else "")


def test_progress_prints_a_line_per_controller_with_the_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("esper.evaluation.progress.time.monotonic", lambda: now[0])
    file = StringIO()
    progress = Progress(3, file)
    for name in ("policy", "wait"):
        progress.begin(name)
        for t in range(5):
            progress.step(t, 4)
            now[0] += 1.0
    assert file.getvalue().splitlines() == ["grown 1 of 3: policy, about 8 s left", "grown 2 of 3: wait, about 4 s left"]


def test_the_command_prints_a_table_and_writes_json(folder, capsys):
    main([f"checkpoint={folder}", "hosts=2", "controllers=[policy]"])
    shown, progress = capsys.readouterr()
    first, *_, numbers, figure, page = shown.splitlines()
    assert page == f"page: {folder}/run.html"
    assert "never growing" in first
    assert progress.splitlines()[0] == "building 2 held-out hosts"
    assert len(progress.splitlines()) == 3
    assert "grown 2 of 2: wait" in progress
    assert numbers == f"numbers: {folder}/evaluation_000001_2_hosts_episode0.json"
    assert (folder / figure.removeprefix("figure: ")).read_text().startswith("<svg")
    assert "means over 2 held-out hosts, with 95 % intervals" in (folder / figure.removeprefix("figure: ")).read_text()
    main([f"checkpoint={folder}", "hosts=3", "controllers=[policy]"])
    for hosts in (2, 3):
        kept = json.loads((folder / f"evaluation_000001_{hosts}_hosts_episode0.json").read_text())
        assert [row["controller"] for row in kept["rows"]] == ["policy", "wait"]
        assert len(kept["hosts"]["wait"]["return"]) == hosts, "another number of hosts has a file of its own"


# ---- controllers that do not learn, and replay

SHORT = ["hosts=2", "steps=9", "updates=1", "telemetry=quiet", "slots=every_block", "task.epoch_samples=256"]


def run_of(folder, *overrides):
    Trainer(check([*SHORT, *overrides]), folder).run()
    return folder


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["agent=periodic", "agent.first=1"], marks=pytest.mark.slow),
        ["agent=schedule", "agent.actions=[{at:1,op:germinate,slot:2,blueprint:norm},{at:3,op:fossilize,slot:2}]"],
        pytest.param(["agent=best_of_random"], marks=pytest.mark.slow),
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_run_of_any_controller_can_be_evaluated(tmp_path, overrides):
    folder = run_of(tmp_path, *overrides)
    evaluation = Evaluation.load(str(folder), hosts=2)
    assert evaluation.names() == ["policy", "heuristic", "greedy_potential", "random", "wait", "periodic"]
    evaluation.env.close()
    main([f"checkpoint={folder}", "hosts=2", "controllers=[policy]"])
    kept = json.loads((folder / "evaluation_000001_2_hosts_episode0.json").read_text())
    assert f"{overrides[0].removeprefix('agent=')} after 1 update" in kept["title"]
    seeds = kept["hosts"]["policy"]["kept"]
    grown = {"agent=periodic": 1, "agent=schedule": 1, "agent=best_of_random": 0}[overrides[0]]
    assert [len(host) for host in seeds] == [grown, grown]
    if overrides[0] == "agent=schedule":
        assert seeds[0] == [{"slot": evaluation.env.layout.slot_names[2], "blueprint": "norm", "blend": "add"}]
    with pytest.raises(ConfigError, match="policy_greedy needs a policy that samples"):
        Evaluation.load(str(folder), hosts=2).run(["policy", "policy_greedy"])


def test_accuracy_is_that_of_every_epoch_where_the_reward_pays_it(tmp_path, capsys):
    folder = run_of(tmp_path / "online", "agent=periodic", "agent.first=1", "reward=online")
    main([f"checkpoint={folder}", "hosts=2", "controllers=[policy]", "search_per_host=[random]", "trainings=[1]"])
    shown = capsys.readouterr().out
    assert "of online accuracy" in " ".join(shown.splitlines()[:2])
    assert shown.count("online accuracy [%]") == 2, "in the table of controllers and that of searches"
    assert (
        " ".join(shown.split()).count("Online accuracy: test accuracy with all seeds as they are, mean over the host epochs.")
        == 2
    )
    report = json.loads((folder / "evaluation_000001_2_hosts_episode0.json").read_text())
    assert report["headline"] == "online"
    row = next(row for row in report["rows"] if row["controller"] == "policy")
    assert row["online"]["mean"] == pytest.approx(np.mean(report["hosts"]["policy"]["online"]))
    assert row["online"]["mean"] != row["accuracy"]["mean"]
    assert f"{row['online']['mean']:.1f}" in shown
    assert "online accuracy" in (folder / "run.html").read_text()
    main([f"checkpoint={folder}", "hosts=2", "controllers=[policy]", "online=false"])
    assert "online accuracy" not in capsys.readouterr().out


@pytest.mark.slow
def test_replay_in_the_same_evaluation_or_from_its_file(tmp_path):
    folder = run_of(tmp_path / "periodic", "agent=periodic", "agent.first=1")
    main([f"checkpoint={folder}", "hosts=3", "controllers=[replay]"])
    out = folder / "evaluation_000001_3_hosts_episode0.json"
    first = json.loads(out.read_text())["hosts"]
    assert list(first) == ["policy", "wait", "replay"]
    assert first["replay"]["kept"] == first["policy"]["kept"]
    assert first["replay"]["parameters"] == first["policy"]["parameters"]
    assert min(first["policy"]["parameters"]) > 0
    assert first["replay"]["return"] != first["policy"]["return"], "the seeds were there earlier"
    again = run_of(tmp_path / "replay", "agent=replay", f"agent.topology={out}")
    main([f"checkpoint={again}", "hosts=3", "controllers=[policy]"])
    second = json.loads((again / "evaluation_000001_3_hosts_episode0.json").read_text())["hosts"]
    assert second["policy"] == first["replay"]
    for more, sentence in (
        ({"episode": 1}, "was recorded on hosts of episode=0.*evaluate with episode=0"),
        ({"hosts": 4}, "hosts to at most 3"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            Evaluation.load(str(again), **{"hosts": 2, **more}).run(["policy"])
    out.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        Evaluation.load(str(again), hosts=2)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([], "checkpoint is not set"),
        (["checkpoint=x", "hostss=3"], "there is no key hostss: .*did you mean hosts"),
        (["checkpoint=x", "hosts"], "hosts is not of the form key=value"),
        (["tests"], "tests is given without a key: did you mean checkpoint=tests?"),
        (["checkpoint=x", "hosts=many"], "hosts|many"),
        (["checkpoint=x", "hosts=1"], "hosts must be at least 2, got 1"),
        (["checkpoint=x", "episode=99999999999999999999"], "episode must be at most 9007199254740992"),
        (["checkpoint=x", "hosts=${foo}"], "hosts: Interpolation key 'foo' not found"),
        (["checkpoint=x", "episode=-1"], "episode must be at least 0, got -1"),
        (
            ["checkpoint=x", "controllers=[ppo]"],
            "controllers=ppo may need training, or keys that are not set here",
        ),
        (["checkpoint=x", "controllers=[policy,oracle]"], "controllers=oracle is not chosen here: schedules=true adds"),
        (["checkpoint=x", "controllers=[polcy]"], "controllers=polcy is not known: .*did you mean policy"),
    ],
)
def test_invalid_arguments_are_one_sentence(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse(overrides)
    assert "\n" not in str(caught.value)


def test_too_many_hosts_are_refused_before_any_exists(folder, monkeypatch):
    monkeypatch.setattr("esper.training.estimate.capacity", lambda device: 4e8)
    with pytest.raises(ConfigError, match=r"this machine has 400 MB: lower hosts \(now 1000\) or "):
        Evaluation.load(str(folder), hosts=1000)


def test_a_missing_checkpoint_ends_with_one_line_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([f"checkpoint={tmp_path / 'nowhere'}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigError):
        find_checkpoint(str(tmp_path), "checkpoint")


def test_the_training_may_remove_a_checkpoint_that_was_read(folder, tmp_path, monkeypatch, capsys):
    copied, load = shutil.copytree(folder, tmp_path / "copied"), Evaluation.load

    def load_while_training(checkpoint, **given):
        evaluation = load(checkpoint, **given)
        evaluation.checkpoint.rename(evaluation.checkpoint.with_name("checkpoint_000009.pt"))
        return evaluation

    monkeypatch.setattr(Evaluation, "load", load_while_training)
    main([f"checkpoint={copied}", "hosts=2", "controllers=[wait]"])
    assert (copied / "evaluation_000001_2_hosts_episode0.json").exists()
    assert "cannot" not in capsys.readouterr().err


def test_help_names_every_key(capsys):
    main(["--help"])
    shown = capsys.readouterr().out
    assert "checkpoint=FOLDER" in shown
    assert all(f"{key}=" in shown for key in ("hosts", "episode", "controllers", "schedules"))


@pytest.mark.filterwarnings("error")
def test_keys_of_searches_are_told_where_there_is_none() -> None:
    with pytest.raises(UserNotice, match=r"^without effect, since search_per_host is empty: search_by, trainings$"):
        parse(["checkpoint=x", "search_by=validation", "trainings=[1]"])
    parse(["checkpoint=x", "search_by=validation", "search_per_host=[random]"])
