"""Numbers of studies of what policies are used for, one training and transfer, recomputed from the committed records."""

import re
import runpy

import pandas as pd
import pytest

from tests.records.tables import DRIFT, LOG, README, RESULTS, ROOT, page_of, shown, values


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


def test_readme_and_results_tell_the_study_of_one_training() -> None:
    digits = one_training("digits")
    assert digits["return", "search_random_4"] == "3.3 (2.4 to 4.2)"
    text = " ".join(RESULTS.read_text().split())
    assert digits["return", "search_random_8"] == "-0.3 (-1.0 to 0.3)"
    for page in (" ".join(README.split()), text):
        assert "3.3 points more than random search with four trainings per host (2.4 to 4.2)" in page
        assert "the result is undecided (-0.3, -1.0 to 0.3)" in page
    assert one_training("mnist5k_drift")["return", "search_random_8"] == "1.7 (1.0 to 2.4)"
    assert "1.7 points more than random search with eight trainings (1.0 to 2.4)" in text
    assert one_training("digits_trials")["return", "search_tpe_8"] == "5.9 (4.8 to 7.1)"
    assert "in `digits_trials`, 5.9 more than TPE with eight (4.8 to 7.1;" in text


def test_the_study_of_transfer_to_other_data_tells_its_numbers():
    study = runpy.run_path(str(ROOT / "experiments" / "2026-11-25_drift_transfer" / "transfers.py"))
    folder = ROOT / "experiments" / "2026-11-25_fashion_transfer"
    table, text = study["returns"](folder / "fashion.csv"), page_of(folder / "README.md")
    log, means = page_of(LOG), table.mean()
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
    assert f"({ppo.low:.1f}) misses the limit of -{study['MARGIN']:.0f} that was set beforehand" in page_of(DRIFT)
    behind = study["difference"](table, "forest", "ppo")
    assert f"PPO {behind.mean:.1f} less than the forest ({behind.low:.1f} to {behind.high:.1f}" in text.replace("\n", " ")


def test_the_study_of_transfer_tells_its_numbers():
    """Every row of the record, and the sentences of docs and log."""
    folder = ROOT / "experiments" / "2026-11-25_drift_transfer"
    study, text = runpy.run_path(str(folder / "transfers.py")), page_of(folder / "README.md")
    log, worlds = page_of(LOG), page_of(DRIFT)
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


def test_the_study_of_a_teacher_tells_its_numbers() -> None:
    folder = ROOT / "experiments" / "2026-11-29_taught"
    outcomes = ("return", "return_greedy", "accuracy", "learning")
    returns, greedy, accuracy, learning = (values(folder.name, outcome) for outcome in outcomes)
    record = page_of(folder / "README.md")
    for arm in returns:
        hosts = "3,840" if arm in ("forest", "longer") else "1,920"
        means = (
            f"{returns[arm].mean():.2f} | {greedy[arm].mean():.2f} | {accuracy[arm].mean():.1f} | {learning[arm].mean():.1f} |"
        )
        assert re.search(rf"^\| {arm} \(.*\) \| {hosts}.* \| {re.escape(means)}$", record, flags=re.MULTILINE), arm
    told = pd.read_csv(folder / "differences.csv").set_index(["outcome", "first", "second"])[["mean", "low", "high"]]

    def numbers(outcome: str, first: str, second: str, *, sign: int = 1) -> list[str]:
        """Return the mean of a difference and its interval as they are printed."""
        pair = (outcome, first, second)
        mean, low, high = told.loc[pair] if pair in told.index else -told.loc[(outcome, second, first)]
        ends = sorted((sign * low, sign * high))
        return [f"{sign * mean:.2f}", f"{ends[0]:.2f} to {ends[1]:.2f}"]

    everywhere = [
        numbers("return", "taught", "teacher", sign=-1),
        numbers("return_greedy", "taught", "teacher"),
        numbers("return", "forest", "taught"),
        numbers("return", "taught", "scratch"),
        numbers("return", "taught", "longer"),
    ]
    pages = [page_of(page) for page in (folder / "README.md", LOG, ROOT / "docs" / "howto" / "teacher.md")]
    assert all(
        number in page
        for page in pages
        for pair in (*everywhere, numbers("return_greedy", "forest", "taught"))
        for number in pair
    )
    assert all(number in page_of(DRIFT) for pair in (everywhere[0], everywhere[2]) for number in pair)
    for pair in (numbers("return", "forest", "teacher"), numbers("return_greedy", "taught", "longer")):
        assert all(number in record for number in pair)
    assert f"{shown(accuracy['taught'] - accuracy['scratch'], ' pp of test accuracy')})" in record
    for arm, unit in (
        ("scratch", " pp more accurate in training than those of `scratch`"),
        ("teacher", " pp more than those of the exploring teacher"),
    ):
        assert f"{shown(learning['taught'] - learning[arm], unit)})" in record
