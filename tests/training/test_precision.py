"""Runs in half precision from the command line."""

import yaml

from tests.forked import run_forked
from tests.training.small_run import command, untimed

SHORT = ["updates=1", "task.epoch_samples=256", "task.valid_samples=100"]


def test_a_run_in_bf16(tmp_path):
    done = run_forked(*command(tmp_path / "run", *SHORT, "devices.auto.precision=bf16"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    devices = yaml.safe_load((tmp_path / "run/.hydra/config.yaml").read_text())["devices"]
    assert devices["auto"]["precision"] == "bf16"
    (row,) = untimed(tmp_path / "run")
    assert not {"governor/overflows", "host/loss_scale"} & row.keys(), "there is no loss scale"


def test_a_run_in_fp16_shows_its_loss_scales(tmp_path):
    device = ["devices=[cpu]", "devices.cpu.precision=fp16"]
    done = run_forked(*command(tmp_path / "run", *SHORT, *device), cwd=tmp_path)
    assert done.returncode == 0
    (row,) = untimed(tmp_path / "run")
    assert 1 <= row["host/loss_scale"] <= 4096
    assert row["governor/overflows"] >= 0
    assert row["governor/rollbacks_nonfinite"] == 0
