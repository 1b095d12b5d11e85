"""Evaluation of a sandbox run: returns are compared, and quantities that it does not measure are dashes."""

from esper.cli.overrides import check
from esper.evaluate import main
from esper.training.trainer import Trainer


def test_a_sandbox_run_is_evaluated(tmp_path, capsys):
    Trainer(check(["env=sandbox", "steps=6", "hosts=8", "updates=1", "telemetry=quiet"]), tmp_path).run()
    main([f"checkpoint={tmp_path}", "hosts=16", "controllers=[policy,wait]", "schedules=true"])
    lines = capsys.readouterr().out.splitlines()
    assert "points of return" in lines[0]
    assert "accuracy" not in lines[0]
    assert any(line.startswith("policy") and line.split()[-2:] == ["-", "-"] for line in lines)
    assert not any("FLOPs" in line for line in lines), "nothing is known of them"
    assert any(line.startswith("oracle") for line in lines)
    assert any(line.startswith("never growing") for line in lines)
