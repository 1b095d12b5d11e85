"""Design of an experiment: arms x blocks, in an order that avoids bias from drift of the machine, with an analysis plan.

A block is one run of every arm from one seed, drawn from the root seed. Its runs share every random stream that their configs do
not change. Blocks run one after another, with the arms of each in random order. By default, the first arm is run a second time
with another policy seed, as an A/A control: their difference shows what a null effect looks like.

Seeds and order of a block do not depend on the number of blocks, so that blocks can be added. All else is fixed when the
experiment starts, under one digest that each run records.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast

from esper.cli.quoting import typed_as
from esper.config import ConfigError, root_key
from esper.files import fingerprint, write_whole
from esper.lab.arms import AA_CONTROL, NAME, has_control, read_arms, typed_arms
from esper.lab.cell import Cell
from esper.lab.last_start import LastStart, last_start
from esper.seeding import stream_seed
from esper.training.config_io import without_paths

FILE = "design.json"
"""Name of the file in the folder of an experiment."""
MAX_BLOCKS = 100_000
"""Bound on the number of blocks, so that an absurd one is refused before the runs are listed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalysisPlan:
    """What an experiment will claim and when; see `esper.sweeps.BlocksConfig` for the fields."""

    outcome: str = "accuracy"
    margin: float = 1.0
    alpha: float = 0.05
    score_hosts: int = 96
    score_overrides: list[str] = field(default_factory=lambda: list[str]())
    baselines: list[str] = field(default_factory=lambda: list[str]())
    against: str | None = None
    looks: list[int] = field(default_factory=lambda: list[int]())
    """Numbers of blocks at which a verdict may be given, increasing."""
    question: str | None = None
    pilot: str | None = None

    def well_formed(self) -> bool:
        """Return whether all fields have their types, and looks increase."""
        texts, numbers = (self.against, self.question, self.pilot), (self.margin, self.alpha)
        return (
            all(text is None or isinstance(cast(Any, text), str) for text in texts)
            and isinstance(cast(Any, self.outcome), str)
            and all(type(number) in (int, float) for number in numbers)
            and type(self.score_hosts) is int
            and _are(self.baselines, str)
            and _are(self.score_overrides, str)
            and _are(self.looks, int)
            and self.looks == sorted({*self.looks})
            and all(look > 0 for look in self.looks)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """An experiment before it is run."""

    arms: dict[str, list[str]]
    """Overrides of each arm, by its name."""
    blocks: int
    """Number of blocks so far: all else is fixed."""
    root: int
    """Root seed of the blocks and of the order of runs."""
    common: list[str]
    """Overrides of all cells."""
    vary_split: bool = False
    """If true, every block has a split seed of its own."""
    plan: AnalysisPlan

    @property
    def seeds(self) -> list[int]:
        """Seed of each block."""
        return draw_seeds(self.root, self.blocks)

    @property
    def order(self) -> list[list[str]]:
        """Arms of each block, in the order in which they run."""
        keys = [partial(stream_seed, self.root, "arm_order", block) for block in range(self.blocks)]
        return [sorted(self.arms, key=key) for key in keys]

    @property
    def digest(self) -> str:
        """SHA-256 of all but the number of blocks."""
        fixed = {name: value for name, value in asdict(self).items() if name != "blocks"}
        if not self.plan.score_overrides:  # so that the digest is that of experiments planned before this key existed
            del fixed["plan"]["score_overrides"]
        return fingerprint(fixed)

    @property
    def cells(self) -> list[Cell]:
        """All runs, in order."""
        return [self._cell(arm, block) for block, arms in enumerate(self.order) for arm in arms]

    def firsts(self) -> list[Cell]:
        """Return one cell of every arm."""
        return [self._cell(arm, 0) for arm in self.arms]

    def taught_by_block(self) -> list[Cell]:
        """Return the cells of later blocks that have a teacher of their own."""
        named = ("agent.teacher=", "+agent.teacher=")
        own = {arm for arm in self.arms for one in self._cell(arm, 0).overrides if one.startswith(named) and "${" in one}
        return [cell for cell in self.cells if cell.block and cell.arm in own]

    def _cell(self, arm: str, block: int) -> Cell:
        overrides = [*self.common, *self.arms[arm], f"seed={_draw(self.root, 'block', block)}"]
        if self.vary_split:
            overrides.append(f"task.split_seed={_draw(self.root, 'split', block)}")
        if arm == AA_CONTROL:
            overrides.append(f"policy_seed={_draw(self.root, 'policy', block)}")
        return Cell(arm=arm, block=block, overrides=tuple(overrides))

    @property
    def late(self) -> list[str]:
        """The sentence on blocks after the last planned look; empty if there are none."""
        last = self.plan.looks[-1]
        late = f"blocks {last} and up come after the last planned look and do not count towards a verdict"
        return [late] if self.blocks > last else []

    def well_formed(self) -> bool:
        """Return whether all fields hold what they should: the file may come from anybody, and its arms name folders."""
        arms = cast(Any, self.arms)
        return (
            isinstance(arms, dict)
            and all(isinstance(arm, str) and NAME.fullmatch(arm) for arm in arms)
            and all(map(_are, [self.common, *arms.values()], repeat(str)))
            and _are([self.blocks, self.root], int)
            and 0 < self.blocks < MAX_BLOCKS
            and type(self.vary_split) is bool
            and self.plan.well_formed()
        )

    def as_begun(self, folder: Path) -> "Design":
        """Return the experiment with the paths of its data, and thus the digest, that a folder holds; itself in a new folder.

        Raises:
            ConfigError: the folder holds another experiment; only the paths may differ, since data may have moved.
        """
        if (old := Design.find(folder)) is None:
            return self
        fixed, before = ({**asdict(one.plan), **asdict(one)} for one in (self, old))
        if old.digest != self.digest and _without_paths(old).digest != _without_paths(self).digest:
            names = [name for name, value in fixed.items() if name not in ("blocks", "plan") and value != before[name]]
            changes = ", ".join(_change(name, before[name], fixed[name]) for name in names)
            raise ConfigError(
                f"{folder} holds an experiment that differs in {changes}: choose another hydra.sweep.dir, or resume it with: "
                f"{command_of(old, folder)}"
            )
        if [*self.arms] != [*old.arms]:
            raise ConfigError(
                f"{folder} holds an experiment whose arms have the order {', '.join(old.arms)}: keep this order, since "
                f"baselines grow the hosts of the first arm, or choose another hydra.sweep.dir; resume it with: "
                f"{command_of(old, folder)}"
            )
        if self.blocks < old.blocks:
            raise ConfigError(f"{folder} has {old.blocks} blocks, more than blocks={self.blocks}: set blocks={old.blocks}")
        return replace(old, blocks=self.blocks)

    def save(self, folder: Path) -> None:
        """Write the design into the folder of the experiment; see `as_begun`.

        Raises:
            ConfigError: the folder holds another experiment.
        """
        begun = self.as_begun(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, json.dumps(asdict(begun) | {"sha256": begun.digest}, indent=1) + "\n")

    @staticmethod
    def find(folder: Path) -> "Design | None":
        """Return the design of the experiment in a folder; None if it holds none. See `load`."""
        return Design.load(folder) if (folder / FILE).exists() else None

    @staticmethod
    def load(folder: Path) -> "Design":
        """Return the design of the experiment in a folder.

        Raises:
            ConfigError: its file is damaged, was edited, or was written by an earlier version.
        """
        path = folder / FILE
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            digest = plain.pop("sha256")
            found = Design(**plain | {"plan": AnalysisPlan(**plain["plan"])})
            if not found.well_formed():
                raise ValueError
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{path} is damaged, or of an earlier version: restore it, or remove it to compare the runs without a plan"
            ) from error
        if found.digest != digest:
            raise ConfigError(f"{path} was edited after the experiment started: restore it, or start a new experiment")
        return found


