"""Numbers in the README: recomputed from the records that are committed."""

import re
import runpy
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from esper.stats.sign_flip import sign_flip
from experiments.gap import RIVALS, closed

ROOT = Path(__file__).parent.parent
WORLDS = ROOT / "docs" / "worlds.md"
FORESIGHT = ROOT / "experiments" / "2026-11-26_foresight" / "foresight.py"
README = (ROOT / "README.md").read_text()
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
ROUNDING = 0.051
"""Largest error of a number with one decimal."""
RESAMPLING = 0.06
"""Error of the ends of an interval from 9,999 of 32,768 sign patterns [points]."""


def page_of(path: Path) -> str:
    """Return the text of a page with every paragraph and item on one line, and rows of tables on lines of their own."""
    return re.sub(r"(?<=[^|\n])\n(?:  )?(?=[^\s|#*>-])", " ", path.read_text())


@cache  # each file is read once: no test changes a table
def values(record: str, outcome: str) -> pd.DataFrame:
    """Return an outcome of a record as a table of blocks by arms."""
    return pd.read_csv(ROOT / "experiments" / record / "comparison.csv").pivot(index="block", columns="arm", values=outcome)


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


def percent(share: tuple[float, float, float]) -> list[int]:
    """Return a share and its interval [%]."""
    return [round(100 * part) for part in share]


def shown(differences: pd.Series, unit: str = "") -> str:
    """Return the mean of paired differences, in a unit, and its interval as far as the closing bracket."""
    found = sign_flip(differences.dropna().to_numpy()).interval
    return f"{found.mean:.1f}{unit} ({found.low:.1f} to {found.high:.1f}"


def assert_interval(shown: str, differences: pd.Series) -> None:
    """Assert that a text such as `11.4 (10.1 to 12.7)` holds the mean of paired differences and its interval."""
    mean, low, high = (float(number) for number in re.findall(r"-?\d+\.\d+", shown))
    interval = sign_flip(differences.to_numpy()).interval
    assert mean == pytest.approx(interval.mean, abs=ROUNDING)
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=ROUNDING + RESAMPLING)


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
    (share,) = re.findall(r"goes (\d+) % of the way from never growing to the oracle", README)
    means = policy_record("accuracy").mean()
    told = f"mean test accuracy is {means['wait']:.1f} % without growth and {means['ppo']:.1f} % with PPO"
    assert told in " ".join(README.split())
    assert f"One large seed in every host reaches {means['fixed_seed']:.1f} %" in README
    assert int(own) == round(policy_record("parameters")["ppo"].mean())
    assert f"(`ppo`), the default** | {own} | {means['ppo']:.1f} | | |\n" in README
    told = {arm: percent(closed(policy_record("return"), arm, ["wait"], "oracle")) for arm in ("ppo", "bandit")}
    assert f"{share} % of the way from never growing to the oracle ({told['ppo'][1]} to {told['ppo'][2]})" in README
    assert int(share) == told["ppo"][0]
    assert "the bandit {} % ({} to {})".format(*told["bandit"]) in README


def test_sentence_on_rewards() -> None:
    (more, less) = re.findall(r"(?<![\d.])(\d\.\d)\s+pp\s+(?:more|less)", README)
    ends = re.findall(r"\((\d\.\d)\s+to (\d\.\d)", README[README.index("The reward sets the size") :])
    table = values("2026-11-22_rewards", "accuracy")
    for mean, (low, high), better, worse in (
        (more, ends[0], "simplified", "shaped"),
        (less, ends[1], "shaped", "sparse"),
    ):
        assert_interval(f"{mean} ({low} to {high})", table[better] - table[worse])
    parameters = values("2026-11-22_rewards", "parameters").mean()
    assert round(parameters["simplified"] / parameters["shaped"]) == 4


