"""Runs of an experiment: arm and block of each, outcomes for the comparison, and warnings about arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from esper.checkpoint import Checkpoints, load_run_and_digest, look_again, update_of
from esper.config import CHECKPOINTS, FORMER, GROUPS, ConfigError, did_you_mean, standalone_agents, unknown_controller
from esper.lab.design import FILE, Design, command_of
from esper.lab.per_host import PREFIX, check_search
from esper.ranges import check_ranges
from esper.telemetry.jsonl import CHECK, changed_update, read_records
from esper.telemetry.text import counted
from esper.training.config_io import flat

UNSHARED = ("seed", "policy_seed", "resume", "telemetry", "checkpoints", "plugins")
"""Keys that never distinguish arms."""


@dataclass(frozen=True, slots=True)
class OutcomeSpec:
    """An outcome by which runs are compared."""

    name: str
    unit: str
    description: str
    margin: float
    """Smallest difference that matters by default, in the unit of differences."""
    higher_is_better: bool = True
    bounds: tuple[float, float] | None = None
    """Lowest and highest possible value, for runs that will never finish; None if there are none."""

    @property
    def difference(self) -> str:
        """Unit of differences and margins: percentages differ by percentage points."""
        return "pp" if self.unit == "%" else self.unit

    @property
    def label(self) -> str:
        """Name in words."""
        return " ".join(reversed(self.name.split("_"))) if self.name.endswith("_greedy") else self.name.replace("_", " ")


PERCENT = (0.0, 100.0)
OUTCOMES = {
    spec.name: spec
    for spec in (
        OutcomeSpec("accuracy", "%", "test accuracy of committed networks, sampled actions", 1.0, bounds=PERCENT),
        OutcomeSpec("online", "%", "test accuracy of the networks in service, mean over host epochs", 1.0, bounds=PERCENT),
        OutcomeSpec("accuracy_greedy", "%", "test accuracy, most probable actions", 1.0, bounds=PERCENT),
        OutcomeSpec("validation", "%", "validation accuracy of committed networks", 1.0, bounds=PERCENT),
        OutcomeSpec("parameters", "1", "parameters of the seeds kept", 20.0, higher_is_better=False),
        OutcomeSpec("flops", "1", "FLOPs per sample of committed networks", 1000.0, higher_is_better=False),
        OutcomeSpec("training_flops", "1", "FLOPs of training a held-out host", 1e8, higher_is_better=False),
        OutcomeSpec("return", "points", "return of sampled actions, if all arms have the same reward", 1.0),
        OutcomeSpec("learning", "%", "committed accuracy in training, mean over updates", 1.0, bounds=PERCENT),
        OutcomeSpec("rollbacks", "1", "rollbacks per host and episode in training", 0.05, higher_is_better=False),
    )
}
"""Outcomes by name. All but return are independent of the reward, so that arms with different rewards can be compared. The last
two are means over the updates that telemetry.every selects; the others are measured on held-out hosts, online only if it is the
primary outcome."""
GREEDY = "accuracy_greedy"
"""Outcome of policies that sample their actions."""
TRAINING = ("learning", "rollbacks")
"""Outcomes that are measured in training."""
REWARD_KEYS = ("reward", "governor", "agent.gamma")
"""Keys that define a return: its terms, the penalty of a rollback, and the discount of potentials."""
SEARCHED = ("schedule", "oracle")
"""Baselines that are chosen on other hosts."""
STATIC_NET = "static_net"
"""Baseline with a seed that is active from initialisation, also chosen on other hosts."""
BASELINES = ("static", *SEARCHED, STATIC_NET)
"""Baselines beside the agents that need no training."""
FIGURES = ("png", "pdf", "svg")
"""File formats of figures."""


def is_chosen(baseline: str) -> bool:
    """Return whether a baseline is the best of several schedules, nets or trainings."""
    return baseline.startswith(PREFIX) or baseline in (*SEARCHED, STATIC_NET)


def defines_return(key: str) -> bool:
    """Return whether a key of the config affects the definition of the return."""
    return key in REWARD_KEYS or group_of(key) in REWARD_KEYS


def paid_by(configs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a key that defines the return and differs between the configs that have it; None if all returns mean the same.

    Args:
        configs: values by dotted key.
    """
    keys = dict.fromkeys(key for config in configs for key in config if defines_return(key))
    return next((key for key in keys if len({str(config[key]) for config in configs if key in config}) > 1), None)