def _without_paths(found: Design) -> Design:
    arms = {name: without_paths(overrides) for name, overrides in found.arms.items()}
    return replace(found, arms=arms, common=without_paths(found.common))


def _change(name: str, there: Any, here: Any) -> str:
    """Return what differs between two designs in one field."""
    if name == "arms" and typed_arms(there) == typed_arms(here):
        return f"aa_control ({str(has_control(there)).lower()} there, {str(has_control(here)).lower()} here)"
    if name == "common":
        name, there, here = (
            "overrides",
            *([one for one in own if one not in other] for own, other in ((there, here), (here, there))),
        )
        if not there and not here:
            return "the order of its overrides"
    return f"{name} ({brief(there)} there, {brief(here)} here)"


def brief(value: Any) -> str:
    """Return a value of a design as it is typed, or nearly so."""
    if isinstance(value, dict):
        return typed_arms(cast(dict[str, list[str]], value))
    if isinstance(value, list):
        return f"[{', '.join(map(str, cast(list[Any], value)))}]"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in cast(list[Any], values))


def design(
    arms: str | Mapping[str, Any] | None,
    *,
    blocks: int,
    root: int,
    aa_control: bool = True,
    common: Sequence[str] = (),
    vary_split: bool = False,
    plan: AnalysisPlan | None = None,
) -> Design:
    """Return the design of an experiment.

    Args:
        arms: values of one key, each an arm of that name, as in "reward: shaped,sparse"; or overrides by the name of the arm, as
            in {small: agent.hidden=16, large: "agent.hidden=256 agent.slot_width=64"}.
        blocks: runs per arm, at least 1.
        root: root seed of the blocks and of the order.
        aa_control: if true, add an A/A control.
        common: overrides of all cells, including the choice of the sweep.
        vary_split: if true, draw a split seed for every block.
        plan: what the experiment will claim; without looks, or without a plan, there is one look, at the last block.

    Raises:
        ConfigError: the arguments do not describe an experiment.
    """
    table = read_arms(arms)
    if not 0 < blocks < MAX_BLOCKS:
        raise ConfigError(f"blocks must be at least 1 and below {MAX_BLOCKS}, got {blocks}: a verdict takes at least 10")
    every = [*common, *(override for overrides in table.values() for override in overrides)]
    refuse_seeds(every)
    if vary_split and (fixed := next((override for override in every if "task.split_seed=" in override), None)):
        raise ConfigError(f"{fixed} has no effect, since vary_split=true draws it for every block: remove one of them")
    if AA_CONTROL in table:
        raise ConfigError(f"{AA_CONTROL} is the name of the A/A control: rename the arm")
    if aa_control:
        table[AA_CONTROL] = list(next(iter(table.values())))
    if len(table) < 2:
        raise ConfigError(
            "a comparison needs at least two arms: add arms, as in arms='reward: shaped,sparse', or leave aa_control=true"
        )
    plan = plan or AnalysisPlan()
    plan = replace(plan, looks=plan.looks or [blocks])
    return Design(arms=table, blocks=blocks, root=root, common=list(common), vary_split=vary_split, plan=plan)


