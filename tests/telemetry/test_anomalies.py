"""Each rule fires beyond its threshold only, never on few samples, and the watch reports each anomaly once."""

import inspect
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from esper.agent.ppo.diagnostics import HEADS, PARTS, QUARTERS, CoreHealth, Diagnostics, HeadStats, UpdateStats
from esper.env.actions import Head
from esper.reward.audit import Audit
from esper.telemetry import anomalies
from esper.telemetry.anomalies import AT_ONCE, AnomaliesConfig, Anomaly, Watch, find
from esper.telemetry.tags import METRICS, UnknownTagError, measured, metric, tags_of

CORE = CoreHealth(h=0.3, saturated=0.0, gates_saturated=0.1, dead=0.0)
HEAD = HeadStats(steps=100, learnable=0.2, entropy=0.5, entropy_share=0.7, ratio_max=2.0, ratio_q95=1.3, kl=0.01)
DIAGNOSTICS = Diagnostics(
    steps=640,
    explained_variance_floored=0.7,
    value_slope=1.0,
    value_intercept=0.0,
    value_error=dict.fromkeys(QUARTERS, 0.1),
    heads=dict.fromkeys(Head, HEAD),
    ratio_max=2.0,
    ratio_q95=1.3,
    kl_of_target=0.5,
    skipped_fraction=0.3,
    grad_norm=dict.fromkeys(PARTS, 0.5),
    core=CORE,
    germinations=40,
    top_blueprint="norm",
    top_blueprint_share=0.5,
)
CONFIG = AnomaliesConfig()


def stats_of(diagnostics: Diagnostics, **changes: float) -> UpdateStats:
    """A healthy update with these diagnostics, but for these changes."""
    plain = {entry.name: 0.1 for entry in fields(UpdateStats) if entry.name != "diagnostics"}
    return UpdateStats(**plain | {"minibatches_nonfinite": 0.0} | changes, diagnostics=diagnostics)


def update(**changes: Any) -> UpdateStats:
    """A healthy update, but for these changes."""
    return stats_of(replace(DIAGNOSTICS, **changes))


def head(which: Head, **changes: Any) -> UpdateStats:
    return update(heads=DIAGNOSTICS.heads | {which: replace(HEAD, **changes)})


def core(**changes: float) -> UpdateStats:
    return update(core=replace(CORE, **changes))


def gradient(part: str, norm: float) -> UpdateStats:
    return update(grad_norm=DIAGNOSTICS.grad_norm | {part: norm})


AUDIT = Audit(seed_epochs=200, attribution_ratio=0.02, ransomware=0.01, shaped_ratio=1.8, goodhart=0.9)


def pay(**changes: float) -> Audit:
    """The audit of a healthy episode, but for these changes."""
    return replace(AUDIT, **changes)


def stats_and_audit(evidence: UpdateStats | Audit) -> tuple[UpdateStats, Audit]:
    """An update and the audit of its episode; at most one of them is unhealthy."""
    return (update(), evidence) if isinstance(evidence, Audit) else (evidence, AUDIT)


def found(evidence: UpdateStats | Audit, config: AnomaliesConfig) -> list[Anomaly]:
    stats, audit = stats_and_audit(evidence)
    return find(stats, config, audit)


# Kind, place, name of the threshold, evidence by value, a value just inside the threshold, and one just beyond it.
CASES: list[tuple[str, str, str, Any, float, float]] = [
    ("entropy_collapse", "tempo", "entropy_share", lambda x: head(Head.TEMPO, entropy_share=x), 0.02, 0.0199),
    ("ratio_explosion", "slot", "ratio", lambda x: head(Head.SLOT, ratio_max=x), 20.0, 20.01),
    ("ratio_explosion", "action", "ratio", lambda x: update(ratio_max=x), 20.0, math.inf),
    ("kl_spike", "policy", "kl", lambda x: update(kl_of_target=x), 3.0, 3.1),
    ("hardly_learned", "policy", "skipped", lambda x: update(skipped_fraction=x), 0.9, 0.91),
    ("nonfinite", "policy", "nonfinite", lambda x: stats_of(DIAGNOSTICS, minibatches_nonfinite=x), 0.0, 1.0),
    ("useless_critic", "critic", "explained_variance", lambda x: update(explained_variance_floored=x), -0.1, -0.11),
    ("exploding_gradient", "encoder", "gradient_above", lambda x: gradient("encoder", x), 100.0, 100.1),
    ("vanishing_gradient", "core", "gradient_below", lambda x: gradient("core", x), 1e-5, 0.9e-5),
    ("dead_core", "core", "dead", lambda x: core(dead=x), 0.5, 0.51),
    ("saturated_core", "core", "saturated", lambda x: core(saturated=x), 0.5, 0.51),
    ("saturated_core", "core", "saturated", lambda x: core(gates_saturated=x), 0.5, 0.51),
    ("monoculture", "norm", "monoculture", lambda x: update(top_blueprint_share=x), 0.98, 0.99),
    ("attribution_ratio", "seeds", "attribution_ratio", lambda x: pay(attribution_ratio=x), 0.25, 0.26),
    ("ransomware", "seeds", "ransomware", lambda x: pay(ransomware=x), 0.25, 0.26),
    ("goodhart", "reward", "goodhart", lambda x: pay(goodhart=x), 0.0, -0.01),
]
KINDS = list(dict.fromkeys(kind for kind, *_ in CASES))
NAMES = [f"{kind}-{where}" for kind, where, *_ in CASES]


