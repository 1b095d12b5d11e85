"""Tables, files and figures of a comparison with missing values."""

import csv
import io
import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from esper.growth.objective import CLASSIFICATION
from esper.lab import comparison as S
from esper.lab import scoring as J
from esper.lab.arms import AA_CONTROL
from esper.lab.costs import cost
from esper.lab.design import AnalysisPlan, Design
from esper.lab.outcomes import OUTCOMES, CompareConfig
from esper.lab.report import _interval, differences, show, summary, tables, write
from esper.lab.runs import Run
from esper.lab.tables import grown, latex

ARMS = ("a", "b", AA_CONTROL)
_found: list[S.Comparison] = []
"""The comparison, made once: the tests change copies."""
FILES = ["report.html", "comparison.json", "comparison.csv", "differences.csv", "differences.tex", "hosts.csv", "seeds.csv"]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> S.Comparison:
    """Two arms, an A/A control and a baseline in twelve blocks; accuracy_greedy is not measured, and b lacks block 3."""
    rng = np.random.default_rng(0)
    values = {
        (arm, block): dict(zip(OUTCOMES, rng.normal(50, 5, len(OUTCOMES)), strict=True)) for arm in ARMS for block in range(12)
    }

    def scored(run: Run, *_: Any, **__: Any) -> dict[str, float]:
        return values[run.arm, run.block] | {"accuracy_greedy": float("nan")}

    def baselines(run: Run, how: J.Scoring) -> Any:
        return {name: dict.fromkeys(OUTCOMES, float(run.block)) for name in how.baselines}

    runs = [
        Run(arm=arm, block=block, seed=block, folder=Path(f"{arm}/{block}"), update=int((arm, block) != ("b", 3)), updates=1)
        for arm in ARMS
        for block in range(12)
    ]
    monkeypatch.setattr(S, "find_runs", lambda *_: runs)
    monkeypatch.setattr(S, "objective_of", lambda *_: CLASSIFICATION)
    monkeypatch.setattr(S, "anomalies", lambda *_: [])
    hosts = pd.DataFrame({"arm": ["a", "b"], "controller": "policy", "block": 0, "host": 0, "accuracy": [50.0, 51.0]})
    hosts["kind"] = "x"
    kept = {"slot": "late", "blueprint": "conv", "planted": 2, "epochs": 5, "fate": "kept", "contribution_error": 0.5}
    seed = {"arm": "b", "block": 0, "kind": "x", "host": 0, "contribution": 3.0, **kept}
    lost = {**seed, "blueprint": "norm", "epochs": 1, "fate": "removed", "contribution": None}
    monkeypatch.setattr(S, "seed_table", lambda *_: pd.DataFrame([seed, lost]))
    monkeypatch.setattr(S, "host_table", lambda *_: hosts)
    costs = [{"arm": "a", "block": block, **cost(3e9, 1e9, 2e9 * block, seconds=7.0), "host": 1e9} for block in range(2)]
    monkeypatch.setattr(S, "cost_table", lambda *_: pd.DataFrame(costs))
    arms = {arm: [f"hosts={index}"] for index, arm in enumerate(ARMS)}
    plan = AnalysisPlan(baselines=["wait"], looks=[12], question="Is <b> better?")
    monkeypatch.setattr(S, "planned", lambda _: Design(arms=arms, blocks=12, root=0, common=[], plan=plan))
    monkeypatch.setattr(J, "score", scored)
    monkeypatch.setattr(J, "score_baselines", baselines)
    monkeypatch.setattr("esper.lab.figures.records_of", lambda _: [])
    if not _found:
        _found.append(S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True)))
    return deepcopy(_found[0])