@dataclass(kw_only=True, slots=True)
class CompareConfig:
    """One comparison of the arms of an experiment. The defaults are those of its plan; other values make it exploratory."""

    outcome: str = "accuracy"
    """Primary outcome, the only one that gets a verdict, if it was planned. The others are exploratory."""
    margin: float | None = None
    """Smallest difference that matters, > 0, in the unit of the outcome; null: the default of the outcome. Higher: fewer
    blocks show equivalence."""
    hosts: int = 96
    """Held-out hosts that each policy grows, at least 2. Higher: less noise per run, longer scoring."""
    alpha: float = 0.05
    """Probability of any wrong "better", and that of any wrong "equivalent", over all pairs of arms, in (0, 0.5). Higher: more
    verdicts, and more false ones."""
    baselines: list[str] = field(default_factory=lambda: list[str]())
    """Controllers that also grow the held-out hosts of the first arm and are compared like arms: static, the topologies that its
    policies kept, grown from the start; schedule, the best schedule of one seed, planted in the first epoch; oracle, the best of
    these for each kind of host; static_net, the best network with one seed that is active from initialisation, without
    incubation; agents that need no training; and searches that train every host several times, as in search_random_4 for the best
    of 4 random schedules, see search_per_host of esper.evaluate. schedule, oracle and static_net are chosen on other hosts; these
    and searches by return if it is the outcome, else by validation accuracy."""
    against: str | None = None
    """Arm that all others are compared with; null compares every pair. Fewer pairs detect smaller differences."""
    strata: list[str] = field(default_factory=lambda: list[str]())
    """Keys in which runs may differ without being different arms, as in strata=[task]. Arms are compared within each stratum, and
    their differences are pooled over strata. A block is then one seed in one stratum."""
    workers: int = 1
    """Processes that score runs in parallel, at least 1, each with its share of the cores. Higher: faster, more memory."""
    final: bool = False
    """If true, give a verdict despite missing runs, which will never finish, if it holds whatever their results."""
    figures: str | None = None
    """File format in which figures are also written, for a paper: png, pdf or svg; null for none."""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(unknown_outcome(self.outcome))
        check_ranges("", self, {"(0, inf)": ["margin"], "[2, inf]": ["hosts"], "(0, 0.5)": ["alpha"], "[1, inf]": ["workers"]})
        if self.figures not in (None, *FIGURES):
            raise ValueError(f"figures={self.figures} is not a file format: choose from {', '.join(FIGURES)}")
        refuse_twice(self.baselines)
        known = [*BASELINES, *standalone_agents()]
        for name in self.baselines:
            if name.startswith(PREFIX):
                check_search("baselines", name)
            elif name not in known:
                raise ValueError(unknown_controller("baselines", name, known))


def refuse_twice(baselines: Sequence[str]) -> None:
    """Raise ConfigError if a baseline is named twice."""
    if twice := next((name for name in baselines if baselines.count(name) > 1), None):
        raise ConfigError(f"baselines={twice} is named twice: name it once")


def unknown_outcome(name: str) -> str:
    """Return the error message for an unknown outcome."""
    if FORMER.get(name) in OUTCOMES:
        return f"outcome {name} is now called {FORMER[name]}"
    return f"there is no outcome {name}: choose from {', '.join(OUTCOMES)}{did_you_mean(name, list(OUTCOMES))}"


