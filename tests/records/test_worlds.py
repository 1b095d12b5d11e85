"""Numbers of studies of worlds with events, on every page that tells them, recomputed from the committed records."""

import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from esper.cli.overrides import check
from esper.seeding import stream
from esper.stats.sign_flip import sign_flip
from experiments.gap import RIVALS, closed
from tests.records.tables import DRIFT, LOG, ROOT, page_of, percent, shown, values

FORESIGHT = ROOT / "experiments" / "2026-11-26_foresight" / "foresight.py"
RIVALS_TOLD = [
    ("2026-11-23_drift_study", "README.md", ("fixed", "forest")),
    ("2026-11-23_drift_study", "docs/drift.md", ("forest",)),
    ("2026-11-23_drift_study", "experiments/LOG.md", ("fixed", "forest", "react_bandit", "rollout")),
    (
        "2026-11-23_drift_study",
        "README of the record",
        ("fixed", "forest", "react_bandit", "rollout", "react", "bandit", "mlp", "oracle"),
    ),
    ("2026-11-23_mnist_study", "docs/drift.md", ("forest",)),
    ("2026-11-23_mnist_study", "experiments/LOG.md", ("fixed", "forest", "react_bandit", "react")),
    ("2026-11-23_mnist_study", "README of the record", ("fixed", "forest", "react_bandit", "react", "bandit", "oracle")),
]
"""Study, page, and the rivals to which the page tells PPO's difference in return."""


@pytest.mark.parametrize(("study", "page", "rivals"), RIVALS_TOLD)
def test_the_drift_studies_are_told_as_they_were(study: str, page: str, rivals: tuple[str, ...]) -> None:
    folder = ROOT / "experiments" / study
    own = page == "README of the record"
    text = page_of(folder / "README.md" if own else ROOT / page)
    differences = pd.read_csv(folder / "differences.csv").query("outcome == 'return' and first == 'ppo'").set_index("second")
    for rival in rivals:
        mean, low, high = differences.loc[rival, ["mean", "low", "high"]]
        if mean < 0 and not own:
            mean, low, high = -mean, -high, -low
        digits = 2 if own else 1
        assert f"{mean:.{digits}f}" in text, rival
        assert f"({low:.{digits}f} to {high:.{digits}f}" in text, rival
    share, low, high = closed(values(study, "return"), "ppo", RIVALS, "oracle")
    assert re.search(rf"{100 * share:.0f} %", text)
    assert page == "README.md" or f"({100 * low:.0f} to {100 * high:.0f})" in text


def test_the_table_of_policies_in_worlds_is_that_of_the_studies() -> None:
    page, told = page_of(DRIFT), {study for study, *_ in RIVALS_TOLD}
    for study in told:
        table = values(study, "return")
        share, low, high = closed(table, "ppo", RIVALS, "oracle")
        means = [f"{table[arm].mean():.1f}" for arm in ("bandit", "fixed", "react", "react_bandit", "ppo", "forest", "oracle")]
        row = " | ".join([*means, f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f}) |"])
        assert f"{study}/README.md) | {row}\n" in page
        assert "{} % ({} to {})".format(*percent(closed(table, "ppo", ["react_bandit"], "oracle"))) in page
    accuracy = values("2026-11-23_drift_study", "accuracy")
    assert shown(accuracy["mlp"] - accuracy["ppo"], " pp more test accuracy") in page


def test_the_third_study_tells_its_numbers() -> None:
    """Also that of a rival which was found afterwards, in all pages."""
    folder, interval = ROOT / "experiments" / "2026-11-26_trials_study", runpy.run_path(str(FORESIGHT))["interval"]
    text, table = page_of(folder / "README.md"), values(folder.name, "return")
    differences = pd.read_csv(folder / "differences.csv").query("outcome == 'return' and first == 'ppo'").set_index("second")
    for rival, (mean, low, high) in differences[["mean", "low", "high"]].iterrows():
        assert f"| {table[rival].mean():.2f} |" in text
        assert f"| {mean:.2f} ({low:.2f} to {high:.2f}) |" in text
    rival = table.assign(constant=pd.read_csv(folder / "constant.csv").set_index("block")["return"])
    log = page_of(LOG)
    lead, page = rival["late"] - rival["constant"], page_of(DRIFT)
    assert f"leads the schedule that PPO found ([below](#what-a-policy-is-worth-there)) by only {shown(lead, ' points')};" in page
    assert f"the best schedule known by only {shown(lead)})" in log
    assert "PPO closes {} % of the gap ({} to {})".format(*percent(closed(rival, "ppo", ["constant"], "oracle"))) in page
    for policy, oracle in (("ppo", "oracle"), ("ppo", "late"), ("react_bandit", "oracle"), ("react_bandit", "late")):
        share, low, high = (round(100 * part) for part in closed(table, policy, RIVALS, oracle))
        assert re.search(rf"{share} % (of it )?\({low} to {high}\)", text), (policy, oracle)
    constant = pd.read_csv(folder / "constant.csv").set_index("block")["return"]
    assert f"returns {constant.mean():.2f} points on the same hosts" in text
    for arm in ("ppo", "react_bandit", "oracle"):
        assert interval((table[arm] - constant).to_numpy()) in text
    mean, low, high = re.findall(r"-?\d+\.\d+", interval((table["ppo"] - constant).to_numpy()))
    for page in (LOG.read_text(), DRIFT.read_text()):
        told = " ".join(page.split())
        assert f"{mean} points less" in told
        assert f"{low} to {high}" in told


