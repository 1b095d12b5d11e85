"""What a tuning looks for, as it is typed."""

import pytest

from esper.cli.command import spelled_out
from esper.cli.overrides import check_sweep
from esper.config import ConfigError
from esper.lab.search_space import BASELINE, SearchParam, SearchSpace, search_space

ASKED = {"trials": 2, "blocks": 2, "root": 0, "outcome": "accuracy", "score_hosts": 4, "at_once": 1}
TUNE = "agent.learning_rate: 1e-4..1e-2 log, agent.hidden: 32|64, agent.epochs: 1..3, slots.where: [r0c0,r0c1]|[r0c0]"


def planned(tune: object = TUNE, **more: object) -> SearchSpace:
    return search_space(tune, **{**ASKED, **more})  # pyright: ignore[reportArgumentType]


def test_ranges_and_choices() -> None:
    rate, hidden, epochs, where = planned().params
    assert rate == SearchParam(key="agent.learning_rate", low=1e-4, high=1e-2, log=True)
    assert hidden == SearchParam(key="agent.hidden", choices=("32", "64"))
    assert epochs == SearchParam(key="agent.epochs", low=1, high=3, whole=True)
    assert where.choices == ("[r0c0,r0c1]", "[r0c0]")
    by_key = {"agent.learning_rate": "1e-4..1e-2 log", "agent.hidden": "32|64", "agent.epochs": "1..3"}
    assert planned(by_key).params == planned().params[:3]


def test_values_are_typed_in_four_digits_and_stay_within_the_range() -> None:
    param = SearchParam(key="a", low=0.12344, high=0.76546)
    assert [param.shown(value) for value in (0.2345678, 0.12344, 0.76546)] == ["0.2346", "0.12344", "0.76546"]
    assert param.read("0.2346") == 0.2346
    whole = SearchParam(key="a", low=1, high=9, whole=True)
    assert (whole.shown(3), whole.read("3")) == ("3", 3)
    assert SearchParam(key="a", choices=("1", "x")).read("1") == "1"


def test_every_arm_meets_every_seed() -> None:
    cells = planned(common=["hosts=4"]).cells({BASELINE: [], "trial-000": ["agent.hidden=32"]})
    assert [(cell.arm, cell.block) for cell in cells] == [(BASELINE, 0), ("trial-000", 0), (BASELINE, 1), ("trial-000", 1)]
    seeds = planned().seeds
    assert cells[3].overrides == ("hosts=4", "agent.hidden=32", f"seed={seeds[1]}")
    assert not {*planned(root=1).seeds} & {*seeds}


@pytest.mark.parametrize(
    ("tune", "more", "sentence"),
    [
        (None, {}, "there is nothing to tune: write tune="),
        ("", {}, "there is nothing to tune"),
        ("agent.hidden", {}, "cannot read 'agent.hidden' in tune: the colon is missing"),
        ("agent.hidden: 32", {}, "cannot read agent.hidden: '32' in tune"),
        ("agent.gamma: 0.5..", {}, "cannot read agent.gamma"),
        ("agent.gamma: 0.9..0.5", {}, "is empty: write the smaller"),
        ("agent.gamma: 0..1 log", {}, "has no logarithm at 0"),
        ("agent.hidden: 32|32", {}, "must differ"),
        ("agent.hidden: 32|", {}, "must not be empty"),
        ("agent.hidden: 32|64, agent.hidden: 1..3", {}, "names agent.hidden twice"),
        ("seed: 1..3", {}, "seed cannot be set or tuned here"),
        (TUNE, {"common": ["policy_seed=3"]}, "set root instead"),
        (TUNE, {"common": ["agent.hidden=3"]}, "agent.hidden=3 sets a tuned key"),
        (TUNE, {"trials": 0}, "trials must be 1 or more, got 0"),
        (TUNE, {"blocks": 0}, "blocks must be 1 or more, got 0"),
        (TUNE, {"at_once": 0}, "at_once must be 1 or more, got 0"),
        (TUNE, {"score_hosts": 1}, "score_hosts must be 2 or more, got 1"),
    ],
)
def test_what_is_no_tuning_is_refused(tune: str | None, more: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        planned(tune, **more)


def test_every_end_is_checked_before_anything_runs() -> None:
    words = spelled_out(["sweep=tune", "tune=agent.hidden: 32|64, agent.learning_rate: 1e-4..1e-2 log", "blocks=2", "hosts=4"])
    jobs = check_sweep(words)
    agents = [(job.agent.hidden, job.agent.learning_rate) for job in jobs]  # pyright: ignore[reportAttributeAccessIssue]
    plain = agents[0]
    assert agents[1:] == [(32, plain[1]), (64, plain[1]), (plain[0], 1e-4), (plain[0], 1e-2)]
    assert {job.hosts for job in jobs} == {4}
    for tune, sentence in (("agent.hiden: 32|64", "did you mean hidden"), ("agent.gamma: 0.5..1.5", "agent.gamma")):
        with pytest.raises(ConfigError, match=sentence):
            check_sweep(spelled_out(["sweep=tune", f"tune={tune}"]))
