"""The keys of sweeps: experiments in blocks and tunings, and those of the Ray launcher."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, slots=True)
class BlocksConfig:
    """An experiment in blocks with its analysis plan, run by `sweep=ab`; see `esper.lab.design`. Only `blocks` may change
    after the first run has started."""

    _target_: str = "hydra_plugins.esper_sweeps.BlockSweeper"
    arms: Any = None
    """Arms to compare: values of one key, as in 'reward: shaped,sparse', or overrides by the name of the arm."""
    blocks: int = 12
    """Runs per arm, at least 1. Higher: smaller differences are detected. A verdict requires at least 10."""
    root: int = 0
    """Root seed of the blocks and of the order of runs, at least 0. Experiments with the same root have the same blocks: new
    evidence needs another root."""
    aa_control: bool = True
    """If true, run the first arm a second time with another policy seed, as an A/A control. Its agent must use that seed."""
    outcome: str = "accuracy"
    """Primary outcome, the only one on which esper.compare gives a verdict."""
    margin: float | None = None
    """Smallest difference that matters, > 0, in the unit of the outcome; null: the default of the outcome. Higher: fewer blocks
    show equivalence."""
    alpha: float = 0.05
    """Probability of any wrong "better", and that of any wrong "equivalent", over all pairs of arms and all looks, in (0, 0.5).
    Higher: more verdicts, and more false ones."""
    score_hosts: int = 96
    """Held-out hosts that each policy grows, at least 2. Higher: less noise per run, longer scoring."""
    score_overrides: Any = None
    """Overrides with which all policies are evaluated, as in 'task=mnist5k steps=40', to test them on other hosts than those
    of their training; null: none, so that held-out hosts are like those of training."""
    baselines: list[str] = field(default_factory=lambda: list[str]())
    """Other controllers that are compared like arms, as in esper.compare."""
    against: str | None = None
    """Arm that all others are compared with; null compares every pair. Fewer pairs detect smaller differences."""
    looks: list[int] = field(default_factory=lambda: list[int]())
    """Numbers of blocks at which a verdict may be given, increasing, each at least 10, as in looks=[12,24]; []: at `blocks` or
    at 10, whichever is larger. More looks: an earlier end if the difference is large, and slightly less power at the last."""
    question: str | None = None
    """Text for the report: why the experiment is run."""
    vary_split: bool = False
    """If true, every block divides the data into training, validation and test samples in its own way (task.split_seed), so that
    verdicts are not about a single split."""
    pilot: str | None = None
    """Folder of an earlier experiment that was compared. Its outcomes tell the power of this one; null: typical values."""
    plan: str | None = None
    """YAML file with any of these keys. Those of the command line take precedence."""


TUNE_SWEEPER = "hydra_plugins.esper_sweeps.TuneSweeper"


@dataclass(kw_only=True, slots=True)
class TuneConfig:
    """A tuning of the swept keys, compared with a baseline, run by `sweep=tune`; see `esper.lab.tuning`."""

    _target_: str = TUNE_SWEEPER
    trials: int = 20
    """Sets of values to try, at least 1. Higher: a better result, longer tuning."""
    blocks: int = 3
    """Runs per set of values, and of the baseline, on the same random seeds, at least 1. Higher: less noise per trial."""
    root: int = 0
    """Root seed of the blocks and of the proposed values, at least 0. An experiment with the same root has other blocks."""
    outcome: str = "validation"
    """Outcome to optimise, one of those of esper.compare. Values chosen by test accuracy can no longer be evaluated by it."""
    score_hosts: int = 96
    """Held-out hosts that each policy grows, at least 2. Higher: less noise per run, longer scoring."""
    at_once: int = 1
    """Number of trials that start together, at least 1, for launchers that run more than `blocks` runs at a time. Higher: each
    proposal is based on fewer results."""


SWEEPS: dict[str, type] = {"ab": BlocksConfig, "tune": TuneConfig}
"""Prefix of a sweep's name -> its keys, typed beside those of the runs, as in blocks=12."""


@dataclass(kw_only=True, slots=True)
class RayConfig:
    """Config of hydra/launcher=esper_ray."""

    _target_: str = "hydra_plugins.esper_sweeps.RayLauncher"
    address: str | None = None
    """Address of the cluster for ray.init; null starts one on this machine, which ends with the command."""
    cpus: int = 1
    """Cores per run, at least 1. Ray runs as many runs at a time as fit."""
    gpus: float = 0.0
    """GPUs per run, at least 0; 0.5 lets two runs share one."""