def test_a_healthy_update_has_no_anomaly() -> None:
    assert find(update(), CONFIG) == []
    assert find(update(core=None), CONFIG) == []


def test_every_rule_has_a_case() -> None:
    rules = re.findall(r'_rule\(\s*"(\w+)"', inspect.getsource(anomalies))
    assert set(rules) == set(KINDS)


@pytest.mark.parametrize(("kind", "where", "name", "make", "inside", "beyond"), CASES, ids=NAMES)
def test_each_rule_fires_beyond_its_threshold_alone(
    kind: str, where: str, name: str, make: Any, inside: float, beyond: float
) -> None:
    assert found(make(inside), CONFIG) == []
    (anomaly,) = found(make(beyond), CONFIG)
    assert (anomaly.kind, anomaly.where, anomaly.value) == (kind, where, beyond)
    assert anomaly.threshold == getattr(CONFIG, name) == inside
    assert found(make(math.nan), CONFIG) == [], "what was not measured is no anomaly"


@pytest.mark.parametrize(("kind", "where", "name", "make", "inside", "beyond"), CASES, ids=NAMES)
def test_each_threshold_can_be_moved_out_of_the_way(
    kind: str, where: str, name: str, make: Any, inside: float, beyond: float
) -> None:
    never = {"entropy_share": 0, "gradient_below": 0, "explained_variance": -math.inf, "goodhart": -1}
    shares = dict.fromkeys(("skipped", "dead", "saturated", "monoculture", "attribution_ratio", "ransomware"), 1)
    assert found(make(beyond), AnomaliesConfig(**{name: (never | shares).get(name, math.inf)})) == []


@pytest.mark.parametrize(("kind", "where", "name", "make", "inside", "beyond"), CASES, ids=NAMES)
def test_each_anomaly_has_a_meaning_and_a_remedy(
    kind: str, where: str, name: str, make: Any, inside: float, beyond: float
) -> None:
    (anomaly,) = found(make(beyond), CONFIG)
    assert anomaly.sentence().startswith(f"{kind.replace('_', ' ')} ({where}): ")
    assert len(anomaly.meaning) > 20
    assert len(anomaly.remedy) > 20
    assert anomaly.sentence().isprintable()


def test_remedies_name_existing_keys() -> None:
    from esper.agent.ppo.ppo import PPOConfig
    from esper.reward.modes import MODES

    for _, _, _, make, _, beyond in CASES:
        for word in found(make(beyond), CONFIG)[0].remedy.replace(",", " ").split():
            if word.startswith("agent."):
                assert word.removeprefix("agent.") in PPOConfig.__dataclass_fields__
            if word.strip("()").startswith("reward."):
                assert word.strip("()").removeprefix("reward.") in MODES["shaped"].__dataclass_fields__
            if word.startswith("reward="):
                assert word.removeprefix("reward=") in MODES


# ---- few samples


def test_a_head_with_few_steps_is_not_checked() -> None:
    for steps, count in ((31, 0), (32, 2)):
        assert len(find(head(Head.STYLE, steps=steps, entropy_share=0.0, ratio_max=1e6), CONFIG)) == count
    assert len(find(head(Head.STYLE, steps=31, entropy_share=0.0), AnomaliesConfig(min_steps=31))) == 1


