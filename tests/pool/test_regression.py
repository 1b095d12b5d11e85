"""Hosts that predict numbers: losses, R2 and its errors against scalar float64 oracles, fused against single hosts."""

import copy
import math

import numpy as np
import pytest
import torch

from esper.growth.objective import CLASSIFICATION, Numbers, RegressionLoss
from esper.hosts.mlp import MLPConfig
from esper.lifecycle.roles import Blend, Roles
from esper.optimisers.sgd import SGDConfig
from esper.pool.host_sampler import EpochOrder
from esper.pool.shard import Shard
from esper.pool.sums import Sums, measurement, sums_of
from esper.seeds.blueprints.plain import NormConfig
from esper.task.diabetes import DiabetesConfig
from esper.task.instances import Split

CPU, HOSTS, OPTIMISER = torch.device("cpu"), 3, SGDConfig(max_norm=100.0)
LOSSES = [Numbers(), Numbers(RegressionLoss.huber, 0.3)]


def scalar_loss(objective, y, f):
    """One sample in plain Python: the loss, and its derivative by the prediction."""
    error = f - y
    if objective.loss is RegressionLoss.mse:
        return error**2, 2 * error
    if abs(error) <= objective.delta:
        return error**2 / 2, error
    return objective.delta * (abs(error) - objective.delta / 2), math.copysign(objective.delta, error)


