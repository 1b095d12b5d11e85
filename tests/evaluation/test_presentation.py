"""What an evaluation shows: sentences from its report."""

from esper.evaluation.presentation import baseline_sentence


def test_the_best_baseline_is_compared_by_a_paired_interval() -> None:
    def report(own: list[float], other: list[float]) -> dict:
        return {"hosts": {name: {"return": values} for name, values in {"policy": own, "rule": other, "wait": [0, 0, 0]}.items()}}

    assert baseline_sentence(report([11, 12, 13.5], [10, 11, 12])) == (
        "its best baseline is rule: the policy returns 1.2 ± 0.7 points more, paired on the same 3 hosts"
    )
    assert "returns 1.0 ± 0.0 points less" in baseline_sentence(report([1, 2, 3], [2, 3, 4]))
    assert "the policy does not clearly differ in return (0.0 ± " in baseline_sentence(report([1, 2, 3], [2, 2, 2]))
    assert baseline_sentence(report([1, 2, 3], [-1, -1, -1])) == ""
