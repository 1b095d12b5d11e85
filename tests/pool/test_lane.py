"""Captures of CUDA graphs by lanes; a stand-in takes the place of torch's graph."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest
import torch

from esper.pool.lane import Lane, Turns


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


def test_lanes_pause_between_two_batches_while_others_capture() -> None:
    turns, lanes, done = Turns(), ["a", "b", "c", "d"], list[tuple[str, str]]()
    underway, wrong = set[str](), list[set[str]]()

    def work(lane: str) -> None:
        """Take batches until all captures are done; lanes a and b capture before the third one, as shards with new roles do."""
        turns.enter(lane)
        for batch in range(1000):
            turns.give_way(lane)
            if sum(what == "captured" for _, what in done) == 2:
                break
            if batch == 2 and lane in "ab":
                with turns.alone(lane):
                    wrong.extend([{*underway}] * bool(underway))
                    time.sleep(0.02)
                    wrong.extend([{*underway}] * bool(underway))
                    done.append((lane, "captured"))
            underway.add(lane)
            time.sleep(0.002)
            underway.discard(lane)
        done.append((lane, "trained"))
        turns.leave(lane)

    with ThreadPoolExecutor(len(lanes)) as threads:
        list(threads.map(work, lanes))
    assert not wrong, "a batch ran beside a capture"
    captured, trained = ([done.index((lane, what)) for lane in of] for what, of in (("captured", "ab"), ("trained", "abcd")))
    assert max(captured) < min(trained), "captures do not wait for whole epochs"


def test_after_a_capture_that_failed_others_go_on() -> None:
    turns, went_on = Turns(), Event()
    turns.enter("a")
    with pytest.raises(RuntimeError), turns.alone("a"):
        fail()
    turns.leave("a")
    thread = Thread(target=lambda: (turns.enter("b"), went_on.set(), turns.leave("b")), daemon=True)
    thread.start()
    assert went_on.wait(10)
