"""Pages of folders in which files are damaged, missing, or left over."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from esper.cli.overrides import check
from esper.files import FileError
from esper.notices import UserNotice
from esper.page.page import write_page
from esper.training.run_folder import PAGE
from esper.training.trainer import Trainer
from tests.page.tables import report
from tests.page.test_page import OVERRIDES


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    Trainer(check([*OVERRIDES, "updates=1", "slots.where=[r0c0]"]), folder).run()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def page_of(folder: Path) -> str:
    write_page(folder, hosts=0, log=lambda line: None)
    return (folder / PAGE).read_text()


def cut(folder: Path) -> None:
    """Leave the head and some rows of a trace."""
    path = folder / "trace" / "update_000001.csv.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[: len(lines) - 3])))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "costs": (lambda run: (run / "costs.json").write_text('{"host": {"params": 496}}'), r"costs.json is damaged: move it away"),
    "events": (
        lambda run: (run / "events.jsonl").write_text('{"update": 1, "event": "anomaly"}\n'),
        r"events.jsonl is damaged: move it away; the page then lacks anomalies",
    ),
    "a trace": (cut, r"update_000001.csv.gz is damaged, since it lacks epochs or hosts: remove it"),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_file_is_named(run: Path, damage: Callable[[Path], object], sentence: str) -> None:
    damage(run)
    with pytest.raises(FileError, match=sentence):
        page_of(run)


@pytest.mark.parametrize("text", ["null", "[]", "{", '{"hosts": {"policy": {}}}', '{"hosts": {"policy": {"return": []}}}'])
def test_a_damaged_evaluation_is_left_out_with_a_warning(run: Path, text: str) -> None:
    (run / "evaluation_000001_4_hosts_episode0.json").write_text(text)
    with pytest.warns(UserNotice, match=r"evaluation_000001_4_hosts_episode0.json is damaged and left out: remove it"):
        assert "Comparison with baselines" not in page_of(run)


def test_an_evaluation_of_a_policy_that_was_lost_is_only_listed(run: Path) -> None:
    name = "evaluation_000009_9_hosts_episode0.json"
    (run / name).write_text(json.dumps(report(9, policy=50, heuristic=40, wait=30)))
    page = page_of(run)
    assert "Comparison with baselines" not in page
    assert "after 9 updates" not in page
    assert f'Other evaluations of this run: <a href="{name}">' in page


def test_a_page_needs_no_times(run: Path) -> None:
    (run / "times.jsonl").unlink()
    page = page_of(run)
    assert "<h2>Learning curves</h2>" in page
    assert "<h3>Speed</h3>" not in page


def test_a_table_has_no_empty_columns(run: Path) -> None:
    found = report(4, policy=50, heuristic=40, wait=30)
    for one in found["hosts"].values():
        one.pop("parameters", None)
    (run / "evaluation_000001_4_hosts_episode0.json").write_text(json.dumps(found))
    head = page_of(run).partition("Comparison with baselines")[2].partition("<tbody>")[0]
    assert ("<th>return\n[points]</th>" in head, "parameters\nkept" in head) == (True, False)
