"""Each rule fires beyond its threshold only, never on few samples, and the watch reports each anomaly once."""

import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest

from esper.telemetry.anomalies import AT_ONCE, MEANINGS, REMEDIES, RULES, AnomaliesConfig, Anomaly, AnomalyMonitor, find
from esper.telemetry.tags import METRICS, WORDS, UnknownTagError, metric, tags_of

DECISIONS = 640
HEALTHY = {tag: 0.5 for row in METRICS if row.tag.startswith("policy/") for tag in tags_of(row)} | {
    **dict.fromkeys((f"policy/ratio_max{suffix}" for suffix in ("", *(f"_{head}" for head in WORDS["head"]))), 2.0),
    "policy/minibatches_nonfinite": 0.0,
    "host/gradient_drift": 1.2,
    "audit/seed_epochs": 200,
    "audit/attribution_ratio": 0.02,
    "audit/ransomware": 0.01,
    "audit/goodhart": 0.9,
}
del HEALTHY["policy/imitation_loss"]
"""Measured metrics of an update without anomalies, which does not imitate."""
CONFIG = AnomaliesConfig()


def found(config: AnomaliesConfig = CONFIG, **changes: float) -> list[Anomaly]:
    """Return the anomalies of a healthy update with some changes, by the names of tags without their group."""
    return find(changed(**changes), config, DECISIONS)


def test_exploration_is_not_judged_while_a_policy_imitates() -> None:
    collapsed = changed(entropy_share_op=0.0, top_blueprint_share=1.0, kl_of_target=9.0)
    assert [one.kind for one in find(collapsed, CONFIG, DECISIONS)] == ["entropy_collapse", "kl_spike", "monoculture"]
    assert [one.kind for one in find(collapsed | {"policy/imitation_loss": 0.3}, CONFIG, DECISIONS)] == ["kl_spike"]


def changed(**changes: float) -> dict[str, float]:
    tags = {tag.partition("/")[2]: tag for tag in HEALTHY}
    return HEALTHY | {tags[name]: value for name, value in changes.items()}


# Kind, metric, threshold, a value just inside the threshold, and one just beyond it.
CASES: list[tuple[str, str, str, float, float]] = [
    ("entropy_collapse", "entropy_share_tempo", "entropy_share", 0.02, 0.0199),
    ("ratio_explosion", "ratio_max_slot", "ratio", 20.0, 20.01),
    ("ratio_explosion", "ratio_max", "ratio", 20.0, math.inf),
    ("kl_spike", "kl_of_target", "kl", 3.0, 3.1),
    ("hardly_learned", "skipped_fraction", "skipped", 0.9, 0.91),
    ("nonfinite", "minibatches_nonfinite", "nonfinite", 0.0, 1.0),
    ("useless_critic", "explained_variance_floored", "explained_variance", -0.1, -0.11),
    ("exploding_gradient", "grad_norm_encoder", "gradient_above", 100.0, 100.1),
    ("vanishing_gradient", "grad_norm_core", "gradient_below", 1e-5, 0.9e-5),
    ("gradient_drift", "grad_drift_heads", "gradient_drift", 5.0, 5.1),
    ("gradient_drift", "gradient_drift", "gradient_drift", 5.0, 5.1),
    ("dead_core", "core_dead", "dead", 0.5, 0.51),
    ("saturated_core", "core_saturated", "saturated", 0.5, 0.51),
    ("saturated_core", "core_gates_saturated", "saturated", 0.5, 0.51),
    ("monoculture", "top_blueprint_share", "monoculture", 0.98, 0.99),
    ("attribution_ratio", "attribution_ratio", "attribution_ratio", 0.25, 0.26),
    ("ransomware", "ransomware", "ransomware", 0.25, 0.26),
    ("goodhart", "goodhart", "goodhart", 0.0, -0.01),
]
KINDS = list(dict.fromkeys(kind for kind, *_ in CASES))
each_case = pytest.mark.parametrize(
    ("kind", "name", "threshold", "inside", "beyond"), CASES, ids=[f"{kind}-{name}" for kind, name, *_ in CASES]
)


def test_a_healthy_update_has_no_anomaly() -> None:
    assert found() == []


def test_every_rule_has_a_case_and_names_metrics_of_the_table() -> None:
    assert len(RULES) == len(CASES)
    assert [rule.kind for rule in RULES] == [kind for kind, *_ in CASES]
    assert set(REMEDIES) == set(KINDS) >= AT_ONCE
    rows = {row.tag for row in METRICS}
    for rule in RULES:
        assert rule.tag in rows
        assert rule.samples in {"", *rows} or metric(rule.samples)


