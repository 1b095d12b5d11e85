"""An interrupted evaluation goes on where it ended, with the same numbers."""

import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest

from esper import evaluate
from esper.cli.overrides import check
from esper.env.growth_env import GrowthEnv
from esper.evaluation import held_out
from esper.evaluation.journal import Journal
from esper.files import DiskError
from esper.lab.runs import find_runs
from esper.lab.scoring import Scoring, read_scores, score, score_baselines, scored_file
from esper.measure.costs import Price
from esper.training.trainer import Trainer

ASKED = ("hosts=2", "controllers=[policy,wait]", "schedules=true", "search_per_host=[tpe,static_nets]", "trainings=[5]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    overrides = ["hosts=2", "steps=2", "updates=1", "telemetry=quiet", "agent.minibatches=1", "agent.twins=1", "agent.hidden=8"]
    small = [
        "blueprint=norm",
        "slots=one",
        "agent.baseline=critic",
        "agent.standardize=false",
        "task.epoch_samples=128",
        "task.valid_samples=64",
    ]
    Trainer(check(overrides + small), folder).run()
    return folder


def evaluated(folder):
    """Return what an evaluation writes, or its exit code if it was interrupted."""
    try:
        evaluate.main([f"checkpoint={folder}", *ASKED])
    except SystemExit as error:
        return error.code
    (path,) = folder.glob("evaluation_*_2_hosts_*.json")
    return path.read_text()


@pytest.mark.slow
def test_it_goes_on_with_equal_numbers_after_any_number_of_interruptions(folder, tmp_path, monkeypatch, capsys):
    whole, parts = (shutil.copytree(folder, tmp_path / name) for name in ("whole", "parts"))
    grown, play = [], held_out.play

    def interrupted(*arguments, **more):
        if len(grown) % 3 == 2:  # the third of each process
            grown.append(None)
            raise KeyboardInterrupt
        grown.append(play(*arguments, **more))
        return grown[-1]

    expected = evaluated(whole)
    capsys.readouterr()
    monkeypatch.setattr(held_out, "play", interrupted)
    ended = 0
    while (found := evaluated(parts)) == 130:
        ended += 1
        said = capsys.readouterr()
        assert (f"resuming an interrupted evaluation: {2 * (ended - 1)} results are kept" in said.out) == (ended > 1)
        assert f"interrupted; {2 * ended} results are kept; resume with: " in said.err
        assert f"python -m esper.evaluate checkpoint={parts} hosts=2 'controllers=[policy,wait]'" in said.err
    assert found == expected
    assert ended >= 5
    assert not list(parts.glob("evaluation_unfinished*"))


def test_latency_is_measured_once_per_evaluation_and_file_of_scores(folder, tmp_path, monkeypatch):
    run, measured, prices = shutil.copytree(folder, tmp_path / "run"), [], []
    words = ["reward=shaped", "reward.rent_unit=latency"]

    def measure(_, blueprints, used_S, *__):
        measured.append(1e-5 * (1 + len(measured)))
        return Price(host=measured[-1], seed_KS=np.full((len(blueprints), len(used_S)), 1e-6), gate_S=np.zeros(len(used_S)))

    def interrupted(env, *arguments, **more):
        prices.append(env.costs.latency.host)
        raise KeyboardInterrupt

    monkeypatch.setattr("esper.pool.local.measure_latency", measure)
    monkeypatch.setattr(held_out, "play", interrupted)
    for _ in range(2):
        with pytest.raises(SystemExit):
            evaluate.main([f"checkpoint={run}", "hosts=2", "controllers=[wait]", *words])
    assert prices == [1e-5, 1e-5]
    monkeypatch.undo()
    monkeypatch.setattr("esper.pool.local.measure_latency", measure)
    (found,) = [one for one in find_runs([run]) if one.finished]
    score(found, 2, words)
    score_baselines(found, Scoring(hosts=2, baselines=["random"], arm=found.arm, overrides=words))
    assert len(measured) == 2
    assert read_scores(found, scored_file(found, 2, words))["latency"]["host"] == measured[1]


@dataclass
class Outcome:
    values: dict[str, np.ndarray]
    kept: list[list[dict[str, str]]]


def test_a_journal_holds_arrays_bit_by_bit_and_loses_only_what_a_kill_cut_short(tmp_path):
    values = {"a": np.array([0.1, np.nan], np.float32), "b": np.arange(3), "c": np.array([[np.inf, 1e-300]])}
    journal = Journal(tmp_path, {"hosts": 2})
    for name in ("first", "second"):
        journal.keep(name, Outcome(values, [[{"slot": "r0c1"}], []]))
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-20])
    again = Journal(tmp_path, {"hosts": 2})
    assert (again.recalled, again.recall("second")) == (1, None)
    found = again.recall("first")
    assert found is not None
    assert found["kept"] == [[{"slot": "r0c1"}], []]
    for name, array in values.items():
        assert found["values"][name].dtype == array.dtype
        assert found["values"][name].tobytes() == array.tobytes()
    again.keep("second", Outcome(values, []))
    assert Journal(tmp_path, {"hosts": 2}).recalled == 2
    assert Journal(tmp_path, {"hosts": 3}).recalled == 0


def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path):
    journal = Journal(tmp_path, {"hosts": 2})
    journal.path.mkdir()
    with pytest.raises(DiskError, match=r"^cannot write results to .*evaluation_unfinished_.*: is a directory; "):
        journal.keep("first", Outcome({}, []))


def test_other_settings_and_other_checkpoints_have_other_journals(tmp_path, folder, monkeypatch):
    paths = set()

    class Kept(Journal):
        def __init__(self, folder, facts):
            super().__init__(folder, facts)
            json.dumps(facts)
            paths.add(self.path.name)

    monkeypatch.setattr(evaluate, "Journal", Kept)
    monkeypatch.setattr(evaluate, "_evaluate", lambda evaluation, *_: evaluation.env.close())
    for name in ("_display", "_write", "write_page"):
        monkeypatch.setattr(evaluate, name, lambda *_, **__: None)
    run = shutil.copytree(folder, tmp_path / "run")
    ordinary = [f"checkpoint={run}", "hosts=2", "controllers=[wait]"]
    first = f"checkpoint={run}/checkpoints/checkpoint_000000.pt"
    for arguments in (
        ordinary,
        [*ordinary, "details=true"],
        [*ordinary, "steps=1"],
        [*ordinary, "seed=7"],
        [first, *ordinary[1:]],
    ):
        evaluate.main(arguments)
    assert len(paths) == 4
    monkeypatch.setattr(GrowthEnv, "hparams", lambda _: {"data": "other data under the same task"})
    with pytest.warns(UserWarning, match="the policy was trained on other data"):
        evaluate.main(ordinary)
    assert len(paths) == 5
