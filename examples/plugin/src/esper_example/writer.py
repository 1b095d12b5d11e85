"""A telemetry writer: a table in Markdown, to be pasted into an issue or a lab book."""

from dataclasses import dataclass, field

from esper.telemetry.base import Writer, WriterConfig


@dataclass(kw_only=True, slots=True)
class MarkdownConfig(WriterConfig):
    """One row per update in `table.md`."""

    tags: list[str] = field(default_factory=lambda: ["policy/return", "host/accuracy"])
    """Metrics in the columns; a metric that an update lacks leaves its cell empty."""

    def build(self, run):
        return Markdown(self.tags, run)


class Markdown(Writer):
    def __init__(self, tags, run):
        self.tags, path = tags, run.folder / "table.md"
        rows = path.read_text().splitlines()[2:] if path.exists() else []
        # A run that was killed may have written rows after its last checkpoint: it will write them again.
        kept = [row for row in rows if int(row.split("|")[1]) <= run.resume_update]
        self.file = path.open("w")
        self.lines(f"| update | {' | '.join(tags)} |", f"|---|{'---|' * len(tags)}", *kept)

    def write(self, update, metrics):
        cells = [f"{metrics[tag]:.2f}" if tag in metrics else "" for tag in self.tags]
        self.lines(f"| {update} | {' | '.join(cells)} |")

    def lines(self, *lines):
        self.file.writelines(f"{line}\n" for line in lines)
        self.file.flush()

    def close(self):
        self.file.close()
