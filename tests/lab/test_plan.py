"""Plans of experiments: read from a file and the command line, and adopted when blocks are added."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.types import RunMode

from esper.cli.command import spelled_out
from esper.cli.search_path import hydra_at_conf
from esper.config import ConfigError
from esper.lab.design import AnalysisPlan, Design, command_of, design
from esper.lab.integrity import _asked, _equal  # pyright: ignore[reportPrivateUsage]
from esper.lab.looks import as_planned, deviations, scored_with
from esper.lab.outcomes import CompareConfig
from esper.lab.plan import _reordered, announce, experiment  # pyright: ignore[reportPrivateUsage]
from tests.composed import check_sweep

PLAN = """
question: |
  Which reward? It's "${oc.env:HOME}".
arms: "reward: shaped,sparse"
outcome: parameters
blocks: 10
looks: [10, 20]
root: 7
"""


def planned(*overrides: str, folder: Path = Path("nowhere")) -> Design:
    """Return the experiment of a command."""
    command = spelled_out(["sweep=ab", *overrides, f"hydra.sweep.dir={folder}"])
    with hydra_at_conf() as loader:
        hydra = loader.load_configuration("config", command, run_mode=RunMode.MULTIRUN).hydra
    return experiment(hydra, [])


def test_a_plan_is_read_from_a_file_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "plan, it's mine.yaml").write_text(PLAN)
    found = planned(f"plan={tmp_path}/plan, it's mine.yaml", "blocks=12", "alpha=0.01")
    assert (found.blocks, found.root, list(found.arms)) == (12, 7, ["shaped", "sparse", "aa_control"])
    assert found.plan == AnalysisPlan(
        outcome="parameters", margin=20.0, alpha=0.01, looks=[10, 20], question='Which reward? It\'s "${oc.env:HOME}".\n'
    )
    assert announce(found, tmp_path) == [f"plan {found.digest[:12]}: parameters, margin 20, verdict at 10, 20 blocks"]
    typed = planned("arms={a: hosts=2, b: hosts=4}", "margin=2", "baselines=[wait]", "against=wait", "blocks=3")
    assert typed.plan == AnalysisPlan(margin=2.0, baselines=["wait"], against="wait", looks=[10])


def test_an_experiment_of_an_earlier_version_keeps_its_digest() -> None:
    found = design("reward: shaped,sparse", blocks=10, root=7, plan=AnalysisPlan(baselines=["wait"]))
    assert found.digest == "b0adeb3a782b00202d998ecc3a30e66a85027622e297418507382ded076cfbd6"


def test_overrides_of_the_scoring_are_part_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("score_overrides: [steps=30, slots=all]")
    read = planned("arms=reward: shaped,sparse", f"plan={tmp_path}/plan.yaml")
    typed = planned("arms=reward: shaped,sparse", "score_overrides=steps=30 slots=all")
    assert read.plan.score_overrides == ["steps=30", "slots=all"]
    assert read.digest == typed.digest != planned("arms=reward: shaped,sparse").digest
    assert deviations(read, as_planned(read.plan), ["steps=30", "slots=all"]) == []
    assert deviations(read, as_planned(read.plan), ["slots=all", "steps=40"]) == ["steps=40 was not planned"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["score_overrides=seed=3"], "score_overrides=seed=3 would score all runs on the same hosts"),
        (
            ["score_overrides=agent=random"],
            "score_overrides=agent=random does not fit arm a: agent=random cannot be changed",
        ),
        (["score_overrides=blueprint=[norm]"], "=blueprint=.norm. changes the blueprints, but policies can plant only those"),
        (["score_overrides=hosts=8"], "score_overrides=hosts=8 has hosts, the number in training: set score_hosts instead"),
        (["score_overrides=[steps=3"], "cannot read score_overrides=.steps=3: write score_overrides='task=mnist5k steps=40'"),
        (["score_overrides=[task.data_share=[0.5],steps=3]"], "cannot read score_overrides="),
        (["score_overrides=task=mnist5k_drift", "vary_split=true"], "vary_split=true varies the data of the training, and score"),
        (["score_overrides=steps=0"], "score_overrides=steps=0 does not fit arm a: steps "),
        (["score_overrides=slots=al"], "does not fit arm a: .*did you mean all"),
        (
            ["score_overrides=steps=9", "outcome=learning"],
            "measured in training, which score_overrides=steps=9 does not",
        ),
    ],
)
def test_overrides_of_the_scoring_are_checked_before_the_first_run(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        planned("arms={a: reward=shaped, b: reward=sparse}", *overrides)


def test_overrides_of_the_scoring_need_nothing_of_this_machine() -> None:
    """Where a launcher sends the runs elsewhere, devices and data may be there only."""
    arms = "arms={a: reward=shaped, b: reward=sparse}"
    assert planned(arms, "score_overrides=devices=[cuda:7] task=image_arrays task.file=/there/only.npz").plan.score_overrides
    for none in ("score_overrides=null", "score_overrides="):
        assert planned(arms, none).plan.score_overrides == []


def test_returns_on_other_hosts_are_compared_where_those_are_paid_alike() -> None:
    arms = "arms={a: task=digits, b: task=digits_drift}"
    with pytest.raises(ConfigError, match="outcome=return cannot compare arms that are paid differently under score_over"):
        planned(arms, "outcome=return", "score_overrides=task=digits_drift")
    assert planned(arms, "outcome=return", "score_overrides=task=digits_drift reward=online").plan.outcome == "return"
    assert planned("arms={a: agent=ppo, b: agent=react}", "outcome=return", "score_overrides=steps=30").plan.outcome == "return"


@pytest.mark.parametrize(
    ("plans", "typed", "overrides"),
    [
        ([["steps=3", "slots=all"]], [], ["steps=3", "slots=all"]),
        ([["steps=3", "slots=all"]], ["steps=3"], ["steps=3", "slots=all"]),
        ([["steps=3", "slots=all"]], ["steps=4", "reward=sparse"], ["steps=4", "slots=all", "reward=sparse"]),
        ([["task.file=a.npz", "steps=3"]], ["task=digits"], ["steps=3", "task=digits"]),
        ([["steps=3"], ["steps=3"]], [], ["steps=3"]),
        ([["steps=3"], ["steps=5"]], ["steps=4"], ["steps=4"]),
        ([["steps=3"], []], [], None),
        ([], ["steps=4"], ["steps=4"]),
    ],
)
def test_typed_overrides_replace_planned_ones_in_their_place(
    plans: list[list[str]], typed: list[str], overrides: list[str] | None, tmp_path: Path
) -> None:
    folders = [tmp_path / str(number) for number in range(max(1, len(plans)))]
    for folder, plan in zip(folders, plans, strict=False):
        design("reward: shaped,sparse", blocks=10, root=7, plan=AnalysisPlan(score_overrides=plan)).save(folder)
    if overrides is None:
        with pytest.raises(ConfigError, match="these experiments planned different score_overrides"):
            scored_with(folders, typed, "accuracy")
        return
    assert scored_with(folders, typed, "accuracy") == overrides


@pytest.mark.parametrize(
    ("arms", "key"),
    [
        ("{a: 'reward=sparse hosts=8', b: 'hosts=16 reward=sparse'}", None),
        ("{a: reward=sparse}", None),
        ("{a: agent=ppo, b: agent=react}", None),
        ("{a: 'reward=sparse hosts=8', b: hosts=16}", "reward"),
        ("{a: reward=sparse, b: reward=sparse reward.rent=1}", "reward.rent"),
        ("reward_mode: shaped,sparse", "reward"),
        ("task: digits,digits_drift", "reward"),
    ],
)
def test_returns_are_compared_where_all_arms_have_one_reward(arms: str, key: str | None, tmp_path: Path) -> None:
    """Whatever the override is called that changes it."""
    command = spelled_out(["sweep=ab", f"arms={arms}", "outcome=return", "blocks=3", f"hydra.sweep.dir={tmp_path / 'new'}"])
    if key is None:
        assert check_sweep(command)
        return
    with pytest.raises(ConfigError, match=f"cannot compare arms with different rewards.* different {key}: choose"):
        check_sweep(command)


HOSTS = "arms={a: hosts=4, b: hosts=8}"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["arms={a: agent=bandit, b: agent=random}", "outcome=accuracy_greedy", "aa_control=false"],
            "outcome=accuracy_greedy needs an agent that samples its actions, and agent=bandit does not: choose outcome=accuracy",
        ),
        (
            [HOSTS, "baselines=[greedy_potential]", "env.potential=false"],
            "baselines=greedy_potential reads growth potential, which the first arm does not have: leave it out",
        ),
        ([HOSTS, "baselines=[wait]", "outcome=learning"], "outcome=learning is measured in training, so no pair"),
        ([HOSTS, "baselines=[wait]", "outcome=rollbacks"], "outcome=rollbacks is measured in training, so no pair"),
        (["arms=reward: shaped,sparse", "outcome=return_greedy"], "outcome=return_greedy cannot compare arms with different rew"),
    ],
)
def test_what_could_never_have_a_verdict_is_refused(overrides: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        check_sweep(spelled_out(["sweep=ab", "blocks=12", *overrides, f"hydra.sweep.dir={tmp_path}"]))


def test_looks_stay_when_blocks_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "own"  # since tests have folders beside each other
    planned("arms=reward: shaped,sparse", "blocks=12", folder=folder).save(folder)
    more = planned("arms=reward: shaped,sparse", "blocks=24", folder=folder)
    more.save(folder)
    assert more.plan.looks == [12]
    assert announce(more, folder)[1] == "blocks 12 and up come after the last planned look and do not count towards a verdict"


def test_few_blocks_can_be_extended_to_a_look(tmp_path: Path) -> None:
    folder = tmp_path / "own"  # since tests have folders beside each other
    first = planned("arms=reward: shaped,sparse", "blocks=3", folder=folder)
    first.save(folder)
    assert announce(first, folder)[1] == (
        "blocks=3 is too few for a verdict, which takes 10; to get one, run: python -m esper.train -m sweep=ab "
        f"arms='reward: shaped,sparse' blocks=10 root=0 hydra.sweep.dir={folder}"
    )
    more = planned("arms=reward: shaped,sparse", "blocks=10", folder=folder)
    more.save(folder)
    assert (more.plan.looks, more.digest) == ([10], first.digest)
    (line,) = announce(more, folder)
    assert line.endswith("verdict at 10 blocks")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", "is not a plan"),
        ("just text", "is not a plan"),
        ("- 1", "is not a plan"),
        ("outcom: accuracy", "there is no key outcom; did you mean outcome"),
        ("plan: other.yaml", "is not a plan"),
        ("blocks: many", r"is not a plan \(blocks: .*many"),
        ("margin: one", r"\(margin: .*one"),
        ("root: 1\nquestion: is it: better", r"\(it is not YAML: mapping values are not allowed here in line 2\)"),
        ("updates: 4", r"\(updates is a key of the runs: it belongs on the command line, beside plan=\)"),
        ("reward: shaped", r"\(reward is a key of the runs: it belongs on the command line"),
        ("looks: 12", "is not a plan"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        planned(f"plan={tmp_path}/plan.yaml")
    assert str(caught.value).startswith(f"plan={tmp_path}/plan.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["arms=reward: shaped,sparse", "root=3", "blocks=24"],
        ["arms={small: agent.hidden=16, large: agent.hidden=32 hosts=8}", "aa_control=false", "vary_split=true"],
        ["arms={a: [\"task.root='x, y'\"], b: [hosts=2]}", "outcome=parameters", "alpha=0.01", "score_hosts=8"],
        ["arms=reward: shaped,sparse", 'question=It\'s\n"one"\n', "baselines=[wait,static]", "against=wait", "margin=2.5"],
        ["arms=reward: shaped,sparse", "score_overrides=steps=30 task.data_share=[0.5]"],
        ["arms=reward: shaped,sparse", 'score_overrides=["devices=[cpu, cpu]", "steps=30"]'],
        ["arms={a: hosts=2, b: hosts=4}", "aa_control=false", "pilot='a folder/b'", "outcome=parameters", "margin=1.0"],
    ],
)
def test_a_command_rebuilt_from_a_design_gives_the_same_design(overrides: list[str], tmp_path: Path) -> None:
    common = ["updates=4", "sweep=ab", "plugins=[my file.py]", "telemetry=quiet"]
    first = replace(planned(*overrides, folder=tmp_path), common=common)
    first.save(tmp_path)
    shown = command_of(Design.load(tmp_path), tmp_path)
    assert "\n" not in shown
    typed = subprocess.run(["bash", "-c", f"printf '%s\\0' {shown}"], capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )
    assert typed[:4] == ["python", "-m", "esper.train", "-m"]
    given = [one for one in typed[4:-1] if one not in common]
    again = replace(planned(*given, folder=tmp_path), common=[one for one in typed[4:-1] if one in common])
    assert again.digest == first.digest
    assert again.blocks == first.blocks


def test_a_rebuilt_command_has_the_launcher_of_the_last_start(tmp_path: Path) -> None:
    design = planned("arms=reward: shaped,sparse", folder=tmp_path)
    assert "launcher" not in command_of(design, tmp_path)
    typed = ["hydra.sweeper.blocks=3", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=x"]
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {"overrides": {"hydra": typed, "task": ["sweep=ab"]}}}))
    assert f" hydra/launcher=joblib hydra.launcher.n_jobs=2 hydra.sweep.dir={tmp_path}" in command_of(design, tmp_path)


def test_a_lost_command_is_printed(tmp_path: Path) -> None:
    planned("arms=reward: shaped,sparse", "blocks=3", folder=tmp_path).save(tmp_path)
    with pytest.raises(
        ConfigError, match=r"holds an experiment, and no arms are given: resume it with: python .* blocks=3 .*dir="
    ):
        planned(folder=tmp_path)


def test_a_single_arm_is_warned_about() -> None:
    lines = announce(planned("arms=reward: shaped"), Path("here"))
    assert lines[1].startswith("warning: shaped is the only arm, and is compared with its A/A control: add arms")
    assert not any("only arm" in line for line in announce(planned("arms=reward: shaped", "baselines=[wait]"), Path("here")))


def test_what_was_planned_is_no_deviation() -> None:
    found = planned("arms=reward: shaped,sparse", "score_hosts=8", "baselines=[wait]")
    assert deviations(found, as_planned(found.plan), []) == []
    assert deviations(found, CompareConfig(hosts=8, workers=4, final=True, figures="pdf", baselines=["wait"]), []) == []
    two = replace(found, plan=replace(found.plan, baselines=["wait", "static"]))
    assert deviations(two, CompareConfig(hosts=8, baselines=["static", "wait"]), []) == []
    assert deviations(found, CompareConfig(hosts=8, strata=["task"]), ["task=mnist5k"]) == [
        "baselines is [], but [wait] was planned",
        "strata is [task], but [] was planned",
        "task=mnist5k was not planned",
    ]


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("agent.learning_rate=1e-3", "agent.learning_rate", 0.001),
        ("agent.entropy_coef=0", "agent.entropy_coef", 0.0),
        ("reward_mode=sparse", "reward", "sparse"),
        ("devices=cpu", "devices", ["cpu"]),
        ("blueprint=[norm,conv_light]", "blueprint", ["norm", "conv_light"]),
        ("slots.incubation=none", "slots.incubation", "none"),
        ("policy_seed=null", "policy_seed", None),
        ("task.download='a, b'", "task.download", "a, b"),
        ("telemetry.decisions=true", "telemetry.decisions", True),
        ("env.potential=off", "env.potential", False),
        ("env.timetable=Yes", "env.timetable", True),
        ("agent.actions=[{at:0,op:wait}]", "agent.actions", [{"at": 0, "op": "wait", "slot": 0, "blueprint": None}]),
    ],
)
def test_overrides_are_compared_with_configs_by_value(override: str, key: str, value: Any) -> None:
    if override.startswith("telemetry"):
        assert _asked([override]) == {}, "telemetry changes no run"
        return
    ((name, asked),) = _asked([override]).items()
    assert name == key
    assert _equal(value, asked)
    assert not _equal("something else", asked)


def test_a_control_needs_a_first_arm_with_a_policy_seed(tmp_path: Path) -> None:
    def command(*overrides: str, folder: str = "new") -> list[str]:
        return spelled_out(["sweep=ab", "blocks=10", f"hydra.sweep.dir={tmp_path / folder}", *overrides])

    assert check_sweep(command("arms=agent: ppo,bandit"))
    assert check_sweep(command("arms=agent: bandit,ppo", "aa_control=false"))
    with pytest.raises(ConfigError, match=r"another policy seed, which agent=bandit ignores, .* put an arm .* first, or set aa_"):
        check_sweep(command("arms=agent: bandit,ppo"))
    found = planned("arms=agent: bandit,ppo", "blocks=10")
    replace(found, common=["sweep=ab"]).save(tmp_path / "begun")
    assert check_sweep(command("arms=agent: bandit,ppo", folder="begun")), "an experiment that has begun is resumed"


def test_a_baseline_is_planned_once(tmp_path: Path) -> None:
    asked = ["arms=reward: shaped,sparse", "baselines=[wait,static,wait]"]
    with pytest.raises(ConfigError, match="baselines=wait is named twice: name it once"):
        planned(*asked)
    earlier = design("reward: shaped,sparse", blocks=12, root=0, plan=AnalysisPlan(baselines=["wait", "wait"], looks=[12]))
    earlier.save(tmp_path)
    assert planned(*asked[:1], "baselines=[wait,wait]", folder=tmp_path).digest == earlier.digest, "it can be resumed"
    assert as_planned(earlier.plan).baselines == ["wait"], "and compared"


def test_a_pilot_is_checked_when_an_experiment_begins(tmp_path: Path) -> None:
    asked = ["arms=reward: shaped,sparse", f"pilot={tmp_path / 'pilot'}"]
    planned(asked[0]).save(tmp_path / "pilot")
    with pytest.raises(ConfigError, match="has root=0, too"):
        planned(*asked, folder=tmp_path / "new")
    begun = planned(*asked, "root=1", folder=tmp_path / "new")
    replace(begun, root=0).save(tmp_path / "begun")
    assert planned(*asked, folder=tmp_path / "begun").root == 0, "an experiment that has begun is resumed"


@pytest.mark.parametrize(
    ("overrides", "alike"),
    [
        (["agent=ppo", "agent.hidden=32", "+x=1"], True),
        (["hosts=4", "hosts=8"], False),
        (["task.events={count:[3]}", "task.events.count=[2]"], False),
    ],
)
def test_the_order_of_overrides_matters_only_if_one_sets_what_another_sets(overrides: list[str], alike: bool) -> None:
    assert _reordered(overrides[::-1], overrides) is alike
    assert not _reordered(overrides[:-1], overrides)