def test_the_record_of_one_schedule_tells_its_numbers() -> None:
    folder = ROOT / "experiments" / "2026-11-26_one_schedule"
    study, text = runpy.run_path(str(folder / "run.py")), page_of(folder / "README.md")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\S+) \| (\S+) \| (.+?) \| (\w+(?: \w+)?) \|$", text, flags=re.MULTILINE)
    told = {f"{world}_{arm}" for world, arm, *_ in rows}
    assert told == {path.stem for path in folder.glob("*.csv")}
    for world, arm, hosts, value, difference, verdict in rows:
        own, gap = study["own_runs"](world, arm), study["differences"](world, arm)["ppo"]
        assert len(own) == study["PLAN"]["worlds"][world]["blocks"]
        updates = int(re.findall(r"updates=(\d+)", study["PLAN"]["worlds"][world]["arms"][arm])[0])
        assert (hosts, value) == (f"{32 * updates:,}", f"{own['return'].mean():.1f}")
        assert difference == f"{gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})"
        within = -study["PLAN"]["margin"] < gap.low and gap.high < study["PLAN"]["margin"]
        assert verdict == ("as good" if within else "better" if gap.low > 0 else "worse" if gap.high < 0 else "undecided")
    found = dict[str, tuple[str, str]]()
    for world, source in (("digits_drift", "2026-11-23_drift_study"), ("mnist5k_drift", "2026-11-23_mnist_study")):
        own = study["own_runs"](world, "schedule_bandit")["return"]
        table = values(source, "return").assign(schedule=own)
        share, low, high = percent(closed(table, "ppo", ["schedule"], "oracle"))
        mean, _, ends = shown(table["ppo"] - table["schedule"]).partition(" ")
        found[world] = f"{mean} points more {ends})", f"{share} % ({low} to {high})"
        assert f"PPO closes {share} % ({low} to {high})" in text
        assert f"PPO is {mean} better" in page_of(LOG)
        assert f"closes {share} %" in page_of(LOG)
    (lead, share), (second, second_share) = found.values()
    share, _, interval = share.partition(" (")
    told = f"PPO returns {lead} and closes {share} of the gap from there ({interval[:-1]}); in `mnist5k_drift`, {second} and "
    assert f"{told}{second_share[:-1]};" in page_of(DRIFT)


def test_the_second_drift_study_tells_when_its_controllers_plant() -> None:
    folder = ROOT / "experiments" / "2026-11-23_mnist_study"
    moments = pd.read_csv(folder / "moments.csv")
    stays = moments.query("during == 'change that stays'").set_index(["arm", "epochs_after_its_start"])["seeds"] / 960
    nothing = moments.query("during == 'no change'").set_index("arm")["seeds"] / 960
    exact, late = f"{stays['ppo', 2]:.0%}", f"{stays['ppo'].loc[3:5].sum():.0%}"
    assert abs(stays["ppo"].sum() - stays["forest"].sum()) < 0.02
    text = page_of(folder / "README.md").replace(" %", "%")
    assert f"plants {stays['forest', 2]:.0%} of its seeds there" in text
    assert f"only {exact} in that epoch and {late} three to five epochs" in text
    assert f"plants {nothing['ppo']:.0%} where nothing" in text


def test_the_gates_of_the_page_are_those_of_the_records():
    page, preset = page_of(DRIFT), page_of(ROOT / "esper" / "task" / "digits_drift.py")
    row = r"^\| \[`(\w+)`\]\(\.\./(experiments/[^/]+)/README.md\) \| (.* \| (?:passed|failed)) \|$"
    rows = re.findall(row, page, flags=re.MULTILINE)
    assert rows
    for world, folder, cells in rows:
        *means, lead, verdict = cells.split(" | ")
        runs = pd.read_csv(ROOT / folder / "comparison.csv")
        arms = ("fixed", "bandit", "react", "react_bandit", "oracle")
        assert [f"{runs[runs['arm'] == arm]['return'].mean():.1f}" for arm in arms] == means, world
        assert (runs.groupby("arm").size() >= 12).all()
        best = runs.groupby("arm")["return"].mean()[list(arms[:3])].idxmax()
        differences = pd.read_csv(ROOT / folder / "differences.csv").query("outcome == 'return'")
        (row,) = differences[(differences["first"] == "oracle") & (differences["second"] == best)].to_dict("records")
        assert lead == f"{row['mean']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
        assert verdict == ("passed" if row["mean"] >= 3 and row["low"] > 2 else "failed")
        if world == "digits_drift":
            assert all(f"{name} {mean}" in preset for name, mean in zip(("schedule", "bandit", "rule"), means, strict=False))
            assert f"the oracle leads by {lead}" in preset


