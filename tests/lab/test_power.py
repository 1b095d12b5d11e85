"""The expected power of an experiment, from records, pilots and simulated hosts."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from esper.config import ConfigError, standalone_agents
from esper.lab.design import AnalysisPlan, Design, design
from esper.lab.outcomes import BASELINES
from esper.lab.power import TYPICAL, Spread, advice, expected_power, read_outcomes, spread_of
from esper.stats.paired import blocks_needed
from esper.stats.power import PlannedTest, VarianceParts

RECORDS = Path(__file__).parents[2] / "experiments"
OTHER_WORLDS = (
    "2026-11-23_drift_gate",
    "2026-11-23_drift_study",
    "2026-11-23_mnist_gate",
    "2026-11-23_mnist_study",
    "2026-11-24_trials_gate",
    "2026-11-25_arrivals_gate",
    "2026-11-26_text_gate",
    "2026-11-26_trials_study",
    "2026-11-27_deep_gate",
    "2026-11-28_deep_foresight",
    "2026-11-29_taught",
)
"""Records that are not about digits."""
BLOCKS, HOSTS = 300, 24


def planned(blocks: int = 12, *, arms: str = "reward: shaped,sparse", common: tuple[str, ...] = (), **plan: object) -> Design:
    return design(arms, blocks=blocks, root=1, common=common, plan=AnalysisPlan(**plan))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("outcome", TYPICAL["digits"].spreads)
def test_typical_spreads_are_those_of_the_committed_records(outcome: str) -> None:
    """The median over records that compare trained policies on digits of the root mean square over their pairs."""
    spreads: list[float] = []
    for path in sorted(RECORDS.glob("*/comparison.csv")):
        if path.parent.name in OTHER_WORLDS:
            continue
        cells = read_outcomes(path, outcome).dropna(axis=1)
        rivals = (*BASELINES, *standalone_agents(), "best_of_random", "same_seed")
        arms = [arm for arm in cells if arm not in rivals and not arm.startswith("search_")]
        if len(arms) > 1:
            spreads.append(np.sqrt(np.mean([(cells[a] - cells[b]).var() for a, b in combinations(arms, 2)])))
    assert len(spreads) >= 4
    assert float(f"{np.median(spreads):.2g}") == TYPICAL["digits"].spreads[outcome]


@pytest.mark.parametrize(
    ("task", "study"), [("digits_drift", "2026-11-23_drift_study"), ("mnist5k_drift", "2026-11-23_mnist_study")]
)
def test_typical_spreads_of_worlds_are_those_of_their_studies(task: str, study: str) -> None:
    for outcome, typical in TYPICAL[task].spreads.items():
        cells = read_outcomes(RECORDS / study / "comparison.csv", outcome)
        spreads = [(cells["ppo"] - cells[arm]).std() for arm in cells if arm != "ppo"]
        assert float(f"{np.median(spreads):.2g}") == typical, outcome


@pytest.mark.parametrize(
    ("common", "arms", "source"),
    [
        (
            ("task=digits_drift",),
            "{a: agent=react, b: agent=bandit}",
            "1.4, typical of digits_drift as recorded, but a guess for updates=50; pilot",
        ),
        (
            (),
            "{a: experiment=mnist5k_drift updates=60, b: task=mnist5k_drift updates=60}",
            "1.8, typical of mnist5k_drift; pilot",
        ),
        (
            ("task=mnist5k_drift", "updates=9"),
            "reward.rent: 1,2",
            "1.8, typical of mnist5k_drift as recorded, but a guess for",
        ),
        ((), "{a: experiment=python_text, b: ''}", None),
        ((), "{a: task=digits_drift, b: ''}", None),
        ((), "{a: experiment=healthy, b: ''}", None),
    ],
)
def test_the_power_is_that_of_the_task_of_all_arms(common: tuple[str, ...], arms: str, source: str | None) -> None:
    (line,) = expected_power(planned(common=common, arms=arms, outcome="return", score_hosts=64))
    assert line.startswith("power unknown") if source is None else source in line


def test_the_power_is_printed_for_typical_values() -> None:
    (line,) = expected_power(planned(arms="{a: updates=25, b: updates=50}"))
    power = 100 * PlannedTest(margin=1.0, looks=[12]).powers(2.3)[0]
    assert line == (
        f"12 blocks detect a difference of 1 pp in accuracy with a power of {power:.0f} % (standard deviation of a difference "
        "2.3, typical of digits; pilot=FOLDER takes it from an experiment); a power of 80 % takes "
        f"{blocks_needed(2.3, 1.0)} blocks"
    )
    assert 20 < power < 35
    pages = [" ".join((RECORDS.parent / page).read_text().split()) for page in ("README.md", "docs/statistics.md")]
    assert f"Twelve blocks detect a difference of 1 pp with a power of {power:.0f} %" in pages[0]
    assert line in pages[1]


def test_the_power_of_an_outcome_without_records_is_unknown() -> None:
    (line,) = expected_power(planned(outcome="online"))
    assert line == "power unknown: no record tells how online varies here; pilot=FOLDER takes it from an experiment"


def test_pairs_and_looks_change_the_power() -> None:
    (line,) = expected_power(planned(24, looks=[12, 24], baselines=["wait"]))
    early, late = PlannedTest(margin=1.0, looks=[12, 24], pairs=3).powers(2.3)
    assert f"with a power of {100 * late:.0f} %, the first 12 of them with a power of {100 * early:.0f} %" in line
    assert "at a level of 5 % / 3 pairs" in line
    assert "/ 2 pairs" in expected_power(planned(24, baselines=["wait"], against="wait"))[0]


def test_what_is_not_known_is_not_guessed() -> None:
    (line,) = expected_power(planned(arms="{a: hosts=8, b: hosts=32}", common=("updates=2", "steps=20"), score_hosts=9))
    assert "2.3, typical of digits as recorded, but a guess for updates=2 hosts=8 score_hosts=9; pilot=FOLDER" in line
    assert expected_power(planned(common=("task=mnist5k",)))[0].startswith("power unknown: no record tells how accuracy varies")


@pytest.fixture
def pilot(tmp_path: Path) -> Path:
    """An experiment with a difference whose variance is 1 between runs and 3 due to its hosts."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame([(arm, block, host) for arm in ("shaped", "sparse") for block in range(BLOCKS) for host in range(HOSTS)])
    rows.columns = ["arm", "block", "host"]
    run, host = rng.normal(0, 1, (BLOCKS, 1)), rng.normal(0, np.sqrt(3 * HOSTS), (BLOCKS, HOSTS))
    rows["controller"] = "policy"
    rows["accuracy"] = 50 + np.concatenate([np.zeros(BLOCKS * HOSTS), (run + host).ravel()])
    rows.to_csv(tmp_path / "hosts.csv", index=False)
    rows.groupby(["arm", "block"], as_index=False)["accuracy"].mean().to_csv(tmp_path / "comparison.csv", index=False)
    return tmp_path


