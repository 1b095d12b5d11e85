"""Captures of CUDA graphs by lanes; a stand-in takes the place of torch's graph."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from esper.pool.lane import Lane


class Graph:
    """A graph that notes how many are captured at once."""

    underway = 0
    most = 0

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        Graph.underway += 1
        Graph.most = max(Graph.most, Graph.underway)

    def capture_end(self) -> None:
        Graph.underway -= 1

    def replay(self) -> None:
        pass


def fail() -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


def test_lanes_capture_one_after_another_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    lanes = [Lane(torch.device("cpu")) for _ in range(4)]
    with pytest.raises(RuntimeError, match="not permitted"):
        lanes[0].captured(fail)
    with ThreadPoolExecutor(len(lanes)) as threads:
        list(threads.map(lambda lane: lane.captured(lambda: time.sleep(0.05)), lanes))
    assert (Graph.most, Graph.underway) == (1, 0)