def test_the_record_of_the_oracle_of_arrivals_tells_its_numbers() -> None:
    folder, interval = ROOT / "experiments" / "2026-11-26_arrivals_oracle", runpy.run_path(str(FORESIGHT))["interval"]
    again, text = values(folder.name, "return"), page_of(folder / "README.md")
    table = values("2026-11-25_arrivals_gate", "return").rename(columns={"oracle": "record"}).join(again)
    assert f"| mended oracle | {table['oracle'].mean():.2f} |" in text
    for arm in ("record", "react", "fixed", "react_bandit", "bandit", "wait"):
        told = f" | {interval((table['oracle'] - table[arm]).to_numpy())} |"
        assert re.search(rf"\| {table[arm].mean():.2f} \| [\d,]+{re.escape(told)}\n", text), arm
    lead = (table["oracle"] - table["react"]).mean()
    page = page_of(DRIFT)
    assert f"leads the rule by {lead:.1f} points" in page
    assert shown(table["wait"] - table["bandit"], " points less than never growing") in page


def test_the_page_tells_how_events_are_spread() -> None:
    events, timetables = check(["task=digits_drift"]).task.events, []
    for host in range(4000):
        timetables.append(events.draw(lambda purpose, host=host: stream(0, "page", host, purpose), range(10)))
    counts = np.bincount([len(timetable) for timetable in timetables], minlength=4) / len(timetables)
    np.testing.assert_allclose(counts, [0, 0.5, 0.3, 0.2], atol=0.03)
    earliest = np.mean([timetable[0].start == events.first == 2 for timetable in timetables])
    assert earliest == pytest.approx(0.5, abs=0.05)
    told = "half of the hosts have one event, three in ten have two and two in ten have three. In about half of the hosts"
    assert f"{told}, the first event starts in epoch 2, the earliest" in page_of(DRIFT)


def test_the_record_of_foresight_tells_its_numbers() -> None:
    folder, studies = ROOT / "experiments" / "2026-11-26_foresight", {"digits_trials": "2026-11-24_trials_gate"}
    studies |= {"digits_drift": "2026-11-23_drift_study", "mnist5k_drift": "2026-11-23_mnist_study"}
    script, text, page = runpy.run_path(str(folder / "foresight.py")), *map(Path.read_text, (folder / "README.md", DRIFT))
    shares = {"ppo": "PPO", "mlp": "PPO without memory", "forest": "`react_bandit` with forests"}
    for world, study in studies.items():
        table = script["merged"](str(ROOT / "experiments" / study / "comparison.csv"), str(folder / f"{world}.csv"))
        best = max(RIVALS, key=lambda arm: table[arm].mean())
        pairs = [("oracle", "late"), ("late", best), ("late", "react_bandit")]
        leads = [script["interval"]((table[one] - table[other]).to_numpy()) for one, other in pairs]
        means = [f"{table[arm].mean():.2f}" for arm in ("oracle", "late", best)]
        assert f"| `{world}` | {len(table)} | {' | '.join([*means, *leads])} |\n" in text
        assert min((table["late"] - table[arm]).mean() for arm in RIVALS) >= 3, "the gate"
        for arm, name in shares.items():
            if arm in table:
                told = [closed(table, arm, RIVALS, oracle) for oracle in ("oracle", "late")]
                cells = " | ".join(f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f})" for share, low, high in told)
                assert f"| {name} in `{world}` | {cells} |\n" in text
                assert arm != "ppo" or cells.partition(" | ")[2] in " ".join(page.split())
        assert f"{(table['oracle'] - table['late']).mean():.1f}" in page.partition("agent.delay=1")[2][:300]
        assert f"{(table['late'] - table[best]).mean():.1f}" in page.partition("agent.delay=1")[2][:300]


def test_the_record_of_foresight_in_the_deep_world_tells_its_numbers() -> None:
    record, gate = "2026-11-28_deep_foresight", values("2026-11-27_deep_gate", "return")
    text, table = page_of(ROOT / "experiments" / record / "README.md"), gate.join(values(record, "return"))
    for arm in ("oracle", "react", "fixed", "react_bandit", "wait"):
        found = sign_flip((table["late"] - table[arm]).to_numpy()).interval
        assert f"| {table[arm].mean():.2f} | {found.mean:.2f} ({found.low:.2f} to {found.high:.2f}) |\n" in text, arm
    assert f"| late oracle | {table['late'].mean():.2f} | |\n" in text
    best = max(RIVALS, key=lambda arm: table[arm].mean())
    lead, foresight = table["late"] - table[best], table["oracle"] - table["late"]
    assert lead.mean() < 3, "the gate"
    assert f"leads the best rule by {shown(lead, ' points of return')}), where" in text
    assert f"leads the best rule by {shown(lead, ' points')}), where" in page_of(LOG)
    assert f"leads the best rule by only {shown(lead)}; [record]" in page_of(DRIFT)
    assert f"the one epoch is worth {shown(foresight, ' of that')})" in text
    assert f"is worth {foresight.mean():.1f} points" in page_of(DRIFT)