def test_a_pilot_tells_the_spread_and_its_sources(pilot: Path) -> None:
    cells, hosts = read_outcomes(pilot / "comparison.csv", "accuracy"), pd.read_csv(pilot / "hosts.csv")
    spread = spread_of(cells, hosts, "accuracy", [("shaped", "sparse")])
    assert spread is not None
    assert spread.parts is not None
    assert spread.value == pytest.approx(2, rel=0.2)
    assert spread.parts.spread(HOSTS) == pytest.approx(spread.value)
    assert spread.parts.share == pytest.approx(0.75, abs=0.12)
    line, advice = expected_power(planned(pilot=str(pilot), score_hosts=HOSTS))
    assert f"standard deviation of a difference {spread.value:.2g}, from {pilot}" in line
    test = PlannedTest(margin=1.0, looks=[12])
    now, more = (test.powers(spread.parts.spread(count))[0] for count in (HOSTS, 4 * HOSTS))
    assert advice == (
        f"{100 * spread.parts.share:.0f} % of the variance of a difference comes from the {HOSTS} hosts: "
        f"with 12 blocks, 4x hosts raise the power from {100 * now:.0f} % to {100 * more:.0f} %, "
        f"2x blocks to {100 * test.powers(spread.value, 2)[0]:.0f} %"
    )
    more_hosts, _ = expected_power(planned(pilot=str(pilot), score_hosts=4 * HOSTS))
    assert f"with a power of {100 * more:.0f} %" in more_hosts
    (without,) = expected_power(planned(pilot=str(RECORDS / "2026-11-22_pairs")))  # no hosts.csv; other arms than planned
    assert "standard deviation of a difference 2.5" in without