@dataclass(kw_only=True, slots=True)
class Run:
    """One cell of an experiment: a training run, or a planned one."""

    arm: str
    block: int
    folder: Path
    seed: int = 0
    """Root seed of its random streams."""
    stratum: str = ""
    """Setting within which arms are compared; empty for a single one."""
    update: int = 0
    updates: int = 0
    config: dict[str, Any] = field(default_factory=lambda: dict[str, Any]())
    """Values by dotted key."""
    digest: str = ""
    """SHA-256 in its newest checkpoint."""
    data: str = ""
    """Fingerprint of its data, empty if it trains no hosts."""
    listed: bool = False
    """True if an earlier comparison found it finished."""

    @property
    def finished(self) -> bool:
        return 0 < self.updates <= self.update

    @property
    def status(self) -> str:
        if self.listed and not self.finished:
            return "lost: an earlier comparison found it finished"
        if not self.updates:
            return "never started"
        return "finished" if self.finished else f"stopped after {self.update} of {counted(self.updates, 'update')}"


def measures_hosts(run: Run) -> bool:
    """Return whether the environment of a run trains hosts, which most outcomes need; true for one that is not in the table."""
    kind = GROUPS["env"].get(str(run.config.get("env")))
    return kind is None or kind.has_hosts


def criterion_of(outcome: str, run: Run) -> str:
    """Return by what schedules, nets and searches are chosen if arms are compared by an outcome on the hosts of a run: by return
    for the return, and where hosts have no accuracy; otherwise by validation accuracy of committed networks."""
    return "return" if outcome == "return" or not measures_hosts(run) else "validation"


def find_runs(folders: Sequence[Path], strata: Sequence[str] = ()) -> list[Run]:
    """Return all cells of the experiments and runs in these folders, arm by arm, including planned runs that never started.

    One experiment keeps its own block numbers; otherwise runs with the same seed form a block.

    Args:
        folders: folders of experiments, or of runs.
        strata: keys that distinguish strata, not arms.

    Raises:
        ConfigError: no run is finished, or a cell exists twice.
    """
    found: list[Run] = []
    loose: list[Run] = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder: name the folder of an experiment, or of its runs")
        if (folder / FILE).exists():
            design = Design.load(folder)
            cells = sorted(design.cells, key=lambda cell: list(design.arms).index(cell.arm))
            read = [_read(folder / cell.folder, cell.arm, cell.block, design.seeds[cell.block]) for cell in cells]
            setting = next((run.config for run in read if run.config), dict[str, Any]())
            found += [replace(run, stratum=_setting(run.config or setting, strata)) for run in read]
        else:
            places = sorted({path.parent for path in folder.rglob(CHECKPOINTS) if path.is_dir()})
            begun = [run for run in (_read(place, folder.name, 0) for place in places) if run.updates]
            loose += [replace(run, seed=int(run.config["seed"]), stratum=_setting(run.config, strata)) for run in begun]
    _name_arms(loose, strata)
    _refuse_nothing(found + loose, folders)
    if strata:
        settings = sorted({(run.stratum, run.seed) for run in found + loose})
        numbers = {setting: number for number, setting in enumerate(settings)}
        found = [replace(run, block=numbers[run.stratum, run.seed]) for run in found + loose]
    elif loose or len(folders) > 1:
        found = [replace(run, block=run.seed) for run in found + loose]
    there: dict[tuple[str, int], Run] = {}
    for run in found:
        twin = there.setdefault((run.arm, run.block), run)
        if twin is not run:
            keys = [key for key in run.config if str(run.config[key]) != str(twin.config.get(key))]
            aside = f", which differ in {keys[0]}" if keys else ""
            raise ConfigError(
                f"{run.folder} and {twin.folder} are both block {run.block} of arm {run.arm}{aside}: name only one of them"
            )
    return found


