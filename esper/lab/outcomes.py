"""Outcomes by which the arms of an experiment are compared, and the settings of a comparison."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from esper.config import FORMER, ConfigError, did_you_mean, standalone_agents, unknown_controller
from esper.evaluation.per_host import PREFIX, check_search
from esper.lab.arms import AA_CONTROL
from esper.ranges import check_ranges


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
        OutcomeSpec("return_greedy", "points", "return of the most probable actions, if all arms have the same reward", 1.0),
        OutcomeSpec("learning", "%", "committed accuracy in training, mean over updates", 1.0, bounds=PERCENT),
        OutcomeSpec("rollbacks", "1", "rollbacks per host and episode in training", 0.05, higher_is_better=False),
    )
}
"""Outcomes by name. All but returns are independent of the reward, so that arms with different rewards can be compared. The last
two are means over the updates that telemetry.every selects; the others are measured on held-out hosts, online only if it is the
primary outcome."""
GREEDY = {"accuracy_greedy": "accuracy", "return_greedy": "return"}
"""Outcomes of the most probable actions -> the outcome of sampled actions. They are the same for agents that do not sample."""
RETURNS = ("return", "return_greedy")
"""Outcomes that depend on the reward."""
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


def check_measured(outcome: str, *, without_hosts: Sequence[str], without_samples: str | None) -> None:
    """Check that runs have an outcome.

    Args:
        outcome: its name.
        without_hosts: environments of the runs that train no hosts.
        without_samples: the agent of the first run, if no run has one that samples its actions.

    Raises:
        ConfigError: they lack it.
    """
    if outcome not in RETURNS and without_hosts:
        raise ConfigError(
            f"outcome={outcome} is not measured with env={without_hosts[0]}, which trains no hosts: add outcome=return"
        )
    if outcome in GREEDY and without_samples:
        raise ConfigError(
            f"outcome={outcome} needs an agent that samples its actions, and agent={without_samples} does not: "
            f"choose outcome={GREEDY[outcome]}"
        )


def is_chosen(baseline: str) -> bool:
    """Return whether a baseline is the best of several schedules, nets or trainings."""
    return baseline.startswith(PREFIX) or baseline in (*SEARCHED, STATIC_NET)


def compared(arms: Collection[str], baselines: Sequence[str], against: str | None = None) -> list[str]:
    """Return the arms and baselines that are compared: all but the A/A control.

    Raises:
        ConfigError: a baseline is an arm, or `against` is not among them.
    """
    if clash := next((name for name in baselines if name in arms), None):
        raise ConfigError(f"baselines={clash} is already an arm: remove it from baselines")
    found = [arm for arm in (*arms, *baselines) if arm != AA_CONTROL]
    if against not in (None, *found):
        raise ConfigError(f"against={against} is not an arm: choose from {', '.join(found)}")
    return found


def group_of(key: str) -> str:
    """Return the group of a dotted key."""
    return key.split(".")[0]


def defines_return(key: str) -> bool:
    """Return whether a key of the config affects the definition of the return."""
    return key in REWARD_KEYS or group_of(key) in REWARD_KEYS


def differing_reward(configs: Sequence[Mapping[str, Any]]) -> str | None:
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
    of 4 random schedules, see search_per_host of esper.evaluate. schedule, oracle and static_net are chosen on other hosts.
    They and the searches are chosen by return if the outcome is a return, else by validation accuracy."""
    against: str | None = None
    """Arm that all others are compared with; null compares every pair. Fewer pairs detect smaller differences."""
    strata: list[str] = field(default_factory=lambda: list[str]())
    """Keys in which runs may differ without being different arms, as in strata=[task]. Arms are compared within each stratum, and
    their differences are pooled over strata. A block is then one random seed in one stratum."""
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
