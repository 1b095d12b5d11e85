"""The calibration of the comparison, in small."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from esper.stats import paired
from esper.stats.intervals import UNKNOWN

SCRIPT = Path(__file__).parents[2] / "experiments" / "2026-11-21_calibration" / "calibration.py"
spec = spec_from_file_location("calibration", SCRIPT)
assert spec is not None
assert spec.loader is not None
calibration = sys.modules["calibration"] = module_from_spec(spec)
spec.loader.exec_module(calibration)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer sign patterns, and no bootstrap, on which no verdict depends."""
    monkeypatch.setattr(paired, "RESAMPLES", 999)
    monkeypatch.setattr(paired, "improvement_interval", lambda *_, **__: UNKNOWN)


@pytest.mark.usefixtures("quick")
def test_wrong_claims_are_rare_and_coverage_is_nominal() -> None:
    whole = calibration.Tally()
    for noise in calibration.NOISES:
        for effect in (0.0, calibration.MARGIN):
            whole.add(calibration.tally(calibration.Setting(noise=noise, effect=effect), experiments=25, seed=1))
    assert whole.experiments == 200
    assert whole.wrong <= 17  # with a chance of 5 % there would be more once in fifty times
    assert whole.coverage == pytest.approx(0.95, abs=0.03)


@pytest.mark.usefixtures("quick")
def test_a_missing_correction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.stats.verdict._holm", lambda p_values: [p / 3 for p in p_values])
    assert calibration.tally(calibration.Setting(arms=4), experiments=60, seed=2).wrong > 12


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("arms", "most"), [(2, 17), (5, 24)])
def test_the_recommended_blocks_give_power(arms: int, most: float) -> None:
    power, blocks = calibration.power_at_recommendation(1.0, 0.7, arms=arms, experiments=60, seed=0)
    assert power > 0.75
    assert blocks < most


@pytest.mark.parametrize("noise", calibration.NOISES)
def test_simulated_runs_have_the_stated_moments(noise: str) -> None:
    setting = calibration.Setting(noise=noise, effect=1.0, correlation=0.5, blocks=40_000, arms=2)
    outcome = calibration.simulate(setting, np.random.default_rng(0))
    fine = np.isfinite(outcome).all(axis=0)
    assert np.nanmean(outcome, axis=1) == pytest.approx([0, 1], abs=0.03)
    assert outcome[0][fine].std() == pytest.approx(1, abs=0.06)
    assert fine.mean() == pytest.approx(0.81 if noise == "failed" else 1, abs=0.01)
    if noise in ("normal", "heavy"):
        assert np.corrcoef(outcome)[0, 1] == pytest.approx(0.5, abs=0.03)
    if noise == "unequal":
        assert outcome[1].std() == pytest.approx(np.sqrt(0.5 + 4 * 0.5), abs=0.05)


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "RESAMPLES", 99)
    monkeypatch.setattr(calibration, "NOISES", ("normal",))
    calibration.main(["1"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].count("|") == shown[2].count("|") == 8
    assert any(line.startswith("Of 8 experiments") for line in shown)
    assert shown[-1].startswith("| 4 | 1 | 0.8 |")
