"""The search space of a tuning, as typed on the command line."""

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from esper.cli.command import spelled_out
from esper.config import ConfigError
from esper.lab.design import draw_seeds
from esper.lab.search_space import BASELINE, search_space
from esper.sweeps import TuneConfig
from tests.composed import check_sweep

RATE, HIDDEN = "agent.learning_rate=tag(log, interval(1e-4, 1e-2))", "agent.hidden=32,64"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval(0.5, 1)", FloatDistribution(0.5, 1.0)),
        ("tag(log, interval(1e-4, 1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("int(interval(1, 8))", IntDistribution(1, 8)),
        ("tag(log, int(interval(1, 8)))", IntDistribution(1, 8, log=True)),
        ("range(1, 9, 2)", IntDistribution(1, 7, step=2)),
        ("range(0.5, 1.0, 0.1)", FloatDistribution(0.5, 0.9, step=0.1)),
        ("choice(32, 64)", CategoricalDistribution(["32", "64"])),
        ("[r0c0,r0c1],[r0c0]", CategoricalDistribution(["[r0c0,r0c1]", "[r0c0]"])),
    ],
)
def test_hydra_sweeps_are_optuna_distributions(text: str, expected: object) -> None:
    assert search_space(TuneConfig(), [f"a.b={text}"]).params == {"a.b": expected}


def test_every_arm_runs_on_every_seed() -> None:
    space = search_space(TuneConfig(blocks=2), ["hosts=4", HIDDEN])
    cells = space.cells({BASELINE: [], "trial-000": ["agent.hidden=32"]})
    assert [(cell.arm, cell.block) for cell in cells] == [(BASELINE, 0), ("trial-000", 0), (BASELINE, 1), ("trial-000", 1)]
    assert cells[3].overrides == ("hosts=4", "agent.hidden=32", f"seed={space.seeds[1]}")
    assert not {*search_space(TuneConfig(root=1), [HIDDEN]).seeds} & {*space.seeds}
    assert not {*draw_seeds(0, 100)} & {*space.seeds}, "an experiment of the same root tests on new seeds"


@pytest.mark.parametrize(
    ("overrides", "config", "sentence"),
    [
        (["hosts=4"], {}, "there is nothing to tune: sweep over a key"),
        (["agent.gamma=interval(0.9, 0.5)"], {}, r"cannot tune agent.gamma=interval\(0.9, 0.5\) .`low <= high` must hold"),
        (["agent.gamma=tag(log, interval(0, 1))"], {}, "`low > 0` must hold"),
        (["agent.gamma=tag(log, range(1, 9, 2))"], {}, "step"),
        (["agent.hidden=range(3, 1)"], {}, "it names no values"),
        (["agent=glob(*)"], {}, "it names no values"),
        ([HIDDEN, "agent.hidden=range(1, 3)"], {}, "agent.hidden is set twice: keep only agent.hidden=32,64"),
        ([HIDDEN, "agent.hidden=3"], {}, "agent.hidden is set twice"),
        (["seed=range(1, 3)"], {}, "set root instead"),
        ([HIDDEN, "policy_seed=3"], {}, "set root instead"),
        ([HIDDEN], {"trials": 0}, "trials must be at least 1, got 0"),
        ([HIDDEN], {"blocks": 0}, "blocks must be at least 1, got 0"),
        ([HIDDEN], {"at_once": 0}, "at_once must be at least 1, got 0"),
        ([HIDDEN], {"score_hosts": 1}, "score_hosts must be at least 2, got 1"),
    ],
)
def test_invalid_tunings_are_refused(overrides: list[str], config: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        search_space(TuneConfig(**config), overrides)


def test_every_end_is_checked_before_the_first_run() -> None:
    jobs = check_sweep(spelled_out(["sweep=tune", HIDDEN, RATE, "blocks=2", "hosts=4"]))
    agents = [(job.agent.hidden, job.agent.learning_rate) for job in jobs]  # pyright: ignore[reportAttributeAccessIssue]
    plain = agents[0]
    assert agents[1:] == [(32, plain[1]), (64, plain[1]), (plain[0], 1e-4), (plain[0], 1e-2)]
    assert {job.hosts for job in jobs} == {4}
    for override, sentence in (
        ("agent.hiden=32,64", "did you mean hidden"),
        ("agent.gamma=interval(0.5, 1.5)", "agent.gamma"),
        ("hots=4", "there is no key hots"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check_sweep(["sweep=tune", RATE, override])