@each_case
def test_each_rule_fires_beyond_its_threshold_alone(kind: str, name: str, threshold: str, inside: float, beyond: float) -> None:
    assert found(**{name: inside}) == []
    (anomaly,) = found(**{name: beyond})
    assert (anomaly.kind, anomaly.tag.partition("/")[2], anomaly.value) == (kind, name, beyond)
    assert anomaly.threshold == getattr(CONFIG, threshold) == inside
    side = "below" if beyond < inside else "above"
    shown = f"{beyond:.3g}" if f"{beyond:.3g}" != f"{inside:.3g}" else f"{beyond:.7g}"
    bound = f"{anomaly.tag} is {shown}, {side} telemetry.anomalies.{threshold}={inside:g}"
    assert anomaly.sentence() == f"{kind.replace('_', ' ')}: {MEANINGS[kind]} ({bound}); {REMEDIES[kind]}"


@each_case
def test_each_threshold_can_be_moved_out_of_the_way(kind: str, name: str, threshold: str, inside: float, beyond: float) -> None:
    never = {"entropy_share": 0, "gradient_below": 0, "explained_variance": -math.inf, "goodhart": -1}
    shares = dict.fromkeys(("skipped", "dead", "saturated", "monoculture", "attribution_ratio", "ransomware"), 1)
    assert found(AnomaliesConfig(**{threshold: (never | shares).get(threshold, math.inf)}), **{name: beyond}) == []


def test_metrics_that_were_not_measured_are_no_anomalies() -> None:
    assert find({}, CONFIG, DECISIONS) == []


def test_a_learner_from_outside_needs_no_sample_counts() -> None:
    (anomaly,) = find({"policy/kl_of_target": 9.0}, CONFIG, DECISIONS)
    assert anomaly.key == "kl_spike_kl_of_target"


def test_remedies_name_existing_keys() -> None:
    from esper.agent.ppo.ppo import PPOConfig
    from esper.reward.modes import MODES

    for remedy in REMEDIES.values():
        for word in remedy.replace(",", " ").split():
            if word.startswith("agent."):
                assert word.removeprefix("agent.") in PPOConfig.__dataclass_fields__
            if word.startswith("reward."):
                assert word.removeprefix("reward.") in MODES["shaped"].__dataclass_fields__
            if word.startswith("reward="):
                assert word.removeprefix("reward=") in MODES


# ---- few samples


def test_a_head_with_few_steps_is_not_checked() -> None:
    wrong = {"entropy_share_style": 0.0, "ratio_max_style": 1e6}
    for steps, count in ((31, 0), (32, 2)):
        assert len(found(learnable_style=steps / DECISIONS, **wrong)) == count
    assert len(found(AnomaliesConfig(min_steps=31), learnable_style=31 / DECISIONS, entropy_share_style=0.0)) == 1


def test_the_policy_is_not_checked_if_nearly_all_steps_were_forced() -> None:
    wrong = {"ratio_max": 1e6, "kl_of_target": 99.0, "skipped_fraction": 1.0, "explained_variance_floored": -9.0}
    wrong |= {f"grad_norm_{part}": 0.0 for part in WORDS["part"]}
    assert found(learnable_op=31 / DECISIONS, **wrong) == []
    assert len(found(learnable_op=32 / DECISIONS, **wrong)) == 8
    assert [a.kind for a in found(learnable_op=0.0, grad_norm_critic=1e9)] == ["exploding_gradient"]


def test_few_seeds_are_not_checked() -> None:
    for steps, count in ((31, 0), (32, 1)):
        assert len(found(learnable_blueprint=steps / DECISIONS, top_blueprint_share=1.0)) == count
    for epochs, count in ((63, 0), (64, 2)):
        assert len(found(seed_epochs=epochs, attribution_ratio=1.0, ransomware=1.0)) == count


# ---- the watch


def bad(kind: str) -> dict[str, float]:
    return next(changed(**{name: beyond}) for of, name, _, _, beyond in CASES if of is kind)


@pytest.mark.parametrize("kind", KINDS)
def test_lasting_kinds_are_present_after_patience_and_the_rest_at_once(kind: str) -> None:
    watch = AnomaliesConfig(patience=3).build(DECISIONS)
    present = [bool(watch.look(number, bad(kind)).present) for number in range(1, 5)]
    assert present == ([True] * 4 if kind in AT_ONCE else [False, False, True, True])


