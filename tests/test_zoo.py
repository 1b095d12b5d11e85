"""The policies of the zoo are small, read by this version, and worth what a newcomer would expect."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from esper.checkpoint import load_run
from esper.evaluation.held_out import Evaluation
from esper.evaluation.outcomes import HostOutcomes

ZOO = Path(__file__).parent.parent / "zoo"
POLICIES = sorted(path.parent for path in ZOO.glob("*/policy.pt"))


def test_the_page_names_every_policy_and_all_are_small() -> None:
    page = (ZOO / "README.md").read_text()
    assert len(POLICIES) == 3
    assert all(f"[{path.name}]({path.name}/README.md)" in page for path in POLICIES)
    kept = [path for folder in POLICIES for path in folder.iterdir() if path.name in KEPT]
    assert len(kept) == len(POLICIES) * len(KEPT)
    assert sum(path.stat().st_size for path in kept) < 1e6


KEPT = {"README.md", "config.yaml", "evaluation.json", "observation.json", "policy.pt"}


@cache
def grown_by(name: str) -> HostOutcomes:
    """Return what six hosts become with the most probable actions of a policy; without pretrained hosts of the user's cache."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        evaluation = Evaluation.load(str(ZOO / name), hosts=6)
        return evaluation.grow(evaluation.controller("policy_greedy"), greedy=True)


@pytest.mark.parametrize(
    "folder",
    [pytest.param(path, id=path.name, marks=() if path.name == "digits" else pytest.mark.slow) for path in POLICIES],
)
def test_a_policy_grows_networks(folder: Path) -> None:
    assert load_run(folder / "policy.pt")["config"]["values"]["seed"] == 0
    assert sum(map(bool, grown_by(folder.name).kept)) >= 3, "most hosts keep a seed"


def test_the_page_on_passing_policies_on_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer hosts than on the page; greedy, so that the mean return is that of an evaluation."""
    page = (ZOO.parent / "docs" / "howto" / "share.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "load_policy" in block)
    monkeypatch.chdir(ZOO.parent)
    exec(code.replace("num_envs=8", "num_envs=6").replace("zeros(8)", "zeros(6)"), {})
    wanted = grown_by("digits").values["return"].mean()
    assert capsys.readouterr().out == f"mean return {wanted:.1f}\n"