def test_the_decisive_outcome_comes_first(found: S.Comparison) -> None:
    means, costs, seeds, *differences = tables(found)
    assert [row[:2] for row in means["rows"]] == [["a", "12"], ["b", "11"], ["wait", "12"], [AA_CONTROL, "12"]]
    assert costs["rows"] == [["a", "3", "1", "1", "0", "5", "1", "7"]]
    assert [row[:5] for row in seeds["rows"]] == [
        ["b", "blueprint", "conv", "1.00", "1.00"],
        ["b", "blueprint", "norm", "1.00", "0.00"],
        ["b", "slot", "late", "2.00", "1.00"],
    ]
    assert [row[7:] for row in seeds["rows"]] == [["0%", "5.0", "3.0", ""], ["100%", "1.0", "", ""], ["50%", "3.0", "3.0", ""]]
    names = [table["caption"].removeprefix("Differences in ").split(" [")[0].split(",")[0] for table in differences]
    others = [spec for name, spec in OUTCOMES.items() if name not in ("accuracy", "accuracy_greedy", "online")]
    assert [name.split(":")[0] for name in names] == ["accuracy", *(spec.label for spec in others)]
    assert "greedy return" in names
    for table in differences:
        assert [row[0] for row in table["rows"]] == ["a - b", "a - wait", "b - wait", "a - aa_control"]
        assert all(len(row) == len(table["head"]) for row in table["rows"])
    assert [row[1] for row in differences[0]["rows"]] == ["11 (1 with a missing run)", "12", "11 (1 with a missing run)", "12"]
    assert [row[-1] for row in differences[0]["rows"]] == ["withheld", "better", "better", "control"]
    for table in differences[1:]:
        assert "exploratory" in table["caption"]
        assert [row[-1] for row in table["rows"]] == 3 * ["exploratory"] + ["control"]


def test_a_comparison_without_verdicts_has_no_column_of_them(found: S.Comparison) -> None:
    for deviations, shown in ([], True), (["another number of hosts"], False):
        page = io.StringIO()
        show(replace(found, deviations=deviations), Console(file=page, width=80))
        head = next(line for line in page.getvalue().splitlines() if line.startswith("first - second"))
        assert head.rstrip().endswith("verdict") == shown


@pytest.mark.usefixtures("found")
def test_tables_count_every_block_that_they_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = AnalysisPlan(baselines=["wait"], looks=[10])
    planned = Design(arms={"a": [], "b": ["hosts=1"]}, blocks=12, root=0, common=[], plan=plan)
    monkeypatch.setattr(S, "planned", lambda _: planned)
    usual, bad = J.score, {"accuracy": -900.0, "parameters": -9e6}
    monkeypatch.setattr(
        J, "score", lambda run, *rest, **how: usual(run, *rest, **how) | (bad if (run.arm, run.block) == ("a", 4) else {})
    )
    worse = S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True))
    _, _, _, accuracy, *others = tables(worse)
    assert accuracy["rows"][0][1] == "8 (1 collapsed, 1 with a missing run, 2 after the look)"
    assert accuracy["rows"][-1][1] == "11 (1 collapsed)", "the control has no look"
    (parameters,) = [table for table in others if "in parameters" in table["caption"]]
    assert [row[1] for row in parameters["rows"]] == ["11 (1 with a missing run)", "12", "11 (1 with a missing run)", "12"]
    assert "8 (1 collapsed, 1 with a missing run, 2 after the look)" in latex(differences(worse))


def test_a_difference_that_rounds_to_zero_has_no_sign() -> None:
    assert _interval(-1e-9, -0.0463, 0.0463) == "0.0000, -0.0463 to 0.0463"


@pytest.mark.usefixtures("found")
def test_outcomes_that_do_not_vary_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(J, "score", lambda run, *_, **__: dict.fromkeys(OUTCOMES, 60.1 if run.arm == "a" else 40.3))
    same = S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True))
    row = next(table["rows"][-1] for table in tables(same) if "in parameters" in table["caption"])
    assert row[2:4] == ["19.80, no spread"] * 2
    assert row[5:7] == ["0.000488", "< 0.0001"], "the margin is 20"