@pytest.mark.parametrize("objective", LOSSES, ids=lambda one: one.loss)
def test_losses_and_gradients_match_a_scalar_oracle(objective):
    outputs = torch.randn(2, 7, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = objective.mean_losses(outputs, targets)
    found.sum().backward()
    pairs = [
        [scalar_loss(objective, y, f) for y, f in zip(*rows, strict=True)]
        for rows in zip(targets.tolist(), outputs[..., 0].tolist(), strict=True)
    ]
    wanted, slope = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
    torch.testing.assert_close(found.detach(), wanted.mean(1), rtol=1e-12, atol=0)
    torch.testing.assert_close(outputs.grad[..., 0], slope / 7, rtol=1e-12, atol=0)
    chance = np.mean([scalar_loss(objective, y, targets[0].mean().item())[0] for y in targets[0].tolist()])
    assert objective.chance_loss(targets[0], 1) == pytest.approx(chance, rel=1e-12)


def measured(y, predictions, batch=50, weight=None):
    """Measure predictions `[V, n]` of one member batch by batch."""
    objective, parts, y = Numbers(), [], torch.from_numpy(y)
    for start in range(0, len(y), batch):
        rows = slice(start, start + batch)
        y_MBT = y[rows].view(1, -1, 1)
        outputs = torch.from_numpy(predictions[:, rows]).view(len(predictions), 1, -1, 1)
        points = torch.stack([objective.points(one, y_MBT, objective.mean(y)) for one in outputs])
        loss = torch.stack([objective.losses(one, y_MBT.flatten(1)).view_as(y_MBT) for one in outputs])
        parts.append(sums_of(points, loss, objective.scale(y_MBT, objective.mean(y)), None if weight is None else weight[rows]))
    return measurement(Sums.total(parts), objective.floor)


def r2(y, f):
    """R2 [pp] in plain Python."""
    mean = math.fsum(y) / len(y)
    return 100 * (1 - math.fsum((a - b) ** 2 for a, b in zip(y, f, strict=True)) / math.fsum((a - mean) ** 2 for a in y))


def test_r2_and_the_errors_of_its_differences_match_an_oracle_and_a_bootstrap():
    rng = np.random.default_rng(0)
    y = rng.gamma(2.0, 1.5, 300) + 4  # skewed, and far from 0
    predictions = np.stack([y + rng.normal(0, scale, 300) for scale in (0.8, 1.3)] + [np.full(300, y.mean())])
    found = measured(y, predictions)
    np.testing.assert_allclose(found.accuracy_VM[:, 0], [r2(y, f) for f in predictions], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found.loss_VM[:, 0], [np.mean((y - f) ** 2) for f in predictions], rtol=1e-6)
    draws = rng.integers(300, size=(4000, 300))
    drawn = np.array([[1 - ((y[d] - f[d]) ** 2).sum() / ((y[d] - y[d].mean()) ** 2).sum() for f in predictions] for d in draws])
    assert found.error_VM[0, 0] == 0
    np.testing.assert_allclose(found.error_VM[1:, 0], 100 * np.std(drawn[:, 1:] - drawn[:, :1], axis=0), rtol=0.08)
    np.testing.assert_allclose(found.covariance_VVM[:2, :2, 0], 1e4 * np.cov(drawn[:, :2].T), rtol=0.12)


def test_r2_below_the_floor_and_non_finite_predictions_count_as_minus_100():
    rng = np.random.default_rng(1)
    y = rng.normal(size=100)
    good = y + rng.normal(0, 0.5, 100)
    odd = good.copy()
    odd[7] = np.nan
    found = measured(y, np.stack([good, good + 1e3, odd, np.full(100, np.inf)]))
    alone = measured(y, good[None])
    assert found.accuracy_VM[:, 0].tolist() == [alone.accuracy_VM[0, 0], -100.0, -100.0, -100.0]
    assert np.isfinite(found.error_VM).all()
    np.testing.assert_allclose(found.error_VM[1:, 0], math.sqrt(alone.covariance_VVM[0, 0, 0]), rtol=1e-5)
    assert found.covariance_VVM[0, 0, 0] == pytest.approx(alone.covariance_VVM[0, 0, 0], rel=1e-12)
    assert np.abs(found.covariance_VVM[1:, :, 0]).max() < 1e-9 * found.covariance_VVM[0, 0, 0]


@pytest.mark.parametrize("loss", RegressionLoss)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_fused_hosts_match_single_hosts(loss, micro_batches):
    task = DiabetesConfig(objective=loss, delta=0.5 if loss == "huber" else 1.0).build(MLPConfig())
    hosts = [task.host(0, Split.TRAINING, 0, index) for index in range(HOSTS)]
    config = SGDConfig(max_norm=100.0, micro_batches=micro_batches)
    shard = Shard(hosts, (NormConfig(),), task.data, task, CPU, optimiser=config)
    shard.arrange(empty_roles())
    order = np.stack([np.random.default_rng(host).permutation(len(task.data.train_y))[:96] for host in range(HOSTS)])
    report = shard.train_epoch(EpochOrder(order))
    seen = shard.validate(np.zeros((1, HOSTS, 2), np.float32), test=True)
    for index, host in enumerate(hosts):
        alone, losses = copy.deepcopy(host), []
        optimiser = torch.optim.SGD(alone.parameters(), config.learning_rate, config.momentum, weight_decay=config.weight_decay)
        for rows in torch.from_numpy(order[index]).split(task.batch_size):
            f, y = alone(task.data.train_x[rows])[:, 0], task.data.train_y[rows]
            kind = (
                torch.nn.functional.mse_loss(f, y)
                if loss is RegressionLoss.mse
                else torch.nn.functional.huber_loss(f, y, delta=0.5)
            )
            optimiser.zero_grad()
            kind.backward()
            optimiser.step()
            losses.append(kind.item())
        assert report.loss_M[index] == pytest.approx(np.mean(losses), rel=1e-4)
        f = alone.eval()(task.data.test_x)[:, 0].double().tolist()
        assert seen.accuracy_VM[0, index] == pytest.approx(r2(task.data.test_y.double().tolist(), f), abs=1e-2)


def empty_roles():
    """Return roles without seeds."""
    shape = (HOSTS, 2)
    no = np.zeros(shape, np.bool_)
    return Roles(
        blueprint=np.full(shape, -1),
        alpha=np.zeros(shape, np.float32),
        blend=np.full(shape, int(Blend.ADD)),
        behind=no,
        open=no,
        learns=no,
        fossil=no,
    )


def test_classes_have_no_floor_and_their_scale_is_one():
    assert CLASSIFICATION.scale(torch.zeros(3), 0.0) is None
    assert CLASSIFICATION.chance_loss(torch.zeros(3), 10) == math.log(10)
