"""The table of metrics: complete, unique and strict."""

import math

import pytest
import torch

from esper.agent.ppo.diagnostics import HEADS, PARTS, QUARTERS
from esper.env.actions import Op
from esper.lifecycle.stages import Stage
from esper.telemetry.tags import (
    METRICS,
    STAGES,
    WORDS,
    UnknownTagError,
    groups,
    measured,
    metric,
    phase_shares,
    tags_of,
)

TAGS = [row.tag for row in METRICS]


def test_tags_are_unique_and_rows_are_filled() -> None:
    every = [tag for row in METRICS for tag in tags_of(row)]
    assert len(set(every)) == len(every)
    for row in METRICS:
        assert row.tag.count("/") == 1
        assert row.unit
        assert row.meaning.endswith(".")


def test_every_stage_and_operation_has_a_tag() -> None:
    assert list(STAGES) == [stage.name.lower() for stage in Stage]
    assert [tag for tag in TAGS if tag.startswith("action/")] == [f"action/{op.name.lower()}" for op in Op]


@pytest.mark.parametrize(
    ("tag", "hint"),
    [
        ("host/acuracy", r"did you mean host/accuracy\?"),
        ("agent/Loss", "names after agent/ have lower-case letters, digits and _"),
    ],
)
def test_an_unknown_tag_names_the_closest_or_the_rule(tag: str, hint: str) -> None:
    with pytest.raises(UnknownTagError, match=f"no metric {tag} .* {hint}"):
        metric(tag)


@pytest.mark.parametrize("tag", ["nonsense", "reward/", "reward/Rent", "reward/a/b", "reward/*", "rewards/rent"])
def test_a_tag_without_a_row_is_unknown(tag: str) -> None:
    with pytest.raises(UnknownTagError):
        metric(tag)


def test_an_unknown_group_names_the_groups() -> None:
    with pytest.raises(UnknownTagError, match=r"known groups: .*host, policy, "):
        metric("zzz/qqq")
    assert {"host", "policy"} <= {*groups()}


def test_reward_terms_share_a_row() -> None:
    assert metric("reward/rent").tag == "reward/*"


@pytest.mark.parametrize("word", WORDS)
def test_placeholders_in_tags_stand_for_their_names_only(word: str) -> None:
    rows = [row for row in METRICS if f"<{word}>" in row.tag]
    assert rows
    for row in rows:
        assert row.detail, "one for each name is a detail"
        for name in WORDS[word]:
            assert metric(row.tag.replace(f"<{word}>", name)) is row
        for wrong in (row.tag, row.tag.replace(f"<{word}>", "nonsense")):
            with pytest.raises(UnknownTagError):
                metric(wrong)


def test_the_placeholders_are_those_of_the_policy() -> None:
    assert {"head": tuple(HEADS.values()), "part": tuple(PARTS), "quarter": QUARTERS} == WORDS


def test_unmeasured_is_left_out_and_zero_and_infinity_stay() -> None:
    values = measured(
        {
            "host/loss": torch.tensor(math.inf),
            "host/accuracy": 0,
            "host/accuracy_gain": None,
            "policy/kl": math.nan,
            "policy/entropy": torch.tensor(math.nan),
        }
    )
    assert values == {"host/loss": math.inf, "host/accuracy": 0.0}
    assert type(values["host/accuracy"]) is float


def test_an_unmeasured_unknown_tag_is_unknown() -> None:
    with pytest.raises(UnknownTagError):
        measured({"host/acuracy": None})


def test_shares_of_the_phases_add_up_without_the_smallest() -> None:
    seconds = {"time/train_seconds": 60.0, "time/validate_seconds": 39.7, "time/save_seconds": 0.3, "host/loss": 9.0}
    assert phase_shares(seconds) == "training 60 %, validation 40 %"
    assert phase_shares({}) == ""