def test_a_collapsed_run_of_a_pilot_does_not_count(pilot: Path) -> None:
    tables = {path: pd.read_csv(path) for path in (pilot / "comparison.csv", pilot / "hosts.csv")}
    said: list[list[str]] = []
    for collapses in (False, True):
        for path, table in tables.items():
            fallen, hard = (table["block"] == 3) & (table["arm"] == "sparse"), table["block"] % 2
            changed = table.assign(stratum=np.where(hard, "hard", "easy"), accuracy=table["accuracy"] - 100 * hard - 40 * fallen)
            (changed if collapses else changed[~fallen]).to_csv(path, index=False)
        said.append(expected_power(planned(pilot=str(pilot), score_hosts=HOSTS)))
    assert said[0] == said[1]
    assert len(said[1]) == 2
    assert "standard deviation of a difference 2.1, from" in said[1][0]


def test_searches_of_a_pilot_are_no_trained_arms(pilot: Path) -> None:
    table = pd.read_csv(pilot / "comparison.csv").assign(controller="policy")
    constant = table[table["arm"] == "shaped"].assign(arm="search_random_4", controller="search_random_4", accuracy=50.0)
    (pilot / "hosts.csv").unlink()
    for parts in ([table], [table, constant]):
        pd.concat(parts).to_csv(pilot / "comparison.csv", index=False)
        assert "standard deviation of a difference 2.1, from" in expected_power(planned(arms="hosts: 8,9", pilot=str(pilot)))[0]


@pytest.mark.parametrize(("content", "outcome"), [(None, "accuracy"), ("arm,block\n", "accuracy"), ("\0", "accuracy")])
def test_a_useless_pilot_is_one_sentence(content: str | None, outcome: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "comparison.csv").write_text(content)
    with pytest.raises(ConfigError, match=r"has no comparison\.csv with accuracy: run python -m esper\.compare on it"):
        expected_power(planned(pilot=str(tmp_path), outcome=outcome))
    (tmp_path / "comparison.csv").write_text("arm,block,accuracy\nppo,0,1.0\n")
    with pytest.raises(ConfigError, match="has no two arms with accuracy in 5 blocks"):
        expected_power(planned(pilot=str(tmp_path)))


@pytest.mark.parametrize(
    ("old", "new"),
    [("controller", "control"), ("policy,5", "policy,x5"), ("shaped,0,1,", "shaped,0,0,")],
    ids=["column", "number", "twice"],
)
def test_a_damaged_table_of_hosts_is_one_sentence(pilot: Path, old: str, new: str) -> None:
    content = (pilot / "hosts.csv").read_text()
    assert old in content
    (pilot / "hosts.csv").write_text(content.replace(old, new, 1))
    with pytest.raises(ConfigError, match=r"hosts\.csv is damaged .*: run python -m esper\.compare on "):
        expected_power(planned(pilot=str(pilot)))


def test_enough_power_needs_no_advice() -> None:
    parts = VarianceParts(runs=0.5, hosts=0.5, num_hosts=96)
    weak, strong = (advice(Spread(value=value, parts=parts), PlannedTest(margin=1.0, looks=[12])) for value in (3.0, 0.3))
    assert len(weak) == 1
    assert strong == []
