"""Rewrite the tables in docs/ that come from the code.

    python docs/generate.py            rewrite every table
    python docs/generate.py --check    change nothing; exit with status 1 and name the stale pages

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; the text around it is written by hand. A new table is a
function in `docs/tables/`, in the file named after its page, a line in `PAGES`, and a pair of marks on its page.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from docs.tables import actions, config, counterfactuals, lifecycle, metrics, observation, rewards
from docs.tables.markdown import MARKED, filled
from esper.config import GROUPS
from esper.env.observation import HOST_FEATURES, slot_table

DOCS = Path(__file__).parent

PAGES: dict[str, Mapping[str, Callable[[], Iterator[str]]]] = {
    "actions.md": {"operations": actions.operations, "heads": actions.heads, "values": actions.head_values},
    "config.md": {"groups": config.index, "root": config.root_config},
    **{f"config/{group}.md": {group: partial(config.group_page, group)} for group in GROUPS},
    "config/telemetry.md": {"telemetry": partial(config.group_page, "telemetry"), "writers": config.writers},
    "config/sweeps.md": {
        "sweeps": config.sweeps,
        "sweep-presets": partial(config.presets, "sweep"),
        "experiments": partial(config.presets, "experiment"),
    },
    "config/commands.md": {"commands": config.other_commands},
    "counterfactuals.md": {"plans": counterfactuals.plans, "costs": counterfactuals.plan_costs},
    "extending/rewards.md": {"terms": rewards.ready_terms, "signals": rewards.signals},
    "lifecycle.md": {"stages": lifecycle.stages},
    "metrics.md": {"names": metrics.metric_names, "metrics": metrics.metrics},
    "observation.md": {
        "host": lambda: observation.features(HOST_FEATURES),
        "slot": lambda: observation.features(slot_table(["BLUEPRINT"])),
    },
    "rewards.md": {"stages": rewards.stage_potentials, "modes": rewards.reward_modes},
}


def rewritten(page: str) -> str:
    """Return the text of a page with its tables rewritten.

    Raises:
        ValueError: the marks of the page are not those of `PAGES`.
    """
    text, tables = (DOCS / page).read_text(), PAGES[page]
    found = [match[1] for match in MARKED.finditer(text)]
    if sorted(found) != sorted(tables):
        raise ValueError(f"docs/{page} must have one pair of marks for each of {', '.join(tables)}; it has {', '.join(found)}")
    return filled(text, tables)


def main() -> None:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with status 1 if a page is stale")
    check = parser.parse_args().check
    stale = [page for page in PAGES if rewritten(page) != (DOCS / page).read_text()]
    if check and stale:
        names = ", ".join(f"docs/{page}" for page in stale)
        sys.exit(f"{names} {'is' if len(stale) == 1 else 'are'} stale: run python docs/generate.py and commit the result")
    for page in stale:
        (DOCS / page).write_text(rewritten(page))
        print(f"docs/{page} rewritten")


if __name__ == "__main__":
    main()
