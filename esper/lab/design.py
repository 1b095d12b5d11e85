"""Design of an experiment: arms times blocks, in an order that avoids bias from drift of the machine.

A block is one run of every arm from one seed, drawn from the root seed. Its runs share every random stream that their configs do
not change. Blocks run one after another, with the arms of each in random order. By default, the first arm is run a second time
with another policy seed, as an A/A control: their difference shows what a null effect looks like.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import yaml

from esper.checkpoint import CheckpointError, Checkpoints, load_run, update_of, write_whole
from esper.cli.overrides import quoted
from esper.config import CHECKPOINTS, ConfigError, root_key
from esper.seeding import stream

FILE = "design.json"
"""Name of the file in the folder of an experiment."""
AA_CONTROL = "aa_control"
"""Name of the arm that repeats the first one with another policy seed."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One planned run."""

    arm: str
    block: int
    overrides: tuple[str, ...]
    """Overrides of the run."""

    @property
    def folder(self) -> str:
        """Folder of the run, relative to that of the experiment."""
        return f"{self.arm}/block-{self.block:02d}"

    def pending(self, experiment: Path) -> list[str] | None:
        """Return the overrides that start or resume the run; None if it is finished.

        Args:
            experiment: folder of the experiment.

        Raises:
            ConfigError: all of its checkpoints are damaged.
        """
        folder, subdir = experiment / self.folder, f"hydra.sweep.subdir={self.folder}"
        try:
            newest = Checkpoints(folder / CHECKPOINTS).latest()
        except CheckpointError as error:
            raise ConfigError(
                f"{folder} cannot be resumed: its checkpoints are damaged; remove it and repeat the command"
            ) from error
        if newest is None:
            return [*self.overrides, subdir]
        if update_of(newest) >= load_run(newest)["config"]["values"]["updates"]:
            return None
        return [
            *(override for override in self.overrides if override.startswith("sweep=")),
            f"resume={quoted(str(folder))}",
            "hydra.output_subdir=null",
            subdir,
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """An experiment before it is run."""

    arms: dict[str, list[str]]
    """Overrides of each arm, by its name."""
    seeds: list[int]
    """Seed of each block."""
    policy_seeds: list[int]
    """Policy seed of the A/A control in each block."""
    order: list[list[str]]
    """Arms of each block, in the order in which they run."""
    common: list[str]
    """Overrides of all cells."""
    preregistration: str | None = None
    """Question, outcome and decision rule, written before the first run; None if there is none."""

    @property
    def cells(self) -> list[Cell]:
        """All runs, in order."""
        return [self._cell(arm, block) for block, arms in enumerate(self.order) for arm in arms]

    def firsts(self) -> list[Cell]:
        """Return one cell of every arm."""
        return [self._cell(arm, 0) for arm in self.arms]

    def _cell(self, arm: str, block: int) -> Cell:
        overrides = [*self.common, *self.arms[arm], f"seed={self.seeds[block]}"]
        if arm == AA_CONTROL:
            overrides.append(f"policy_seed={self.policy_seeds[block]}")
        return Cell(arm=arm, block=block, overrides=tuple(overrides))

    def well_formed(self) -> bool:
        """Return whether all fields hold what they should: the file may come from anybody, and its arms name folders."""
        arms, text = cast(Any, self.arms), cast(Any, self.preregistration)
        if (
            not isinstance(arms, dict)
            or not all(isinstance(arm, str) and _NAME.fullmatch(arm) for arm in arms)
            or "again" in arms
        ):
            return False
        blocks, seeds = len(self.order), (self.seeds, self.policy_seeds)
        return (
            all(map(_are, [self.common, *arms.values()], repeat(str)))
            and all(_are(list_, int) and len(list_) == blocks for list_ in seeds)
            and all(_are(row, str) and {*row} <= {*arms} for row in self.order)
            and (text is None or isinstance(text, str))
        )

    def save(self, folder: Path) -> None:
        """Write the design into the folder of the experiment.

        Raises:
            ConfigError: the folder holds another experiment.
        """
        path = folder / FILE
        if path.exists() and (old := Design.load(folder)) != self:
            changed = next(name for name, value in asdict(self).items() if value != asdict(old)[name])
            raise ConfigError(
                f"{folder} holds an experiment that differs in {changed}: repeat its command, or choose another hydra.sweep.dir"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(folder: Path) -> "Design":
        """Return the design of the experiment in a folder.

        Raises:
            ConfigError: its file is damaged, or was written by an earlier version.
        """
        path = folder / FILE
        try:
            found = Design(**json.loads(path.read_text()))
            if not found.well_formed():
                raise ValueError
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{path} is damaged, or of an earlier version: remove it and repeat the command that made it, or rename in it "
                f"key plan to preregistration and arm again to {AA_CONTROL}, with its folder"
            ) from error
        return found


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in cast(list[Any], values))


