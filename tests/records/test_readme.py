"""Numbers in the README, recomputed from the committed records."""

import re
from functools import cache

import pandas as pd
import pytest

from experiments.gap import closed
from tests.records.tables import LOG, README, RESULTS, ROOT, assert_interval, page_of, percent, values

ARMS = {
    "never growing (`wait`)": "wait",
    "random legal actions (`random`)": "random",
    "the best of three hand-written controllers (`greedy_potential`)": "greedy_potential",
    "the best of 50 schedules, searched with as many host trainings as PPO had (`best_of_random`)": "best_of_random",
    "the same seed in every host, chosen for return (`schedule`)": "schedule",
    "the same seed in every host, chosen for accuracy": "fixed_seed",
    "a bandit that decides once, on the first observation, with a quarter of the training hosts (`bandit`)": "bandit",
    "PPO's final networks, trained from scratch with the seeds in place (`static`)": "static",
    "an oracle that knows the lesions of each host (`oracle`)": "oracle",
}
"""Arm of each row of the README's table."""
ROWS = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d.]+) \| ([^|]+) \| ([^|]+) \|$", README, flags=re.MULTILINE)


@cache
def fixed_seed(outcome: str) -> pd.Series:
    """Return an outcome of the fixed seed that each block chose by accuracy on its training hosts, by block."""
    table = pd.read_csv(ROOT / "experiments" / "2026-11-23_fixed_seed" / "schedules.csv")
    tried = table[(table["split"] == "training")]
    chosen = tried.loc[tried.groupby("block")["validation"].idxmax(), ["block", "schedule"]]
    held_out = table[table["split"] == "held_out"].merge(chosen, on=["block", "schedule"])
    return held_out.set_index("block")[outcome]


@cache
def policy_record(outcome: str) -> pd.DataFrame:
    """Return an outcome of the record of the policy, with the fixed seed and the bandit as further arms."""
    bandit = pd.read_csv(ROOT / "experiments" / "2026-11-24_bandit" / "bandit.csv").set_index("block")[outcome]
    return values("2026-11-22_policy", outcome).assign(fixed_seed=fixed_seed(outcome), bandit=bandit)


def test_the_table_has_all_rows() -> None:
    assert [name for name, *_ in ROWS] == list(ARMS)


@pytest.mark.parametrize(("name", "parameters", "own", "return_", "accuracy"), ROWS)
def test_a_row_of_the_results(name: str, parameters: str, own: str, return_: str, accuracy: str) -> None:
    assert own == f"{policy_record('accuracy')[ARMS[name]].mean():.1f}"
    assert int(parameters) == round(policy_record("parameters")[ARMS[name]].mean())
    for outcome, shown in (("return", return_), ("accuracy", accuracy)):
        table = policy_record(outcome)
        assert_interval(shown, table[ARMS[name]] - table["ppo"])


def test_the_best_controller_by_hand_is_named() -> None:
    means = values("2026-11-22_policy", "return")[["heuristic", "periodic", "greedy_potential"]].mean()
    assert means.idxmax() == ARMS["the best of three hand-written controllers (`greedy_potential`)"]


def test_sentences_of_the_results() -> None:
    (own,) = re.findall(r"its seeds add (\d+) parameters", README)
    (share,) = re.findall(r"closes (\d+) % of the gap between never growing and the oracle", README)
    means = policy_record("accuracy").mean()
    told = f"mean test accuracy is {means['wait']:.1f} % without growth and {means['ppo']:.1f} % with PPO"
    assert told in " ".join(README.split())
    assert f"One large seed in every host reaches {means['fixed_seed']:.1f} %" in README
    assert int(own) == round(policy_record("parameters")["ppo"].mean())
    assert f"(`ppo`), the default** | {own} | {means['ppo']:.1f} | | |\n" in README
    told = {arm: percent(closed(policy_record("return"), arm, ["wait"], "oracle")) for arm in ("ppo", "bandit")}
    assert f"{share} % of the gap between never growing and the oracle ({told['ppo'][1]} to {told['ppo'][2]})" in README
    assert int(share) == told["ppo"][0]
    assert "the bandit {} % ({} to {})".format(*told["bandit"]) in README


def test_sentence_on_rewards() -> None:
    text = RESULTS.read_text()
    (more, less) = re.findall(r"(?<![\d.])(\d\.\d)\s+pp\s+(?:more|less)", text)
    ends = re.findall(r"\((\d\.\d)\s+to (\d\.\d)", text[text.index("The reward sets the size") :])
    assert f"policies reach {more} pp more test accuracy than with the default `shaped` ({' to '.join(ends[0])})" in " ".join(
        README.split()
    )
    table = values("2026-11-22_rewards", "accuracy")
    for mean, (low, high), better, worse in (
        (more, ends[0], "simplified", "shaped"),
        (less, ends[1], "shaped", "sparse"),
    ):
        assert_interval(f"{mean} ({low} to {high})", table[better] - table[worse])
    parameters = values("2026-11-22_rewards", "parameters").mean()
    assert round(parameters["simplified"] / parameters["shaped"]) == 4


def test_the_record_of_weak_runs_tells_its_numbers() -> None:
    record = "2026-11-25_weak_runs"
    table, text = values(record, "return"), page_of(ROOT / "experiments" / record / "README.md")
    outcomes = {"return": 2, "accuracy": 1, "parameters": 0}
    least = {arm: (table[arm] - table["schedule"]).min() for arm in ("ppo", "exploring")}
    names = {arm: f"`{arm}`" for arm in table} | {"ppo": "`ppo`, the default"}
    for arm, name in names.items():
        means = " | ".join(f"{values(record, outcome)[arm].mean():.{digits}f}" for outcome, digits in outcomes.items())
        weak = f"{(table[arm] <= table['schedule']).sum()} of {len(table)} | {least[arm]:.2f} |" if arm in least else "| |"
        assert f"| {name} | {means} | {weak}\n" in text
    differences = pd.read_csv(ROOT / "experiments" / record / "differences.csv").query("outcome == 'return'").set_index("second")
    (undecided, lead, behind) = (differences.loc[arm, ["mean", "low", "high"]] for arm in ("exploring", "schedule", "oracle"))
    told = "`ppo` minus `exploring` is {:.1f} points of return ({:.1f} to {:.1f})".format(*undecided)
    assert f"{told}: {differences.loc['exploring', 'verdict']}." in text
    assert f"{told}, so the default stays." in page_of(LOG)
    assert "returns {:.1f} points more than `schedule` ({:.1f} to {:.1f})".format(*lead) in text
    assert "and {:.1f} less than the oracle ({:.1f} to {:.1f})".format(*-behind[["mean", "high", "low"]]) in text
    assert f"the smallest lead is {least['ppo']:.1f} points" in page_of(RESULTS)
    earlier = values("2026-11-22_policy", "return")
    lead = earlier["ppo"] - earlier["schedule"]
    assert (lead < 0.5).sum() == 3
    assert (lead <= 0).sum() == 1
