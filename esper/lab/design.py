"""Which runs an experiment consists of: arms times blocks, in an order that no drift can favour.

A block is one run of every arm from one seed, drawn once from the root: all of them share every random stream that their configs
do not change. Blocks come one after another, and the order of arms within each is drawn, so that a machine that warms up or gets
busy meets all arms alike. The first arm is run again with another first policy, unless that is switched off: what it differs from
itself by is what a difference of nothing looks like.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from esper.checkpoint import CheckpointError, Checkpoints, load, update_of, write_whole
from esper.cli.overrides import quoted
from esper.config import CHECKPOINTS, ConfigError
from esper.seeding import stream

FILE = "design.json"
"""In the folder of an experiment."""
AGAIN = "again"
"""Name of the arm that repeats the first one."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run."""

    arm: str
    block: int
    words: tuple[str, ...]
    """What it is trained with, beside what all cells share."""

    @property
    def folder(self) -> str:
        """Within that of the experiment."""
        return f"{self.arm}/block-{self.block:02d}"

    def pending(self, experiment: Path) -> list[str] | None:
        """Words that run it, or go on with what was begun; None where it is done.

        Args:
            experiment: folder of the experiment.

        Raises:
            ConfigError: what was begun cannot be read.
        """
        place = experiment / self.folder
        where = f"hydra.sweep.subdir={self.folder}"
        try:
            newest = Checkpoints(place / CHECKPOINTS).latest()
        except CheckpointError as error:
            raise ConfigError(
                f"{place} cannot go on, for its checkpoints are damaged: remove it, and repeat the command"
            ) from error
        if newest is None:
            return [*self.words, where]
        if update_of(newest) >= load(newest)["config"]["values"]["updates"]:
            return None
        return [*(word for word in self.words if word.startswith("sweep=")), f"resume={quoted(str(place))}", where]


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """An experiment before it is run."""

    arms: dict[str, list[str]]
    """Words of the command line that make each arm, by its name."""
    seeds: list[int]
    """Of the blocks."""
    policy_seeds: list[int]
    """Of the repeated arm's first policies."""
    order: list[list[str]]
    """Arms of each block, as they are run."""
    common: list[str]
    """Words that all cells share."""
    plan: str | None = None
    """What was written down before anything ran: question, outcome, rule; None where nothing was."""

    @property
    def cells(self) -> list[Cell]:
        """All runs, in order."""
        return [self._cell(arm, block) for block, arms in enumerate(self.order) for arm in arms]

    def firsts(self) -> list[Cell]:
        """One cell of every arm."""
        return [self._cell(arm, 0) for arm in self.arms]

    def _cell(self, arm: str, block: int) -> Cell:
        words = [*self.common, *self.arms[arm], f"seed={self.seeds[block]}"]
        if arm == AGAIN:
            words.append(f"policy_seed={self.policy_seeds[block]}")
        return Cell(arm=arm, block=block, words=tuple(words))

    def save(self, folder: Path) -> None:
        """Writes it into the folder of the experiment; what was designed there before must be the same.

        Raises:
            ConfigError: another experiment is in this folder.
        """
        path = folder / FILE
        if path.exists() and (old := Design.load(folder)) != self:
            changed = next(name for name, value in asdict(self).items() if value != asdict(old)[name])
            raise ConfigError(
                f"{folder} holds an experiment with other {changed}: repeat its command, or choose another hydra.sweep.dir"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(folder: Path) -> "Design":
        """The experiment that is in a folder.

        Raises:
            ConfigError: its file is damaged.
        """
        try:
            return Design(**json.loads((folder / FILE).read_text()))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{folder / FILE} is damaged: remove it, and repeat the command that made it") from error


def design(
    arms: str | Mapping[str, Any] | None,
    *,
    blocks: int,
    root: int,
    again: bool = True,
    plan: str | None = None,
    common: Sequence[str] = (),
) -> Design:
    """An experiment.

    Args:
        arms: as in "reward: shaped,sparse", the values of one key, each an arm of that name; or the words of each arm by its
            name, as in {small: agent.hidden=16, large: "agent.hidden=256 agent.slot_width=64"}.
        blocks: runs of each arm, 1 or more.
        root: of the seeds, which are drawn from it, and of the order.
        again: repeat the first arm with another first policy?
        plan: file in which is written what is asked and how it will be judged, of which the experiment keeps a copy.
        common: words for all cells, the choice of the sweep among them.

    Raises:
        ConfigError: that is no experiment.
    """
    table = _arms(arms)
    if blocks < 1:
        raise ConfigError(f"blocks must be 1 or more, got {blocks}: a verdict takes at least 10")
    for word in [*common, *(word for words in table.values() for word in words)]:
        if word.partition("=")[0].lstrip("+~") in ("seed", "policy_seed"):
            raise ConfigError(f"{word} cannot be set in this sweep, whose blocks have seeds of their own: set root instead")
    if again:
        if AGAIN in table:
            raise ConfigError(
                f"an arm cannot be called {AGAIN}, which is the first arm's repetition: rename it, or set again=false"
            )
        table[AGAIN] = list(next(iter(table.values())))
    if len(table) < 2:
        raise ConfigError("one arm is no comparison: name more arms, as in arms='reward: shaped,sparse', or leave again=true")
    drawn = stream(root, "blocks").choice(2**31, size=2 * blocks, replace=False).tolist()
    names = list(table)
    order = [[names[i] for i in stream(root, "arm_order", block).permutation(len(names))] for block in range(blocks)]
    return Design(
        arms=table, seeds=drawn[:blocks], policy_seeds=drawn[blocks:], order=order, common=list(common), plan=_plan(plan)
    )


def fingerprint(plan: str) -> str:
    """SHA-256 of a plan, as sha256sum prints it of the file."""
    return hashlib.sha256(plan.encode()).hexdigest()


def _plan(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        text = Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"plan={path} cannot be read: name a text file, or leave plan out") from error
    if not text.strip():
        raise ConfigError(f"plan={path} is empty: write down what is asked, and by which outcome and margin it is judged")
    return text


def _arms(arms: str | Mapping[str, Any] | None) -> dict[str, list[str]]:
    usage = "write arms='reward: shaped,sparse', or arms='{small: agent.hidden=16, large: agent.hidden=256}'"
    if isinstance(arms, str):
        arms = _read_arms(arms, usage)
    if not arms:
        raise ConfigError(f"there are no arms to compare: {usage}")
    table: dict[str, list[str]] = {}
    for name, words in arms.items():
        if not _NAME.fullmatch(str(name)):
            raise ConfigError(f"{name!r} cannot name an arm, and its folder: use letters, digits and _ . + -")
        if not isinstance(words, str | Sequence):
            raise ConfigError(f"arm {name} has no words but {words!r}: {usage}")
        if str(name) in table:
            raise ConfigError(f"arms name {name} twice: name it once, its repetition comes by itself")
        table[str(name)] = words.split() if isinstance(words, str) else list(map(str, words))
        if twin := next((other for other, own in table.items() if own == table[str(name)] and other != str(name)), None):
            raise ConfigError(f"arms {twin} and {name} have the same words, and so the same runs: leave one out, or change it")
    return table


def _read_arms(text: str, usage: str) -> dict[Any, Any] | None:
    """The arms of "reward: shaped,sparse", or of "{small: ..., large: ...}"; None where it is neither."""
    try:
        node, read = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read arms={text!r}: {usage}") from error
    if not isinstance(node, yaml.MappingNode) or not isinstance(read, dict):
        return None
    pairs = [(key.value, value) for key, value in node.value]
    names = [name for name, _ in pairs]
    short = len(pairs) == 1 and isinstance(pairs[0][1], yaml.ScalarNode) and not text.lstrip().startswith("{")
    if short:
        key, values = pairs[0]
        names = [name for value in values.value.split(",") if (name := value.strip())]
        read = {name: f"{key}={name}" for name in names}
    if len(set(names)) < len(names):  # of which Python's table, and yaml, would keep the last
        raise ConfigError(f"arms={text!r} names an arm twice: name it once, its repetition comes by itself")
    return read
