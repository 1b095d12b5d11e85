"""Judges a run's controller on fresh hosts: python -m esper.evaluate checkpoint=FOLDER

Every controller grows the same hosts, held out from training, with the same data orders. Accuracy is that of what was committed,
host and fossils, on the test part of the data, which nothing else touches.

Words of esper.train besides move the policy to another world: task=mnist5k slots=every_block steps=40. What is not named stays as
it was in training, a group that is named comes with its defaults, and the table says that it is a transfer.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from esper.checkpoint import write_whole
from esper.cli.command import in_one_sentence, load_parts, warn_plainly
from esper.cli.keyvalue import page, read_overrides
from esper.cli.transfer import WORLD, is_of_world
from esper.config import CHECKPOINTS
from esper.lab.evaluation import EvaluateConfig, Evaluation, by_host, summarise


def parse(words: list[str]) -> EvaluateConfig:
    """The config of an evaluation from words key=value, without those that change the run's.

    Raises:
        ConfigError: a word does not fit.
    """
    return read_overrides(EvaluateConfig, words, also=WORLD)


def show(rows: list[dict[str, Any]], title: str, console: Console) -> None:
    """The rows as a table."""
    # Without borders it fits 80 columns.
    table = Table(
        title=escape(title), title_justify="left", caption_justify="left", caption=CAPTION, box=None, padding=(0, 1, 0, 0)
    )
    for heading in ("controller", "return", "over wait", "accuracy", "over wait", "params", *FLOPS):
        table.add_column(heading, justify="left" if heading == "controller" else "right", overflow="fold")
    for row in sorted(rows, key=lambda row: -row["return"]["mean"]):
        cells = [_cell(row[key]) for key in ("return", "return_over_wait", "accuracy", "accuracy_over_wait")]
        flops = (_short(row[key]) for key in ("flops", "training_flops"))
        table.add_row(row["controller"], *cells, f"{row['parameters']:.0f}", *flops)
    console.print(table)


CAPTION = (
    "Means over hosts ± half of the 95 % interval, in points; differences to wait are paired, host by host. Accuracy is that on "
    "the test part, parameters are those of the seeds that were kept, FLOPs those of a sample in what was kept, and of training."
)
FLOPS = ("FLOPs", "to train")


def _cell(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.1f} ± {(interval['high'] - interval['low']) / 2:.1f}"


def _short(value: float) -> str:
    """Three digits and a letter: 7.07k."""
    power = min(max(0, len(f"{value:.0f}") - 1) // 3, 5)
    return f"{value / 1000**power:.3g}{('', 'k', 'M', 'G', 'T', 'P')[power]}"


def main(words: list[str]) -> None:
    """Evaluates, shows a table, and writes it as JSON beside the checkpoints."""
    if any(word in ("-h", "--help") for word in words):
        print(page(__doc__, EvaluateConfig(checkpoint="FOLDER")))
        return
    warn_plainly()
    with in_one_sentence():
        words = load_parts(words)
        evaluation = Evaluation(
            parse([word for word in words if not is_of_world(word)]), [word for word in words if is_of_world(word)]
        )
        outcomes = evaluation.run()
        rows = summarise(outcomes)
        evaluation.env.close()
        given, config = evaluation.given, evaluation.config
        title = evaluation.title()
        show(rows, title, Console())
        folder = evaluation.path.parent.parent if evaluation.path.parent.name == CHECKPOINTS else evaluation.path.parent
        elsewhere = evaluation.transfer.slug
        out = folder / f"evaluation_{evaluation.updates:06d}_episode{given.episode}{'_' * bool(elsewhere)}{elsewhere}.json"
        where = {"seed": config.seed, "episode": given.episode}
        where |= {"transfer": asdict(evaluation.transfer)} if elsewhere else {}
        kept = {"title": title, **where, "rows": rows, "hosts": by_host(outcomes)}
        write_whole(out, json.dumps(kept, indent=1) + "\n")
        print(f"numbers: {out}")


if __name__ == "__main__":
    main(sys.argv[1:])
