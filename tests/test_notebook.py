"""The notebook runs from the first cell to the last, as a person runs it, with fewer hosts."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).parent.parent / "docs" / "first_hour.ipynb"
SMALLER = {
    "hosts=16 updates=12": "hosts=4 steps=6 updates=2 task.epoch_samples=128 task.valid_samples=64 agent.epochs=1",
    "hosts=16": "hosts=2",
}


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PAGE.parents[1]))
    notebook = nbformat.read(PAGE, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they would grow old"
    for cell in notebook.cells:
        for whole, small in SMALLER.items():
            cell.source = cell.source.replace(whole, small)
    NotebookClient(notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = ["".join(output.get("text", "") for output in cell.get("outputs", ())) for cell in notebook.cells]
    assert any("page: notebook_run/run.html" in text or "run.html" in text for text in texts)
    assert any("never growing" in text for text in texts)
    kinds = [set(output.get("data", ())) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in kind for kind in kinds) == 2
    assert not any("esper: " in text for text in texts), "no command fails"
