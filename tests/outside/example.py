"""The package of examples/plugin, installed as a user would, and overrides that choose all of its parts."""

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples" / "plugin"
PARTS = {
    "task": "gratings",
    "host": "mixer",
    "optimiser": "lion",
    "slots": "last",
    "gates": "proven",
    "governor": "ceiling",
    "reward": "doublings",
    "buffer": "best",
    "agent": "plateau",
    "env": "hints",
    "blueprint": "dilated",
    "writer": "markdown",
}
"""Group -> the part that the tests run."""
GROW = [f"{group}={PARTS[group]}" for group in ("task", "optimiser", "slots", "gates", "governor", "reward")]
"""Parts of a run with host training; the task brings host and blueprint."""
LEARN = ["buffer=best", "agent.baseline=critic", "agent.twins=1", "agent.hidden=16", "agent.minibatches=2", "agent.epochs=1"]
"""A policy that learns from the package's buffer."""
TINY = ["hosts=4", "steps=3", "updates=1", "telemetry.writers=[jsonl,markdown]", "telemetry.page_hosts=0"]


def install(folder: Path) -> Path:
    """Install the package into a subfolder and return that; a copy is built, so that no build folder is left in the checkout."""
    copy, site = folder / "plugin", folder / "site"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    done = subprocess.run([*pip, "--target", str(site), str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


def beside(folder: Path) -> Path:
    """Put the package where pip would, with what the import system reads of it, and return that place; pip takes seconds."""
    site = Path(shutil.copytree(SOURCE / "src", folder / "site", ignore=shutil.ignore_patterns("__pycache__")))
    about = site / "esper_example-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: esper-example\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[esper.parts]\nesper_example = esper_example\n")
    return site