RIVALS_TOLD = [
    ("2026-11-23_drift_study", "README.md", ("fixed", "forest")),
    ("2026-11-23_drift_study", "docs/worlds.md", ("forest",)),
    ("2026-11-23_drift_study", "experiments/LOG.md", ("fixed", "forest", "react_bandit", "rollout")),
    (
        "2026-11-23_drift_study",
        "README of the record",
        ("fixed", "forest", "react_bandit", "rollout", "react", "bandit", "mlp", "oracle"),
    ),
    ("2026-11-23_mnist_study", "README.md", ("forest",)),
    ("2026-11-23_mnist_study", "docs/worlds.md", ("forest",)),
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
    page, told = page_of(ROOT / "docs" / "worlds.md"), {study for study, *_ in RIVALS_TOLD}
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
    log = page_of(ROOT / "experiments" / "LOG.md")
    lead, page = rival["late"] - rival["constant"], page_of(WORLDS)
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
    for page in (README, (ROOT / "experiments" / "LOG.md").read_text(), WORLDS.read_text()):
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
    page, preset = page_of(ROOT / "docs" / "worlds.md"), page_of(ROOT / "esper" / "task" / "digits_drift.py")
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
    page = page_of(WORLDS)
    assert f"leads by {lead:.1f} points" in page
    assert shown(table["wait"] - table["bandit"], " points less than never growing") in page


def test_the_record_of_foresight_tells_its_numbers() -> None:
    folder, studies = ROOT / "experiments" / "2026-11-26_foresight", {"digits_trials": "2026-11-24_trials_gate"}
    studies |= {"digits_drift": "2026-11-23_drift_study", "mnist5k_drift": "2026-11-23_mnist_study"}
    script, text, page = runpy.run_path(str(folder / "foresight.py")), *map(Path.read_text, (folder / "README.md", WORLDS))
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


@pytest.mark.parametrize("world", ["digits", "mnist5k_drift", "digits_trials"])
def test_the_study_of_one_training_tells_its_numbers(world: str) -> None:
    """Every row of the record, and the break-even."""
    folder = ROOT / "experiments" / "2026-11-24_one_training"
    study = runpy.run_path(str(folder / "break_even.py"))
    table, text = study["means"](world), page_of(folder / "README.md")
    text = text.split(f"**Result on `{world}`**")[1].split("**Result on `")[0]
    differences = one_training(world)
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \| (.+?) \| (\w+) \| (\S+) \| (.+?) \|$", text, flags=re.MULTILINE)
    assert {name for name, *_ in rows} == set(table.index) - {"ppo"}
    for rival, flops, value, difference, verdict, accuracy, apart in rows:
        assert float(flops) == pytest.approx(table.loc[rival, "training_flops"], rel=0.05)
        assert (value, accuracy) == (f"{table.loc[rival, 'return']:.1f}", f"{table.loc[rival, 'accuracy']:.1f}")
        assert (difference, apart) == (differences["return", rival], differences["accuracy", rival])
        assert verdict == differences["verdict", rival]
    paid = {k: sorted(study["break_even"](world, name) for name in table.index if name.endswith(f"_{k}")) for k in (4, 8)}
    for k, hosts in paid.items():
        assert f"{hosts[0]:.0f} to {hosts[-1]:.0f}" in text, k
    assert f"{study['training'](world):.1e}".replace("+", "") in text


def one_training(world: str) -> dict[tuple[str, str], str]:
    """Return the differences of PPO to each rival, and the verdicts on the return."""
    path = ROOT / "experiments" / "2026-11-24_one_training" / world / "differences.csv"
    shown: dict[tuple[str, str], str] = {}
    for row in pd.read_csv(path).to_dict("records"):
        shown[row["outcome"], row["second"]] = f"{row['mean']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
        if row["outcome"] == "return":
            shown["verdict", row["second"]] = row["verdict"]
    return shown


def test_the_readme_tells_the_study_of_one_training() -> None:
    digits = one_training("digits")
    assert digits["return", "search_random_4"] == "3.3 (2.4 to 4.2)"
    text = " ".join(README.split())
    assert "3.3 points more than random search with four trainings per host (2.4 to 4.2)" in text
    assert digits["return", "search_random_8"] == "-0.3 (-1.0 to 0.3)"
    assert "the result is undecided (-0.3, -1.0 to 0.3)" in text
    assert one_training("mnist5k_drift")["return", "search_random_8"] == "1.7 (1.0 to 2.4)"
    assert "1.7 points more than random search with eight trainings (1.0 to 2.4)" in text
    assert one_training("digits_trials")["return", "search_tpe_8"] == "5.9 (4.8 to 7.1)"
    assert "in `digits_trials`, 5.9 more than TPE with eight (4.8 to 7.1;" in text


def test_the_study_of_transfer_to_other_data_tells_its_numbers():
    study = runpy.run_path(str(ROOT / "experiments" / "2026-11-25_drift_transfer" / "transfers.py"))
    folder = ROOT / "experiments" / "2026-11-25_fashion_transfer"
    table, text = study["returns"](folder / "fashion.csv"), page_of(folder / "README.md")
    log, means = page_of(ROOT / "experiments" / "LOG.md"), table.mean()
    assert len(table) == 15
    assert study["best_rival"](table) == "react_bandit"
    names = {"forest": "forest, frozen", "ppo": "PPO, frozen", "wait": "never growing"}
    for arm in means.index:
        assert re.search(rf"^\| {names.get(arm, f'`{arm}`')} \|.*\| {means[arm]:.1f} \|", text, flags=re.MULTILINE), arm
    ppo, forest = (study["difference"](table, arm, "react_bandit") for arm in ("ppo", "forest"))
    assert ppo.low < -study["MARGIN"] < forest.low
    for one, verdict in ((ppo, "not shown"), (forest, "transfers")):
        ends = f"{one.low:.1f} to {one.high:.1f}"
        assert f"{abs(one.mean):.1f} ({ends}): {verdict}" in text
        assert ends in log
    assert f"({ppo.low:.1f}) misses the limit of -{study['MARGIN']:.0f} that was set beforehand" in page_of(WORLDS)
    behind = study["difference"](table, "forest", "ppo")
    assert f"PPO {behind.mean:.1f} less than the forest ({behind.low:.1f} to {behind.high:.1f}" in text.replace("\n", " ")


def test_the_study_of_transfer_tells_its_numbers():
    """Every row of the record, and the sentences of docs and log."""
    folder = ROOT / "experiments" / "2026-11-25_drift_transfer"
    study, text = runpy.run_path(str(folder / "transfers.py")), page_of(folder / "README.md")
    log, worlds = page_of(ROOT / "experiments" / "LOG.md"), page_of(ROOT / "docs" / "worlds.md")
    for world in study["WORLDS"]:
        table = study["returns"](folder / f"{world}.csv")
        rival, means = study["best_rival"](table), table.mean()
        found = [study["difference"](table, *pair) for pair in (("ppo", rival), ("forest", rival), ("ppo", "forest"))]
        differences = [f"{one.mean:.1f} ({one.low:.1f} to {one.high:.1f})" for one in found]
        columns = ("react_bandit", "fixed", "ppo", "forest", "wait")
        assert f"| {' | '.join([world, *(f'{means[arm]:.1f}' for arm in columns), *differences])} |" in text
        assert len(table) == 12
        kept = (means["ppo"] - means["wait"]) / (means[rival] - means["wait"])
        behind = f"{-found[0].mean:.1f}"
        if world != "data":
            assert f"{abs(found[2].mean):.1f}" in worlds
        if world in ("kinds", "timetable"):
            assert found[0].high < -study["MARGIN"]
            assert f"{100 * kept:.0f} " in text
            assert behind in worlds
            assert behind in log
        else:
            assert found[0].low > -study["MARGIN"]
            assert f"({found[0].mean:.1f}, {found[0].low:.1f} to {found[0].high:.1f})" in log.replace(" points, ", ", ")
