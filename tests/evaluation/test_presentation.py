"""What an evaluation shows and writes: sentences, tables and its file."""

import json
import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from esper.evaluation.presentation import baseline_sentence, best_baseline, show, show_details, verdict, write_new


def test_the_best_baseline_is_compared_by_a_paired_interval() -> None:
    def report(own: list[float], other: list[float]) -> dict:
        return {"hosts": {name: {"return": values} for name, values in {"policy": own, "rule": other, "wait": [0, 0, 0]}.items()}}

    assert baseline_sentence(report([11, 12, 13.5], [10, 11, 12])) == (
        "its best baseline is rule: the policy returns 1.2 ± 1.0 points more, paired on the same 3 hosts; "
        "the interval allows for its choice from 2 baselines"
    )
    assert "returns 1.0 ± 0.0 points less" in baseline_sentence(report([1, 2, 3], [2, 3, 4]))
    assert "the policy does not clearly differ in return (0.0 ± " in baseline_sentence(report([1, 2, 3], [2, 2, 2]))
    assert baseline_sentence(report([1, 2, 3], [-1, -1, -1])) == ""


def test_the_interval_of_the_best_baseline_allows_for_its_choice() -> None:
    """The policy is as good as eight baselines, so at most one in twenty sentences may say otherwise; 11 % did without it."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        found = best_baseline({"hosts": {name: {"return": rng.normal(size=32)} for name in ("policy", *"abcdefgh")}})
        assert found is not None
        wrong += not found[1].low <= 0 <= found[1].high
    assert wrong < 0.05 * 400


def row(name, over_return=(1.0, 0.5, 1.5), over_accuracy=(2.0, 1.0, 3.0), **more):
    ends = {"return_over_wait": over_return, "accuracy_over_wait": over_accuracy, "return": (59.7, 47.5, 71.9)}
    ends["accuracy"] = (60.1, 50.1, 70.1)
    means = {key: dict(zip(("mean", "low", "high"), values, strict=True)) for key, values in ends.items()}
    costs = {"parameters": 48_150.0, "flops": 70_712.0, "training_flops": 1.234e8, "total_flops": 2.5e9}
    return {"controller": name, **means, **costs, **more}


NOTHING = (float("nan"),) * 3


@pytest.mark.parametrize(
    ("over_return", "over_accuracy", "sentence"),
    [
        (
            (1, 0.5, 1.5),
            (2, 1, 3),
            "policy beats never growing by 2.0 ± 1.0 pp of test accuracy and by 1.0 ± 0.5 points of return",
        ),
        ((-1, -1.5, -0.5), (-2, -3, -1), "policy is worse than never growing by 2.0 ± 1.0 pp of test accuracy and by 1.0 ± 0.5"),
        (
            (-1, -1.5, -0.5),
            (2, 1, 3),
            "by 2.0 ± 1.0 pp of test accuracy, and is worse than never growing by 1.0",
        ),
        (
            (1, -1, 3),
            (2, 1, 3),
            "by 2.0 ± 1.0 pp of test accuracy; no other clear difference (+1.0 ± 2.0 points",
        ),
        (
            (1, -1, 3),
            (-2, -5, 1),
            "no clear difference between the policy and never growing (-2.0 ± 3.0 pp of test accuracy and +1.0",
        ),
        ((1, 0.5, 1.5), NOTHING, "policy beats never growing by 1.0 ± 0.5 points of return"),
        (
            (0, 0, 0),
            (0, 0, 0),
            "never growing (0.0 ± 0.0 pp of test accuracy and 0.0 ± 0.0 points of return)",
        ),
    ],
)
def test_the_verdict_says_what_the_intervals_show(over_return, over_accuracy, sentence):
    said = verdict([row("wait"), row("random"), row("policy", over_return, over_accuracy)])
    assert sentence in said


def test_the_verdict_names_another_controller_where_the_policy_is_missing():
    assert verdict([row("wait"), row("random")]).startswith("random beats never growing")
    assert verdict([row("wait")]).startswith("only never growing was evaluated")
    assert "pp of test R2" in verdict([row("policy")], score="R2")
    online = row("policy", over_accuracy=(5.0, 4.0, 6.0))
    online = row("policy") | {"online": online["accuracy"], "online_over_wait": online["accuracy_over_wait"]}
    assert "beats never growing by 5.0 ± 1.0 pp of online accuracy" in verdict([online], headline="online")


@pytest.mark.parametrize("width", [50, 80, 120])
def test_no_cell_of_the_tables_wraps(width):
    names = ["policy", "greedy_potential", "oracle schedule by kind", "best static net (conv_heavy in r0c1)"]
    rows = [row(name, (-59.7, -70.1, -49.3), (59.7, 49.3, 70.1)) for name in names]
    page = StringIO()
    console = Console(file=page, width=width)
    show(rows, "Hosts", console)
    show_details([one | {"online": one["return"], "online_over_wait": one["accuracy"]} for one in rows], console)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in page.getvalue()
    (line,) = [line for line in lines if line.startswith("oracle ")][:1]
    cells = ["59.7", "60.1"] if width < 80 else ["59.7 (-59.7 ± 10.4)", "60.1 (+59.7 ± 10.4)"]
    assert re.split(" {2,}", line.strip()) == ["oracle", *cells, "48.2k"]
    assert "best static net: conv_heavy in r0c1" in lines


def test_an_evaluation_never_replaces_another(tmp_path):
    names = [write_new(tmp_path, "evaluation", {"rows": [number]}).name for number in (1, 1, 2, 3, 2, 1)]
    numbered = ["evaluation.json", "evaluation_2.json", "evaluation_3.json"]
    assert [numbered.index(name) + 1 for name in names] == [1, 1, 2, 3, 2, 1]
    assert [json.loads((tmp_path / name).read_text())["rows"] for name in numbered] == [[1], [2], [3]]
