"""Design of experiments in blocks: arms, seeds, order, and resuming."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from esper.checkpoint import Checkpoints
from esper.cli.quoting import typed_as
from esper.config import ConfigError
from esper.files import fingerprint
from esper.lab.arms import AA_CONTROL, typed_arms
from esper.lab.cell import Cell
from esper.lab.design import FILE, AnalysisPlan, Design, command_of, design
from esper.training.run_folder import CHECKPOINTS
from tests.composed import check_sweep

REWARDS = "reward: shaped,sparse"


def test_every_block_has_one_seed_and_every_arm_once() -> None:
    planned = design(REWARDS, blocks=12, root=1)
    assert list(planned.arms) == ["shaped", "sparse", AA_CONTROL]
    assert Counter((cell.arm, cell.block) for cell in planned.cells) == Counter(
        {(arm, block): 1 for arm in planned.arms for block in range(12)}
    )
    for block in range(12):
        seeds = {
            override
            for cell in planned.cells
            if cell.block == block
            for override in cell.overrides
            if override.startswith("seed=")
        }
        assert seeds == {f"seed={planned.seeds[block]}"}
    policy = {cell.overrides[-1] for cell in planned.cells if cell.arm == AA_CONTROL}
    assert len(policy) == len({*planned.seeds}) == 12


def test_more_blocks_do_not_change_the_first() -> None:
    few, many = (design(REWARDS, blocks=blocks, root=3) for blocks in (5, 9))
    assert many.cells[: len(few.cells)] == few.cells
    assert design(REWARDS, blocks=3, root=3).seeds == few.seeds[:3]


def test_blocks_come_one_after_another_and_arms_in_drawn_order() -> None:
    planned = design("reward: a,b,c", blocks=40, root=3, aa_control=False)
    assert [cell.block for cell in planned.cells] == sorted(cell.block for cell in planned.cells)
    firsts = Counter(arms[0] for arms in planned.order)
    assert min(firsts.values()) >= 5  # 13 are expected of each; fewer than 5 come once in a thousand roots
    assert len({tuple(arms) for arms in planned.order}) == 6


def test_the_root_determines_the_design() -> None:
    assert design(REWARDS, blocks=5, root=1) == design(REWARDS, blocks=5, root=1)
    other = design(REWARDS, blocks=5, root=2)
    assert not {*other.seeds} & {*design(REWARDS, blocks=5, root=1).seeds}


def test_the_aa_control_differs_only_in_its_policy_seed() -> None:
    first, _, again = design(REWARDS, blocks=1, root=0, common=["hosts=4"]).firsts()
    assert [override for override in again.overrides if override not in first.overrides] == [again.overrides[-1]]
    assert again.overrides[-1].startswith("policy_seed=")
    assert set(first.overrides) < set(again.overrides)


def test_arms_by_name() -> None:
    planned = design('{small: agent.hidden=16, large: "agent.hidden=32 agent.slot_width=64"}', blocks=1, root=0, aa_control=False)
    assert planned.arms == {"small": ["agent.hidden=16"], "large": ["agent.hidden=32", "agent.slot_width=64"]}
    assert planned == design(
        {"small": "agent.hidden=16", "large": list(planned.arms["large"])}, blocks=1, root=0, aa_control=False
    )


@pytest.mark.parametrize(
    ("text", "arms"),
    [
        ("agent.hidden: 16", {"16": ["agent.hidden=16"]}),
        ("agent.rate: 1e-3, 1e-2", {"1e-3": ["agent.rate=1e-3"], "1e-2": ["agent.rate=1e-2"]}),
        ("{small: , large: hosts=2}", {"small": [], "large": ["hosts=2"]}),
        ("small: hosts=1\nlarge: hosts=2", {"small": ["hosts=1"], "large": ["hosts=2"]}),
        ("reward: [shaped, sparse]", {"shaped": ["reward=shaped"], "sparse": ["reward=sparse"]}),
        ("blueprint: [norm,mlp],[mlp]", {"norm+mlp": ["blueprint=[norm,mlp]"], "mlp": ["blueprint=[mlp]"]}),
        (
            "{small: blueprint=[norm,mlp] hosts=2, large: blueprint=[mlp]}",
            {"small": ["blueprint=[norm,mlp]", "hosts=2"], "large": ["blueprint=[mlp]"]},
        ),
    ],
)
def test_arms_are_read_as_typed(text: str, arms: dict[str, list[str]]) -> None:
    planned = design(text, blocks=1, root=0).arms
    assert {arm: overrides for arm, overrides in planned.items() if arm != AA_CONTROL} == arms
    assert design(typed_arms(planned), blocks=1, root=0).arms == planned


@pytest.mark.parametrize(
    ("arms", "more", "sentence"),
    [
        (None, {}, "there are no arms to compare"),
        ("reward", {}, "there are no arms to compare"),
        ("reward: [", {}, "cannot read arms="),
        ("slots: [[a], [b]]", {}, "there are no arms to compare"),
        ("reward=shaped,sparse", {}, "has = in place of a colon: write arms='reward: shaped,sparse'"),
        ("reward:shaped,sparse", {}, "lacks a space after the colon: write arms='reward: shaped,sparse'"),
        ("reward: shaped,shaped", {}, "two arms called"),
        ("{a: hosts=1, a: hosts=2}", {}, "two arms called"),
        ("{1: hosts=1, '1': hosts=2}", {}, "two arms called"),
        ("reward: shaped", {"aa_control": False}, "a comparison needs at least two arms"),
        ("{aa_control: hosts=2, b: hosts=4}", {}, "is the name of the A/A control"),
        ("{b: hosts=2, aa_control: hosts=4}", {"aa_control": False}, "is the name of the A/A control: rename the arm"),
        ("{a/b: hosts=2}", {}, "cannot name an arm"),
        ("{design.json: hosts=2, b: hosts=4}", {}, "'design.json' cannot name an arm, since files of an experiment end in .json"),
        ("{a: seed=3, b: hosts=2}", {}, "seed=3 cannot be set"),
        (REWARDS, {"common": ["+seed=3"]}, "set root instead"),
        (REWARDS, {"blocks": 0}, "blocks must be at least 1 and below 100000, got 0"),
    ],
)
def test_invalid_designs_are_refused(arms: str | dict | None, more: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        design(arms, **{"blocks": 2, "root": 0, **more})


def test_a_folder_holds_one_experiment(tmp_path: Path) -> None:
    planned = design(REWARDS, blocks=2, root=0)
    planned.save(tmp_path)
    planned.save(tmp_path)
    assert Design.load(tmp_path) == planned
    for other, sentence in (
        (
            design(REWARDS, blocks=2, root=1),
            r"differs in root \(0 there, 1 here\): .* resume it with: python -m esper.train -m sweep=ab",
        ),
        (
            design("reward: shaped,basic", blocks=2, root=0),
            r"differs in arms \(reward: shaped,sparse there, reward: shaped,basic here\)",
        ),
        (design(REWARDS, blocks=2, root=0, plan=AnalysisPlan(margin=2.0)), r"differs in margin \(1 there, 2 here\)"),
        (design(REWARDS, blocks=2, root=0, aa_control=False), r"differs in aa_control \(true there, false here\): "),
        (
            design(REWARDS, blocks=2, root=0, common=["updates=9"]),
            r"differs in overrides \(\[\] there, \[updates=9\] here\): ",
        ),
    ):
        with pytest.raises(ConfigError, match=f"an experiment that {sentence}"):
            other.save(tmp_path)
    design(REWARDS, blocks=2, root=0, common=["updates=9", "hosts=4"]).save(tmp_path / "ordered")
    with pytest.raises(ConfigError, match="an experiment that differs in the order of its overrides: "):
        design(REWARDS, blocks=2, root=0, common=["hosts=4", "updates=9"]).save(tmp_path / "ordered")


def test_a_proposed_command_holds_every_key_once() -> None:
    planned = design(REWARDS, blocks=2, root=0, plan=AnalysisPlan(pilot="the first"))
    command = command_of(planned, None, more=["root=7", typed_as("pilot", "my runs/ab")])
    assert [command.count(key) for key in ("root=", "pilot=")] == [1, 1]


def test_blocks_can_be_added_but_not_taken_away(tmp_path: Path) -> None:
    few, many = (design(REWARDS, blocks=blocks, root=0, plan=AnalysisPlan(looks=[10, 20])) for blocks in (10, 20))
    few.save(tmp_path)
    many.save(tmp_path)
    assert Design.load(tmp_path) == many
    assert few.digest == many.digest
    turned = design("reward: sparse,shaped", blocks=20, root=0, plan=AnalysisPlan(looks=[10, 20]), aa_control=False)
    design(REWARDS, blocks=20, root=0, plan=AnalysisPlan(looks=[10, 20]), aa_control=False).save(tmp_path / "two")
    with pytest.raises(ConfigError, match=r"whose arms have the order shaped, sparse: keep this order"):
        turned.save(tmp_path / "two")
    with pytest.raises(ConfigError, match="has 20 blocks, more than blocks=10: set blocks=20"):
        few.save(tmp_path)


def test_an_edited_design_is_refused(tmp_path: Path) -> None:
    design(REWARDS, blocks=2, root=0).save(tmp_path)
    file = tmp_path / FILE
    text = file.read_text()
    file.write_text(text.replace('"margin": 1.0', '"margin": 3.0'))
    with pytest.raises(ConfigError, match="was edited after the experiment started: restore it"):
        Design.load(tmp_path)


def test_designs_of_earlier_versions_are_refused(tmp_path: Path) -> None:
    old = {"arms": {"a": [], "b": []}, "seeds": [1], "policy_seeds": [2], "order": [["b", "a"]], "common": []}
    (tmp_path / FILE).write_text(json.dumps(old))
    with pytest.raises(ConfigError, match="or of an earlier version: restore it, or remove it to compare"):
        Design.load(tmp_path)


def test_new_cells_start(tmp_path: Path) -> None:
    cell = Cell(arm="a", block=3, overrides=("sweep=ab", "hosts=2", "seed=1"))
    assert cell.pending(tmp_path) == ["sweep=ab", "hosts=2", "seed=1", "hydra.sweep.subdir=a/block-03"]


@pytest.mark.parametrize("folder", ["a run (1)", "a=b", "été", "[x]", "it's", "one,two", "back\\slash", "a\\'b", "end\\"])
def test_cells_resume_whatever_the_name_of_their_folder(folder: str, tmp_path: Path) -> None:
    cell = Cell(arm="a", block=3, overrides=("sweep=ab", "hosts=2"))
    place = tmp_path / folder
    config = {"values": {"updates": 4}, "choices": {}, "options": {}}
    state = {"config": config, "update": 3, **{part: {} for part in ("hparams", "agent", "buffer", "env", "watch")}}
    Checkpoints(place / cell.folder / CHECKPOINTS).save(state, 3)
    overrides = cell.pending(place)
    assert overrides is not None
    (found,) = OverridesParser.create().parse_overrides(overrides[1:2])
    assert (found.key_or_group, found.value()) == ("resume", str(place / cell.folder))
    Checkpoints(place / cell.folder / CHECKPOINTS).save(state, 4)
    assert cell.pending(place) is None


def test_damaged_checkpoints_of_a_cell_are_named(tmp_path: Path) -> None:
    cell = Cell(arm="a", block=3, overrides=())
    folder = tmp_path / cell.folder / CHECKPOINTS
    folder.mkdir(parents=True)
    (folder / "checkpoint_000001.pt").write_bytes(b"junk")
    with pytest.warns(UserWarning, match="trying the previous checkpoint"), pytest.raises(ConfigError) as caught:
        cell.pending(tmp_path)
    assert f"{tmp_path / cell.folder} cannot be resumed" in str(caught.value)
    assert "remove it and repeat the command" in str(caught.value)


def test_every_arm_is_checked_before_anything_runs() -> None:
    overrides = ["sweep=ab", "hydra.sweeper.arms='agent.hidden: 16,32'", "hydra.sweeper.blocks=3", "hosts=4"]
    jobs = check_sweep(overrides)
    assert [job.agent.hidden for job in jobs] == [16, 32, 16]  # pyright: ignore[reportAttributeAccessIssue]
    assert {job.hosts for job in jobs} == {4}
    assert len({job.seed for job in jobs}) == 1
    assert [job.policy_seed is None for job in jobs] == [True, True, False]
    with pytest.raises(ConfigError, match="no option spars in group reward"):
        check_sweep(["sweep=ab", "hydra.sweeper.arms='reward: shaped,spars'"])


@pytest.mark.parametrize(
    "change",
    [
        {"arms": {"../../elsewhere": []}},
        {"arms": {"/etc": []}},
        {"arms": ["one", "other"]},
        {"arms": {"one": "hosts=4", "other": []}},
        {"root": 1.5},
        {"vary_split": 1},
        {"blocks": True},
        {"blocks": 10**9},
        {"common": [None]},
        {"again": 1},
        {"plan": 3},
        {"plan": {"outcome": 3}},
        {"plan": {"margin": "1"}},
        {"plan": {"baselines": "wait"}},
        {"plan": {"score_overrides": "steps=3"}},
        {"plan": {"score_overrides": [3]}},
        {"plan": {"looks": [24, 12]}},
        {"plan": {"looks": [0]}},
        {"plan": {"question": 7}},
        {"plan": {"rivals": []}},
    ],
    ids=str,
)
def test_a_forged_design_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    good = {"arms": {"one": [], "other": []}, "blocks": 1, "root": 1, "common": [], "vary_split": False, "plan": {}}
    for plain, fine in ((good, True), (good | change, False)):
        fixed = {name: value for name, value in plain.items() if name != "blocks"}
        if isinstance(fixed["plan"], dict):
            usual = {name: value for name, value in asdict(AnalysisPlan()).items() if name != "score_overrides"}
            fixed["plan"] = usual | fixed["plan"]
        digest = fingerprint(fixed)
        (tmp_path / FILE).write_text(json.dumps({**plain, "sha256": digest}))
        if fine:
            assert Design.load(tmp_path).cells
        else:
            with pytest.raises(ConfigError, match="is damaged, or of an earlier version"):
                Design.load(tmp_path)