def design(
    arms: str | Mapping[str, Any] | None,
    *,
    blocks: int,
    root: int,
    aa_control: bool = True,
    preregistration: str | None = None,
    common: Sequence[str] = (),
) -> Design:
    """Return the design of an experiment.

    Args:
        arms: values of one key, each an arm of that name, as in "reward: shaped,sparse"; or overrides by the name of the arm, as
            in {small: agent.hidden=16, large: "agent.hidden=256 agent.slot_width=64"}.
        blocks: runs per arm, at least 1.
        root: root seed of the blocks and of the order.
        aa_control: if true, add an A/A control.
        preregistration: file with the question, outcome and decision rule, of which the experiment keeps a copy.
        common: overrides of all cells, including the choice of the sweep.

    Raises:
        ConfigError: the arguments do not describe an experiment.
    """
    table = _arms(arms)
    if blocks < 1:
        raise ConfigError(f"blocks must be at least 1, got {blocks}: a verdict takes at least 10")
    refuse_seeds([*common, *(override for overrides in table.values() for override in overrides)])
    if aa_control:
        if AA_CONTROL in table:
            raise ConfigError(f"{AA_CONTROL} is the name of the A/A control: rename the arm, or set aa_control=false")
        table[AA_CONTROL] = list(next(iter(table.values())))
    if len(table) < 2:
        raise ConfigError(
            "a comparison needs at least two arms: add arms, as in arms='reward: shaped,sparse', or leave aa_control=true"
        )
    drawn = draw_seeds(root, 2 * blocks)
    names = list(table)
    return Design(
        arms=table,
        seeds=drawn[:blocks],
        policy_seeds=drawn[blocks:],
        order=[[names[i] for i in stream(root, "arm_order", block).permutation(len(names))] for block in range(blocks)],
        common=list(common),
        preregistration=None if preregistration is None else _read_preregistration(preregistration),
    )


def draw_seeds(root: int, count: int) -> list[int]:
    """Return distinct seeds for the blocks of an experiment."""
    return stream(root, "blocks").choice(2**31, size=count, replace=False).tolist()


def refuse_seeds(overrides: Sequence[str]) -> None:
    """Raise ConfigError if an override sets a seed, which blocks draw from root."""
    for override in overrides:
        if root_key(override) in ("seed", "policy_seed"):
            raise ConfigError(f"{override} cannot be set in this sweep, whose seeds are drawn from root: set root instead")


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, as sha256sum prints it."""
    return hashlib.sha256(text.encode()).hexdigest()


def _read_preregistration(path: str) -> str:
    try:
        text = Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"preregistration={path} cannot be read: name a text file, or remove it") from error
    if not text.strip():
        raise ConfigError(f"preregistration={path} is empty: write down the question, the outcome and the margin that decide")
    return text


def _arms(arms: str | Mapping[str, Any] | None) -> dict[str, list[str]]:
    usage = "write arms='reward: shaped,sparse', or arms='{small: agent.hidden=16, large: agent.hidden=256}'"
    if isinstance(arms, str):
        arms = _read_arms(arms, usage)
    if not arms:
        raise ConfigError(f"there are no arms to compare: {usage}")
    table = {str(name): list(map(str, own)) if isinstance(own, list) else str(own).split() for name, own in arms.items()}
    for name, overrides in table.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot name an arm and its folder: use letters, digits and _ . + -")
        if twin := next((other for other, own in table.items() if own == overrides and other != name), None):
            raise ConfigError(f"arms {name} and {twin} have the same overrides, hence the same runs: remove or change one")
    return table


def _read_arms(text: str, usage: str) -> dict[str, Any] | None:
    """Return the arms of "reward: shaped,sparse" or "{small: ..., large: ...}"; None for any other text."""
    try:
        node, read = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader)  # BaseLoader: 1e-3 stays text
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read arms={text!r}: {usage}") from error
    if not isinstance(node, yaml.MappingNode):
        return None
    names = [key.value for key, _ in node.value]
    if len(names) == 1 and isinstance(read[names[0]], str) and not text.lstrip().startswith("{"):
        key, values = names[0], read[names[0]]
        names = [name for value in values.split(",") if (name := value.strip())]
        read = {name: f"{key}={name}" for name in names}
    if twice := next((name for name in names if names.count(name) > 1), None):  # a dict keeps only the last one
        raise ConfigError(f"arms has two arms called {twice}: remove one; an A/A control is added by default")
    return read