def test_a_pause_resets_the_count() -> None:
    watch = AnomaliesConfig(patience=2).build(DECISIONS)
    story = [bad("dead_core"), HEALTHY, bad("dead_core"), bad("dead_core")]
    assert [len(watch.look(number, seen).present) for number, seen in enumerate(story, 1)] == [0, 0, 0, 1]


def test_an_anomaly_is_new_once_and_again_after_a_pause() -> None:
    watch = AnomaliesConfig(hold=2).build(DECISIONS)
    wrong = {1, 2, 5, 9, 10}  # details of 2 last up to 4, so that 5 continues the same anomaly
    findings_of = {number: watch.look(number, bad("kl_spike") if number in wrong else HEALTHY) for number in range(1, 14)}
    assert [number for number, findings in findings_of.items() if findings.present] == [1, 2, 5, 9, 10]
    assert [number for number, findings in findings_of.items() if findings.new] == [1, 9]
    assert [number for number, findings in findings_of.items() if findings.first] == [1]
    assert [number for number, findings in findings_of.items() if findings.detailed] == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]


def test_without_hold_details_end_with_the_anomaly() -> None:
    watch = AnomaliesConfig(hold=0).build(DECISIONS)
    assert watch.look(1, bad("kl_spike")).detailed
    assert not watch.look(2, HEALTHY).detailed


DEAD, JUMP = "dead_core", "kl_spike"


@pytest.mark.parametrize("stop", range(2, 13))
@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize(
    "story", [(DEAD, DEAD, DEAD, None, DEAD, DEAD, DEAD, DEAD), (JUMP, None, None, JUMP, DEAD, DEAD, *6 * [None], JUMP)]
)
def test_a_resumed_watch_reports_the_same(story: tuple[str | None, ...], stop: int, patience: int) -> None:
    config = AnomaliesConfig(patience=patience, hold=2)
    whole, resumed = AnomalyMonitor(config, DECISIONS), AnomalyMonitor(config, DECISIONS)
    for number, kind in enumerate(story, 1):
        seen = HEALTHY if kind is None else bad(kind)
        if number == stop:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = AnomalyMonitor(config, DECISIONS)
            resumed.load_state_dict(state)
        findings = whole.look(number, seen)
        assert findings == resumed.look(number, seen)
        assert set(findings.first) <= set(findings.new) <= set(findings.present)
        assert findings.detailed or not findings.present


# ---- config and names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hold", -1),
        ("patience", 0),
        ("min_steps", 0),
        ("min_germinations", 0),
        ("entropy_share", 1.5),
        ("ratio", 1.0),
        ("kl", 0.0),
        ("skipped", -0.1),
        ("explained_variance", 2.0),
        ("gradient_above", 0.0),
        ("gradient_below", 100.0),
        ("dead", math.nan),
        ("saturated", 2.0),
        ("monoculture", -1.0),
        ("min_seed_epochs", 0),
        ("attribution_ratio", 1.1),
        ("ransomware", -0.1),
        ("goodhart", -1.1),
    ],
)
def test_every_rule_of_the_config_fires(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"telemetry\.anomalies\.{name} must be .*, got {value}: the default is"):
        AnomaliesConfig(**{name: value})


def test_the_page_names_every_kind_and_every_number_of_the_config() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
    rows = {tuple(cell.strip(" `") for cell in line.split("|")[1:-1]) for line in page.splitlines() if line.startswith("| `")}
    thresholds = {rule.kind: rule.threshold for rule in RULES}
    assert {row[0]: row[2] for row in rows} == thresholds
    assert {row[0]: row[1] for row in rows} == MEANINGS
    for entry in fields(AnomaliesConfig):
        assert f"`{entry.name}`" in page or f"telemetry.anomalies.{entry.name}" in page
    tags = re.findall(r"`(policy/[a-z_0-9]+\*?)`", page)
    assert tags
    for tag in tags:
        assert any(known(tag.replace("*", name)) for name in ("op", "core", "low")), tag


def known(tag: str) -> bool:
    """Return whether there is such a metric."""
    try:
        metric(tag)
    except UnknownTagError:
        return False
    return True


def test_a_value_close_to_its_threshold_differs_from_it_in_the_sentence() -> None:
    (anomaly,) = found(ratio_max=20.001)
    assert "policy/ratio_max is 20.001, above telemetry.anomalies.ratio=20)" in anomaly.sentence()
