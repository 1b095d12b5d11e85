"""A hook of MkDocs: files of the repository that the pages of docs/ link to become pages of the site too.

Links in docs/ are relative paths within the repository, so that a viewer of the repository follows them. The site has the same
pages at other places: README.md is its home, `docs/config.md` lies at `config.md`, and whatever else is linked below
`repository/`, with programs and presets as listings. This file adds those pages and rewrites the links; a link to a file that
does not exist is left as it is, and `mkdocs build --strict` then names it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
LISTED = {".py": "python", ".cff": "yaml", ".yaml": "yaml", ".md": "markdown", ".sh": "bash", "": "text"}
"""Suffix of files that are shown as listings -> language. Other files are copied."""


def place(file: Path) -> str:
    """Return where a file of the repository lies in the site, relative to its root."""
    if file == ROOT / "README.md":
        return "index.md"
    if file.is_relative_to(DOCS) and file.suffix in (".md", ".png", ".svg"):
        return str(file.relative_to(DOCS))
    inside = f"repository/{file.relative_to(ROOT)}"
    return inside if file.suffix == ".md" or file.suffix not in LISTED else f"{inside}.md"


def linked(text: str, file: Path) -> Iterator[Path]:
    """Yield the files of the repository that the Markdown text of a file links to."""
    for link, _ in LINK.findall(text):
        target = Path(os.path.normpath(file.parent / link))
        if "://" not in link and target.is_relative_to(ROOT) and target.is_file():
            yield target


def rewritten(text: str, file: Path) -> str:
    """Return the Markdown text of a file with links as they are in the site."""

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(file.parent / match[1]))
        if "://" in match[1] or not target.is_relative_to(ROOT) or not target.is_file():
            return match[0]
        return os.path.relpath(place(target), Path(place(file)).parent) + match[2]

    return LINK.sub(link, text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README and whatever the pages link to, directly or by way of one another."""
    todo = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("*/*.md"))]
    seen = set(todo)
    while todo:
        file = todo.pop(0)
        where = place(file)
        if files.get_file_from_path(where) is None:
            if file.suffix in LISTED and file.suffix != ".md":
                text = f"# {file.relative_to(ROOT)}\n\n`````{LISTED[file.suffix]}\n{file.read_text()}\n`````\n"
                added = File.generated(config, where, content=text)
            else:
                added = File.generated(config, where, abs_src_path=str(file))
            if where != "index.md":
                added.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(added)
        if file.suffix == ".md":
            new = [target for target in linked(file.read_text(), file) if target not in seen]
            seen |= {*new}
            todo += dict.fromkeys(new)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    path = page.file.src_uri
    if page.file.generated_by and page.file.abs_src_path is None:  # a listing
        return markdown
    source = ROOT / "README.md" if path == "index.md" else ROOT / path.removeprefix("repository/")
    return rewritten(markdown, source if path.startswith(("repository/", "index.md")) else DOCS / path)