def test_the_policy_is_not_checked_if_nearly_all_steps_were_forced() -> None:
    few = DIAGNOSTICS.heads | {Head.OP: replace(HEAD, steps=31)}
    quiet = update(heads=few, ratio_max=1e6, kl_of_target=99.0, skipped_fraction=1.0, grad_norm=dict.fromkeys(PARTS, 0.0))
    assert find(quiet, CONFIG) == []
    assert [a.kind for a in find(update(heads=few, grad_norm={"critic": 1e9}), CONFIG)] == ["exploding_gradient"]


def test_few_seeds_and_few_values_are_not_checked() -> None:
    assert find(update(germinations=31, top_blueprint_share=1.0), CONFIG) == []
    assert find(update(steps=31, explained_variance_floored=-9.0), CONFIG) == []
    assert found(pay(seed_epochs=63, attribution_ratio=1.0, ransomware=1.0), CONFIG) == []


def test_an_episode_without_audit_is_not_checked() -> None:
    assert find(update(), CONFIG) == []
    assert Watch(CONFIG).look(1, update()).present == ()


# ---- the watch


def bad(kind: str) -> tuple[UpdateStats, Audit]:
    return next(stats_and_audit(make(beyond)) for of, _, _, make, _, beyond in CASES if of is kind)


@pytest.mark.parametrize("kind", KINDS)
def test_lasting_kinds_are_present_after_patience_and_the_rest_at_once(kind: str) -> None:
    watch = Watch(AnomaliesConfig(patience=3))
    present = [bool(watch.look(number, *bad(kind)).present) for number in range(1, 5)]
    assert present == ([True] * 4 if kind in AT_ONCE else [False, False, True, True])


def test_a_pause_resets_the_count() -> None:
    watch = Watch(AnomaliesConfig(patience=2))
    story = [bad("dead_core"), (update(), AUDIT), bad("dead_core"), bad("dead_core")]
    assert [len(watch.look(number, *seen).present) for number, seen in enumerate(story, 1)] == [0, 0, 0, 1]


def test_an_anomaly_is_new_once_and_again_after_a_pause() -> None:
    watch = Watch(AnomaliesConfig(hold=2))
    wrong = {1, 2, 5, 9, 10}  # details of 2 last up to 4, so that 5 continues the same anomaly
    findings_of = {
        number: watch.look(number, *(bad("kl_spike") if number in wrong else (update(), AUDIT))) for number in range(1, 14)
    }
    assert [number for number, findings in findings_of.items() if findings.present] == [1, 2, 5, 9, 10]
    assert [number for number, findings in findings_of.items() if findings.new] == [1, 9]
    assert [number for number, findings in findings_of.items() if findings.first] == [1]
    assert [number for number, findings in findings_of.items() if findings.detailed] == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]


def test_without_hold_details_end_with_the_anomaly() -> None:
    watch = Watch(AnomaliesConfig(hold=0))
    assert watch.look(1, *bad("kl_spike")).detailed
    assert not watch.look(2, update()).detailed


DEAD, JUMP = "dead_core", "kl_spike"


@pytest.mark.parametrize("stop", range(2, 13))
@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize(
    "story", [(DEAD, DEAD, DEAD, None, DEAD, DEAD, DEAD, DEAD), (JUMP, None, None, JUMP, DEAD, DEAD, *6 * [None], JUMP)]
)
def test_a_resumed_watch_reports_the_same(story: tuple[str | None, ...], stop: int, patience: int) -> None:
    config = AnomaliesConfig(patience=patience, hold=2)
    whole, resumed = Watch(config), Watch(config)
    for number, kind in enumerate(story, 1):
        seen = (update(), AUDIT) if kind is None else bad(kind)
        if number == stop:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = Watch(config)
            resumed.load_state_dict(state)
        findings = whole.look(number, *seen)
        assert findings == resumed.look(number, *seen)
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
    thresholds = {str(kind): name for kind, _, name, *_ in CASES}
    assert {row[0]: row[2] for row in rows} == thresholds
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


def test_update_statistics_and_detail_tags_match() -> None:
    found = measured({f"policy/{name}": value for name, value in update().metrics().items()})
    assert {f"policy/entropy_{name}" for name in HEADS.values()} <= set(found)
    details = {tag for row in METRICS if row.detail for tag in tags_of(row)}
    assert details <= set(found)
