"""Sweeps: their jobs, and errors before the first one starts."""

from itertools import pairwise

import pytest

from esper.cli.help import yaml_names
from esper.config import ConfigError
from tests.composed import check_sweep

ARMS = ["hydra.sweeper.arms='reward: shaped,sparse'"]
TUNE = ["agent.hidden=16,32"]


@pytest.mark.parametrize("name", yaml_names("sweep"))
def test_every_sweep_composes_to_several_jobs(name: str) -> None:
    jobs = check_sweep([f"sweep={name}", *(TUNE if name == "tune" else ARMS)])
    assert len(jobs) > 1
    assert all(a != b for a, b in pairwise(jobs))


def test_arms_of_the_comparison_share_their_seeds() -> None:
    shaped, sparse, control = check_sweep(["sweep=ab_reward"])
    assert [type(job.reward).__name__ for job in (shaped, sparse, control)] == ["ShapedConfig", "SparseConfig", "ShapedConfig"]
    assert shaped.seed == sparse.seed == control.seed
    assert control.policy_seed is not None


def test_a_sweep_runs_every_combination() -> None:
    jobs = check_sweep(["reward=shaped,sparse", "seed=1,2", "hosts=4"])
    assert [(type(job.reward).__name__, job.seed, job.hosts) for job in jobs] == [
        ("ShapedConfig", 1, 4),
        ("ShapedConfig", 2, 4),
        ("SparseConfig", 1, 4),
        ("SparseConfig", 2, 4),
    ]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("reward=shaped,spars", "no option spars"),
        ("seed=1,-1", "seed must be at least 0"),
        ("sede=1,2", "no key sede"),
        ("seed=1,two", "seed must be a whole number, got two"),
        ("seed=interval(1,2)", "is not a list of values"),
        ("sweep=a", "no option a in group sweep"),
        ("sweep=ab", "there are no arms to compare"),
    ],
)
def test_one_bad_arm_refuses_the_sweep(overrides: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_sweep(overrides.split())