@pytest.mark.usefixtures("found")
def test_there_is_no_p_value_where_nothing_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(J, "score", lambda *_, **__: dict.fromkeys(OUTCOMES, 60.0))
    same = S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True))
    (accuracy,) = [table for table in tables(same) if table["caption"].startswith("Differences in accuracy [pp]")]
    assert accuracy["rows"][-1][2:7] == ["0.00, no spread", "0.00, no spread", "", "", ""]
    monkeypatch.setattr(J, "score", lambda run, *_, **__: dict.fromkeys(OUTCOMES, 60.0 if run.block == 0 else float("nan")))
    one = S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True))
    (accuracy,) = [table for table in tables(one) if table["caption"].startswith("Differences in accuracy [pp]")]
    assert accuracy["rows"][0][2:7] == ["too few blocks", "too few blocks", "", "", ""]
    monkeypatch.setattr(J, "score", lambda run, *_, **__: dict.fromkeys(OUTCOMES, 60.0 if run.block < 3 else float("nan")))
    whole = differences(same).query("missing == 0")
    for few in (whole, differences(one), differences(S.compare([Path("here")], CompareConfig(baselines=["wait"])))):
        arms = few[few["second"] != "wait"]
        assert arms[["p", "p_equivalence"]].isna().all(axis=None)
        assert arms[["p_holm", "p_equivalence_holm"]].isna().all(axis=None)


@pytest.mark.usefixtures("found")
def test_worst_cases_of_a_missing_run_are_shown_where_all_others_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(J, "score", lambda *_, **__: dict.fromkeys(OUTCOMES, 60.0))
    same = S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True))
    (accuracy,) = [table for table in tables(same) if table["caption"].startswith("Differences in accuracy [pp]")]
    assert [row[1] for row in accuracy["rows"]][:2] == ["11 (1 with a missing run)", "12"]
    assert re.fullmatch(r"0\.00, -[\d.]+ to [\d.]+", accuracy["rows"][0][2])
    assert accuracy["rows"][0][5] == "1"


@pytest.mark.usefixtures("found")
def test_the_console_counts_collapsed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = J.score
    bad = {"accuracy": -900.0}
    monkeypatch.setattr(J, "score", lambda run, *_, **__: usual(run) | (bad if (run.arm, run.block) == (AA_CONTROL, 4) else {}))
    text = io.StringIO()
    show(S.compare([Path("here")], CompareConfig(baselines=["wait"], final=True)), Console(file=text, width=120))
    (control,) = [line for line in text.getvalue().splitlines() if line.startswith(f"a - {AA_CONTROL} ")]
    assert "11 (1 collapsed)" in control
    assert f"a and {AA_CONTROL}: {AA_CONTROL} collapsed in 1 of 12 runs (block 4)" in " ".join(text.getvalue().split())


