"""Evaluation: the same fresh hosts for every controller, paired differences, and clear words."""

import json

import numpy as np
import pytest

from esper.config import ConfigError, register
from esper.evaluate import Evaluation, Outcome, find_checkpoint, help_text, main, parse, summarise
from esper.overrides import check
from esper.task.base import Split
from esper.trainer import Trainer

register()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    words = ["hosts=4", "steps=3", "updates=1", "telemetry=quiet", "agent.minibatches=2", "agent.hidden=8"]
    Trainer(check(words), folder).run()
    return folder


def test_every_controller_grows_the_same_fresh_hosts(folder):
    evaluation = Evaluation(parse([f"checkpoint={folder}", "hosts=3"]))
    outcomes = evaluation.run()
    assert list(outcomes) == ["policy", "policy_greedy", "heuristic", "greedy_potential", "random", "wait"]
    assert len({tuple(outcome.instance) for outcome in outcomes.values()}) == 1
    again = evaluation.grow(evaluation.controller("wait"))
    assert np.array_equal(again.accuracy_N, outcomes["wait"].accuracy_N)
    assert evaluation.env.split is Split.HELD_OUT
    other = Evaluation(parse([f"checkpoint={folder}", "hosts=3", "episode=1"]))
    assert not np.array_equal(other.grow(other.controller("wait")).return_N, again.return_N)


def test_the_policy_is_the_one_that_was_trained(folder):
    evaluation = Evaluation(parse([f"checkpoint={folder}", "hosts=2"]))
    trained = evaluation.controller("policy").state_dict()["network"]
    saved = evaluation._agent_state["network"]
    assert all(trained[name].equal(saved[name]) for name in saved)


def test_the_search_knows_the_oracle_and_the_best_schedule(folder):
    evaluation = Evaluation(parse([f"checkpoint={folder}", "hosts=2", "controllers=[wait]", "schedules=true"]))
    outcomes = evaluation.run()
    assert [name.split(" (")[0] for name in outcomes] == ["wait", "best schedule", "oracle schedule by kind"]


def test_differences_are_paired_host_by_host():
    def outcome(values):
        values = np.array(values, dtype=np.float32)
        return Outcome(return_N=values, accuracy_N=2 * values, params_N=values, instance=["o"] * 3)

    rows = summarise({"wait": outcome([1, 20, 300]), "better": outcome([2, 21, 301])})
    difference = rows[1]["return_over_wait"]
    assert difference == pytest.approx({"mean": 1, "low": 1, "high": 1})
    assert rows[1]["accuracy_over_wait"]["mean"] == pytest.approx(2)
    assert rows[0]["return_over_wait"] == pytest.approx({"mean": 0, "low": 0, "high": 0})


def test_the_command_shows_a_table_and_keeps_the_numbers(folder, capsys):
    main([f"checkpoint={folder}", "hosts=2", "controllers=[policy]"])
    shown = capsys.readouterr().out
    assert "policy" in shown
    assert "wait" in shown
    kept = json.loads((folder / "evaluation_000001_episode0.json").read_text())
    assert [row["controller"] for row in kept["rows"]] == ["policy", "wait"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "checkpoint is not set"),
        (["checkpoint=x", "host=3"], "there is no key host: .*did you mean hosts"),
        (["checkpoint=x", "hosts"], "hosts is not of the form key=value"),
        (["checkpoint=x", "hosts=many"], "hosts|many"),
        (["checkpoint=x", "hosts=1"], "hosts must be at least 2, got 1"),
        (["checkpoint=x", "episode=-1"], "episode must be at least 0, got -1"),
        (["checkpoint=x", "controllers=[polcy]"], "controllers=polcy is not known: .*did you mean policy"),
    ],
)
def test_words_that_do_not_fit_are_one_sentence(words, said):
    with pytest.raises(ConfigError, match=said) as caught:
        parse(words)
    assert "\n" not in str(caught.value)


def test_a_missing_checkpoint_ends_with_one_line_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([f"checkpoint={tmp_path / 'nowhere'}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigError):
        find_checkpoint(str(tmp_path), "checkpoint")


def test_help_names_every_key():
    assert all(f"{key}=" in help_text() for key in ("checkpoint", "hosts", "episode", "controllers", "schedules"))
