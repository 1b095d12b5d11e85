"""docs/ as a site: every link and anchor resolves, every page is found, and nothing is loaded from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import hooks

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_has_every_page_and_what_pages_link_to(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if not (site / page / "index.html").exists()]
    linked = ["experiments/LOG", "experiments/2026-11-22_policy", "esper/reward/modes.py", "LICENSE"]
    assert not [page for page in linked if not (site / "repository" / page / "index.html").exists()]
    assert "esper.grow(module" in re.sub(r"<[^>]+>", "", (site / "index.html").read_text())


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
    assert not [(page.name, found) for page in site.rglob("*.html") for found in loaded.findall(page.read_text())]
    assert not [sheet for sheet in site.rglob("*.css") if re.search(r"(?:@import|url\()\s*[\"']?https?:", sheet.read_text())]


def test_links_are_rewritten_from_place_to_place() -> None:
    page, record = ROOT / "docs" / "drift.md", ROOT / "experiments" / "LOG.md"
    assert hooks.rewritten("[a](../README.md#start) [b](metrics.md)", page) == "[a](index.md#start) [b](metrics.md)"
    assert hooks.rewritten("[c](../experiments/LOG.md)", page) == "[c](repository/experiments/LOG.md)"
    assert hooks.rewritten("[d](../docs/drift.md)", record) == "[d](../../drift.md)"
    assert hooks.rewritten("[e](../esper/config.py)", record) == "[e](../esper/config.py.md)"
    others = "[f](https://example.org/x) [g](#here) [h](none.md)"
    assert hooks.rewritten(others, page) == others
