"""A training step that is replayed has the numbers of one that is not. On a CPU, a stand-in repeats the work itself."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.growth.loss import LastSegment
from esper.growth.network import GrowingNetwork
from esper.lifecycle.roles import Incubation, Roles
from esper.notices import UserNotice
from esper.optimisers.adamw import AdamWConfig
from esper.optimisers.base import OptimiserConfig
from esper.optimisers.schedules import RateSchedule
from esper.optimisers.sgd import SGDConfig
from esper.pool.host_sampler import EpochOrder
from esper.pool.lane import Lane
from esper.pool.shard import Shard
from esper.seeds.blueprints.cnn import ConvLightConfig
from esper.seeds.blueprints.plain import NormConfig
from esper.task.instances import Split

BLUEPRINTS = (NormConfig(), ConvLightConfig())
BLUEPRINT = np.array([[1, -1, 0], [-1, -1, -1], [-1, 1, -1]])
EPOCHS = 4


class Recorder(Lane):
    """A lane whose graphs are the work itself."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.graphs, self.captures, self.replays = True, 0, 0

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def roles(epoch: int, incubation: Incubation) -> Roles:
    """Return roles that are those of epoch 0 in epoch 1, and differ later."""
    live, nothing = BLUEPRINT >= 0, np.zeros_like(BLUEPRINT, dtype=np.bool_)
    behind = live & (epoch < 2) & (incubation is not Incubation.none)
    alpha = np.where(live & ~behind, 0.3 + 0.1 * epoch, 0.0).astype(np.float32)
    return Roles(
        blueprint=BLUEPRINT, blend=np.zeros_like(BLUEPRINT), alpha=alpha, behind=behind, open=~behind, learns=live, fossil=nothing
    )


def trained(
    small_task, lane: Lane | None, optimiser: OptimiserConfig, incubation: Incubation, *, frozen: bool = False
) -> tuple[list[np.ndarray], dict[str, torch.Tensor]]:
    """Return the reports of some epochs, and the state of the hosts afterwards."""
    hosts = [small_task.host(0, Split.TRAINING, 0, index) for index in range(3)]
    shard = Shard(
        hosts, BLUEPRINTS, small_task.data, small_task, torch.device("cpu"), optimiser=optimiser, incubation=incubation,
        frozen=frozen, lane=lane,
    )  # fmt: skip
    for member, slot in np.argwhere(BLUEPRINT >= 0):
        shard.plant(int(member), int(slot), int(BLUEPRINT[member, slot]), (0, "seed", int(member)))
    reports = list[np.ndarray]()
    for epoch in range(EPOCHS):
        shard.arrange(roles(epoch, incubation))
        samples = np.stack([np.random.default_rng((host, epoch)).permutation(96) for host in range(3)])
        report = shard.train_epoch(EpochOrder(samples, time=epoch, epochs=EPOCHS))
        reports += [report.loss_M, report.host_norm_M, report.seed_norm_MS]
    return reports, shard.network.rows()


OPTIMISERS = {
    "sgd": SGDConfig(schedule=RateSchedule.cosine, warmup=0.2),
    "adamw": AdamWConfig(schedule=RateSchedule.one_cycle),
    "parts": SGDConfig(micro_batches=2),
}


@pytest.mark.parametrize("incubation", Incubation)
@pytest.mark.parametrize(
    ("optimiser", "frozen"),
    [
        *((name, False) for name in OPTIMISERS),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in ("sgd", "parts")),  # AdamW for both includes seeds
    ],
)
def test_replayed_steps_have_the_bits_of_others(small_task, optimiser, incubation, frozen, monkeypatch) -> None:
    monkeypatch.setattr(small_task, "batch_size", 12)
    given, lane = OPTIMISERS[optimiser], Recorder()
    plain, state = trained(small_task, None, given, incubation, frozen=frozen)
    again, found = trained(small_task, lane, given, incubation, frozen=frozen)
    for one, other in zip(plain, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert state.keys() == found.keys()
    assert all(found[name].equal(part) for name, part in state.items())
    # 8 batches: the first one after roles have changed and the last one of an epoch are not replayed.
    same_roles = incubation is not Incubation.none
    assert (lane.captures, lane.replays) == (3 + (not same_roles), 4 * 6 + same_roles)


def test_a_step_that_cannot_be_captured_runs_without_and_says_so_once(small_task, monkeypatch) -> None:
    """The capture fails in the closed-loop pass, in which the hosts are in evaluation mode: they leave it all the same."""
    backward, losses, passes = GrowingNetwork.backward, LastSegment.losses, list[LastSegment]()

    class Refusing(Recorder):
        def captured(self, work: Callable[[], object]) -> Callable[[], None]:
            self.captures += 1
            with monkeypatch.context() as capture:
                capture.setattr(GrowingNetwork, "backward", without_effect)
                capture.setattr(LastSegment, "losses", refused)
                work()
            raise AssertionError("the work was captured")

    def without_effect(network: GrowingNetwork, *given, **keys) -> torch.Tensor:
        statistics = [(one, one.clone()) for one in network.host.buffers.values()]
        try:
            return backward(network, *given, **keys)
        finally:  # a capture computes nothing
            for one, before in statistics:
                one.copy_(before)

    def refused(last: LastSegment, *given, **keys) -> torch.Tensor:
        passes.append(last)
        if len(passes) == 2:  # the main pass is the first
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return losses(last, *given, **keys)

    monkeypatch.setattr(small_task, "batch_size", 12)
    lane, given = Refusing(), SGDConfig()
    with pytest.warns(
        UserNotice, match=r"cannot be captured as a CUDA graph \(operation not permitted when stream is capturing\)"
    ):
        _, found = trained(small_task, lane, given, Incubation.closed_loop)
    assert lane.captures == 1
    _, state = trained(small_task, None, given, Incubation.closed_loop)
    assert all(found[name].equal(part) for name, part in state.items())


def test_short_epochs_are_not_captured(small_task, monkeypatch) -> None:
    monkeypatch.setattr(small_task, "batch_size", 20)  # 4 batches
    lane = Recorder()
    trained(small_task, lane, replace(SGDConfig()), Incubation.none)
    assert lane.captures == 0
