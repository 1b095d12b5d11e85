"""Costs of runs, against counts by hand."""

import pytest
import torch

from esper.agent.base import Learner
from esper.cli.overrides import check
from esper.evaluation.metered import Metered
from esper.lab.costs import PARTS, run_cost
from esper.task.instances import Split
from esper.training.environment import build_env
from esper.training.play import play

TINY = ["hosts=4", "steps=2", "task.batch_size=1000", "blueprint=[norm]"]


@pytest.mark.parametrize("agent", ["ppo", "ppo_mlp"])
def test_decisions_are_counted_and_not_changed(agent: str) -> None:
    config = check([*TINY, f"agent={agent}", "agent.hidden=32"])
    env = build_env(config, split=Split.HELD_OUT)
    controller = config.agent.build(env.layout, seed=1)
    assert isinstance(controller, Learner)
    metered = Metered(controller)
    env.reset(options={"episode": 0})
    plain = play(env, controller)
    env.reset(options={"episode": 0})
    counted = play(env, metered)
    env.close()
    assert (counted.return_N == plain.return_N).all()
    parts = controller.network.get_submodule("core").parameters()  # pyright: ignore[reportAttributeAccessIssue]
    core = 2 * sum(weight.numel() for weight in parts if weight.dim() == 2)  # two FLOPs per weight and decision
    others = metered.flops / (4 * 2) - core
    assert core == 2 * 8 * 32**2
    assert 0.2 * core < others < 3 * core


def test_a_controller_without_torch_costs_nothing() -> None:
    config = check([*TINY, "agent=heuristic"])
    env = build_env(config, split=Split.HELD_OUT)
    metered = Metered(config.agent.build(env.layout, seed=1))
    env.reset(options={"episode": 0})
    play(env, metered)
    env.close()
    assert metered.flops == 0


def test_the_cost_of_a_run_is_the_sum_over_its_updates() -> None:
    config = {"hosts": 8, "agent.epochs": 4, "buffer.rollouts": 2}
    records = [
        {
            "update": float(update),
            "host/training_flops": 100.0 * update,
            "host/measuring_flops": 10.0,
            "time/rollout_seconds": 2.0,
            "time/update_seconds": 0.5,
            "policy/skipped_fraction": skipped,
        }
        for update, skipped in ((1, 0.0), (2, 0.25))
    ]
    found = run_cost(config, 2, records, policy_flops=5.0)
    # acting 1, evaluations 2, learning 3 x epochs x rollouts in the window x share not skipped
    forwards = (1 + 2 + 3 * 4) + (1 + 2 + 3 * 4 * 2 * 0.75)
    assert found["training"] == 8 * 300
    assert found["measuring"] == 8 * 20
    assert found["policy"] == 8 * 5 * forwards
    assert found["total"] == sum(found[part] for part in PARTS)
    assert found["seconds"] == 5.0
    assert run_cost(config, 4, records, policy_flops=5.0)["total"] == 2 * found["total"]  # every second update has a record
    config["telemetry.every"] = 2  # so the first update has a record only because of an anomaly
    assert run_cost(config, 4, records, policy_flops=5.0)["training"] == 8 * (100 + 200 + 2 * 200)


def test_what_was_not_measured_is_not_zero() -> None:
    record = {"update": 1.0, "time/rollout_seconds": 2.0, "time/update_seconds": 0.5}
    assert run_cost({"hosts": 2}, 1, [record], policy_flops=0.0)["policy"] == 0.0
    found = run_cost({"hosts": 2}, 1, [record], policy_flops=3.0)  # a learner that reports no passes
    assert not torch.tensor([found[name] for name in ("training", "policy", "total")]).isfinite().any()
    assert found["seconds"] == 2.5