def draw_seeds(root: int, count: int, purpose: str = "block") -> list[int]:
    """Return seeds for the blocks of an experiment, or of another purpose; more blocks do not change those of the first."""
    return [_draw(root, purpose, block) for block in range(count)]


def _draw(root: int, purpose: str, block: int) -> int:
    return stream_seed(root, purpose, block) % 2**31


def refuse_seeds(overrides: Sequence[str]) -> None:
    """Raise ConfigError if an override sets a seed, which blocks draw from root."""
    for override in overrides:
        if root_key(override) in ("seed", "policy_seed"):
            raise ConfigError(f"{override} cannot be set in this sweep, whose seeds are drawn from root: set root instead")


def command_of(
    found: Design, folder: Path | None, *, blocks: int | None = None, more: Sequence[str] = (), new: bool = False
) -> str:
    """Return the command of an experiment, rebuilt from its design, to be copied into a shell.

    What is not part of a design, such as the launcher, is that of the last start of `folder`, see `LastStart`. Looks are left
    out: a resumed experiment keeps those in its folder, and a new one has a single look at its last block.

    Args:
        found: the design.
        folder: folder of the experiment, to resume it; None if there is none.
        blocks: another number of blocks.
        more: further overrides, which replace those of the same key.
        new: if true, return the command of a new experiment like that in the folder.
    """
    plan, blocks = found.plan, blocks or found.blocks
    common = found.common if any(one.startswith("sweep=") for one in found.common) else ["sweep=ab", *found.common]
    parts = [*map(shlex.quote, common), f"arms={shlex.quote(typed_arms(found.arms))}", f"blocks={blocks}", f"root={found.root}"]
    parts += [] if has_control(found.arms) else ["aa_control=false"]
    parts += ["vary_split=true"] if found.vary_split else []
    usual = AnalysisPlan()  # whose margin is the default of its outcome only
    parts += [] if (plan.outcome, plan.margin) == (usual.outcome, usual.margin) else [f"margin={plan.margin!r}"]
    parts += [
        _in_shell(f"question={plan.question}") if name == "question" else typed_as(name, value)
        for name, value in asdict(plan).items()
        if name not in ("looks", "baselines", "score_overrides", "margin") and value != getattr(usual, name)
    ]
    parts += [shlex.quote(f"baselines=[{','.join(plan.baselines)}]")] if plan.baselines else []
    parts += [shlex.quote(typed_overrides(plan.score_overrides))] if plan.score_overrides else []
    start = last_start(folder) if folder is not None else LastStart()
    more = [*more, *(shlex.quote(one) for one in start.paths if one not in found.common)]
    keys = {override.strip("'").partition("=")[0] for override in more}
    parts = [part for part in parts if part.strip("'").partition("=")[0] not in keys]
    if folder is not None:
        more = [*more, *map(shlex.quote, start.launcher), *([] if new else [typed_as("hydra.sweep.dir", folder)])]
    more += start.flags  # behind all overrides, or argparse cannot read them
    return f"python -m esper.train -m {' '.join([*parts, *more])}"


def typed_overrides(overrides: Sequence[str]) -> str:
    """Return the key `score_overrides` as it is typed."""
    spaced = any(len(one.split()) != 1 for one in overrides)
    return f"score_overrides={json.dumps(list(overrides)) if spaced else ' '.join(overrides)}"


def _in_shell(text: str) -> str:
    """Return a text quoted for a shell, on one line."""
    if "\n" not in text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"