def _refuse_nothing(runs: Sequence[Run], folders: Sequence[Path]) -> None:
    """Raise ConfigError, with what to do about it, if no run is finished."""
    if any(run.finished for run in runs):
        return
    where = f"{', '.join(map(str, folders))}: there is no finished run"
    if planned := next((folder for folder in folders if (folder / FILE).exists()), None):
        command = command_of(Design.load(planned), planned)
        raise ConfigError(f"{where} among the {len(runs)} planned ones, so there is nothing to compare: continue with {command}")
    raise ConfigError(
        f"{where} in these folders, so there is nothing to compare: name the folder of an experiment, as in python -m "
        "esper.compare multirun/ab/2026-11-21_12-00-00, or start one with python -m esper.train -m sweep=ab"
    )


def _read(folder: Path, arm: str, block: int, seed: int = 0) -> Run:
    return look_again(lambda: _read_newest(folder, arm, block, seed))  # the run may go on


def _read_newest(folder: Path, arm: str, block: int, seed: int) -> Run:
    newest = Checkpoints(folder / CHECKPOINTS).latest()
    if newest is None:
        return Run(arm=arm, block=block, folder=folder, seed=seed)
    state, digest = load_run_and_digest(newest)
    plain = state["config"]
    return Run(
        arm=arm,
        block=block,
        folder=folder,
        seed=seed,
        update=update_of(newest),
        updates=plain["values"]["updates"],
        config=flat(plain),
        digest=digest,
        data=str(state["hparams"].get("data", "")),
    )


def _setting(config: Mapping[str, Any], strata: Sequence[str]) -> str:
    """Return the stratum of a run.

    Raises:
        ConfigError: its config has no such key.
    """
    for key in strata:
        if config and key not in config:
            raise ConfigError(f"strata={key} is not a key of these runs: choose one in which they differ, such as task")
    return ",".join(str(config.get(key)) for key in strata)


_TEACHER = "agent.teacher"


def _name_arms(runs: Sequence[Run], strata: Sequence[str]) -> None:
    """Name the arms of runs without a design by the values in which they differ, or else by their folder."""
    aside = (*UNSHARED, *strata)
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in aside and group_of(key) not in aside)
    differ = [key for key in keys if len({str(run.config.get(key)) for run in runs}) > 1]
    seeds_and_teachers = {(run.seed, run.config.get(_TEACHER)) for run in runs}
    if _TEACHER in differ and len({seed for seed, _ in seeds_and_teachers}) == len(seeds_and_teachers):
        differ.remove(_TEACHER)  # each seed has its own, as in agent.teacher='multirun/teachers/${seed}'
    # Different options of a group have different keys: name the option, and a key only if it differs within an option.
    chosen = [key for key in differ if "." not in key or group_of(key) not in differ or _differs_in_choice(runs, key)]
    for run in runs:
        parts = [str(run.config[key]) if key.isalpha() else f"{key}={run.config[key]}" for key in chosen if key in run.config]
        run.arm = ",".join(parts) or run.arm


def group_of(key: str) -> str:
    """Return the group of a dotted key."""
    return key.split(".")[0]


def _differs_in_choice(runs: Sequence[Run], key: str) -> bool:
    values = {(str(run.config.get(group_of(key))), str(run.config.get(key))) for run in runs}
    return len(values) > len({choice for choice, _ in values})


def records_of(run: Run) -> list[dict[str, float]]:
    """Return the metrics and times of a run, one record per update.

    Raises:
        ConfigError: a file cannot be read, or was changed after training.
    """
    records: dict[float, dict[str, float]] = {}
    metrics, times = (run.folder / f"{name}.jsonl" for name in ("metrics", "times"))
    for path in (metrics, times):
        try:
            found = read_records(path)
            if run.finished and (not found or found[-1]["update"] < run.updates):
                raise ValueError(f"it ends before update {run.updates}")
            for record in found:
                records.setdefault(record["update"], {}).update(record)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): remove the run, or train it again") from error
    if update := changed_update(metrics, list(records.values()), run.update):
        raise ConfigError(
            f"{metrics} was changed after training: update {update} does not have its checksum in {times.name}; restore it, or "
            "remove the run and train it again"
        )
    return [{tag: value for tag, value in record.items() if tag != CHECK} for record in records.values()]