@pytest.mark.usefixtures("no_figures")
def test_one_arm_and_its_control_have_a_report(found: S.Comparison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(S, "find_runs", lambda *_: [run for run in found.runs if run.arm != "b"])
    planned = Design(arms={"a": [], AA_CONTROL: []}, blocks=12, root=0, common=[], plan=AnalysisPlan(looks=[12]))
    monkeypatch.setattr(S, "planned", lambda _: planned)
    alone = S.compare([Path("here")], CompareConfig(final=True))
    show(alone, Console(file=io.StringIO()))
    write(alone, tmp_path, "python -m esper.compare x")
    assert {row["verdict"] for row in csv.DictReader((tmp_path / "differences.csv").open())} == {"control"}
    verdicts = re.findall(r'<p class="verdict[^>]*>(.*?)</p>', (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    assert [verdict.strip()[:36] for verdict in verdicts] == ["no verdict: a is the only arm beside"]


@pytest.mark.usefixtures("no_figures")
def test_files_hold_the_numbers(found: S.Comparison, tmp_path: Path) -> None:
    names = [path.name for path in write(found, tmp_path, "python -m esper.compare x")]
    assert names == FILES
    assert "<p>Compare the runs:</p>\n<pre>python -m esper.compare x</pre>" in (tmp_path / "report.html").read_text()
    cells = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert {(row["arm"], int(row["block"])) for row in cells} == {(arm, block) for arm in (*ARMS, "wait") for block in range(12)}
    lost = next(row for row in cells if (row["arm"], row["block"]) == ("b", "3"))
    assert lost["status"] == "stopped after 0 of 1 update"
    assert {row["accuracy"] for row in cells if row["arm"] == "wait"} == {f"{block}.0" for block in range(12)}
    rows = list(csv.DictReader((tmp_path / "differences.csv").open()))
    for row in rows:
        if row["second"] == AA_CONTROL:
            difference, verdict = found.controls[row["outcome"]].difference, "control"
        else:
            (one,) = [
                one
                for one in found.results[row["outcome"]]
                if (one.difference.first, one.difference.second) == (row["first"], row["second"])
            ]
            difference, verdict = one.difference, one.verdict.value
            looked = one.look is not None and difference.blocks >= 2
            assert row["p_holm"] == (str(one.p_holm) if looked else "")
            assert row["needed"] == ("" if one.needed is None else str(one.needed))
        for column, value in (
            ("low", difference.mean.low),
            ("iqm_low", difference.iqm.low),
            ("improvement", difference.improvement),
        ):
            assert float(row[column] or "nan") == pytest.approx(value, nan_ok=True)
        assert (int(row["blocks"]), row["verdict"]) == (difference.blocks, verdict)
        assert row["p"] == (str(difference.p) if difference.blocks >= 2 else "")

    assert len(rows) == 3 * (len(OUTCOMES) - 1) + len(found.controls), "accuracy_greedy was not measured"
    table = (tmp_path / "differences.tex").read_text()
    assert table.count(r" \\") == 1 + sum(int(row["blocks"]) >= 2 for row in rows)
    assert r"accuracy & a & aa\_control & 12 &" in table
    assert (tmp_path / "hosts.csv").read_text() == (
        "arm,controller,block,host,accuracy,kind\na,policy,0,0,50.0,x\nb,policy,0,0,51.0,x\n"
    )


@pytest.mark.parametrize(
    ("kind", "magic"),
    [("png", b"\x89PNG"), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("pdf", b"%PDF"), ("svg", b"<?xml")))],
)
def test_figures_are_written_in_the_format(found: S.Comparison, tmp_path: Path, kind: str, magic: bytes) -> None:
    wanted = replace(found, config=replace(found.config, figures=kind))
    paths = {path.name: path for path in write(wanted, tmp_path, "python -m esper.compare x")}
    assert set(paths) == {*FILES, *(f"{name}.{kind}" for name in ("slopes", "front"))}, "nothing was recorded in training"
    assert all(paths[name].read_bytes().startswith(magic) for name in set(paths) - {*FILES})


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_an_exploratory_comparison_replaces_no_planned_report(found: S.Comparison, tmp_path: Path) -> None:
    def report(**settings: Any) -> str:
        return write(replace(found, config=replace(found.config, **settings)), tmp_path, "")[0].name

    assert report() == "report.html"
    assert report(final=False, workers=3, baselines=["wait"]) == "report.html"
    assert report(hosts=8) == "report_hosts=8.html"
    assert report(margin=2.0, against="a") == "report_margin=2_against=a.html"
    assert report(outcome="parameters") == "report_outcome=parameters.html"
    assert report(baselines=[]) == "report_no_baselines.html"


@pytest.mark.usefixtures("no_figures")
def test_json_holds_no_nan(found: S.Comparison, tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    write(found, tmp_path, "")
    numbers = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=refuse)
    cells = {(cell["outcome"], cell["arm"], cell["block"]): cell["value"] for cell in numbers["outcomes"]}
    assert cells["accuracy", "b", 3] is cells["accuracy_greedy", "a", 0] is None
    assert cells["accuracy", "b", 4] == found.values("accuracy").loc[4, "b"]
    assert numbers["differences"][0]["needed"] == found.results["accuracy"][0].needed
    assert numbers["differences"][0]["p"] == differences(found)["p"][0]
    assert numbers["sentences"] == summary(found)["sentences"] == found.sentences


@pytest.mark.parametrize("width", [80, 120])
def test_the_console_shows_sentences_then_differences_and_means(found: S.Comparison, width: int) -> None:
    text = io.StringIO()
    show(found, Console(file=text, width=width))
    lines = text.getvalue().splitlines()
    shown = " ".join(text.getvalue().split())
    assert all(" ".join(sentence.split()) in shown for sentence in found.sentences)
    assert shown.index(found.sentences[0]) < shown.index("Differences in accuracy [pp]") < shown.index("Means over")
    assert "Differences in parameters" not in shown
    assert max(len(line) for line in lines if "python -m" not in line) <= width
    (pair,) = [line for line in lines if line.startswith("a - b ")]
    assert pair.rstrip().endswith("withheld"), "a row is one line"
    (mean,) = [line for line in lines if line.startswith("a ") and line.split()[1] == "12"]
    assert float(mean.split()[2]) == pytest.approx(found.values("accuracy")["a"].mean(), rel=1e-3)


def test_the_report_defines_arms_and_begins_with_the_verdict(found: S.Comparison, tmp_path: Path) -> None:
    for run in found.runs:
        run.config = {"hosts": {"a": 1, "b": 2}.get(run.arm, 1), "steps": 3, "seed": run.seed}
    write(found, tmp_path, "python -m esper.compare x")
    page = (tmp_path / "report.html").read_text()
    order = [
        '<p class="verdict',
        '<svg class="forest"',
        "Arms and their overrides",
        "<h2>Tables",
        "<h2>Figures",
        "<pre>Is &lt;b&gt;",
    ]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert page.count("<svg") == 3
    assert "<img" not in page
    assert "#000000" not in page, "black would vanish on a dark page"
    assert "prefers-color-scheme: dark" in page
    assert page.count("<details>") == len(tables(found)) + 3
    assert "<td>hosts</td><td>1</td><td>2</td><td>1</td>" in page
    assert "<td>steps</td>" not in page
    assert re.search(r"report of \d{4}-\d\d-\d\d \d\d:\d\d UTC by esper", page)
    shown = re.sub(r"<[^>]*>", " ", page)
    assert "hosts=1" in shown


def test_scores_of_numbers_are_called_r2_everywhere(found: S.Comparison, tmp_path: Path) -> None:
    write(replace(found, score="R2"), tmp_path, "python -m esper.compare x")
    page = re.sub(r"<style.*?</style>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    assert "greedy\nR2" in page or "greedy R2" in page
    assert "R2_greedy" not in page
    assert "ccuracy" not in page


def test_standard_errors_of_seeds_are_over_blocks() -> None:
    rng = np.random.default_rng(0)
    value_BH = rng.normal(0, 1, (5, 1)) + rng.normal(0, 1, (5, 3))
    cells = [{"arm": "a", "controller": "policy", "block": block, "host": host, "kind": "x"} for block, host in np.ndindex(5, 3)]
    kept = {"slot": "late", "blueprint": "conv", "planted": 2, "epochs": 5, "fate": "kept"}
    seeds = [cell | kept | {"contribution": value_BH[cell["block"], cell["host"]]} for cell in cells]
    (stats, _) = grown(pd.DataFrame(cells), pd.DataFrame(seeds))["a"].values()
    assert stats.contribution_error == pytest.approx(value_BH.mean(1).std(ddof=1) / np.sqrt(5))
