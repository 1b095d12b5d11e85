"""Workers as processes of this machine (forks of the test process; new interpreters where that matters): the same numbers
whatever happens to them, and none left behind."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import pytest

from esper.env.actions import Op
from esper.notices import UserNotice, heard_by
from esper.optimisers.sgd import SGDConfig
from esper.plugins import place_in_plugin
from esper.pool import process_cluster, remote
from esper.pool.base import PoolParts
from esper.pool.cluster import ClusterError
from esper.pool.devices import DeviceConfig
from esper.pool.process_cluster import ProcessesConfig
from esper.pool.worker import Worker
from tests.pool.forked_workers import FORKING, Evaluated

STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def workers():
    """Two workers for the environments of this module, as if another one were open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_cluster, "subprocess", FORKING)
        config = ProcessesConfig(workers=2)
        group = remote._groups[config.group_key()] = config.start_workers()
        key = group.join()
        yield
        group.close(key)
    assert not remote._groups
    assert all(process._popen.returncode is not None for process in group._processes)


@pytest.fixture
def interpreters(monkeypatch):
    """New interpreters for the workers that a test starts."""
    monkeypatch.setattr(process_cluster, "subprocess", subprocess)


@contextmanager
def built(make_env, **keys):
    """An environment of 4 hosts on two workers, which hold none of them afterwards."""
    env = make_env(4, STEPS, cluster=ProcessesConfig(workers=2, **keys), test_at_end=True)
    group, key = env.pool._group, env.pool._key
    try:
        yield env
    finally:
        env.close()
        assert key not in group._open


def kill(env, worker):
    os.kill(env.pool._group._processes[worker]._popen.pid, signal.SIGKILL)


def play(env, plan_actions, killings=()):
    """Return what two episodes show, in which workers are killed before a step, or half a step later."""
    seen = []
    env.reset(seed=1)
    for step in range(2 * STEPS):
        if step in killings:
            kill(env, killings[step])
        if step + 0.5 in killings:  # while it trains
            threading.Timer(0.02, kill, (env, killings[step + 0.5])).start()
        op = Op.GERMINATE if step % STEPS == 1 else Op.WAIT
        observation, reward, *_, info = env.step(plan_actions(*[(op, 1, 0)] * 4))
        shown = {**observation, "reward": reward, "training_flops": info["training_flops"]}
        seen.append({name: part.tobytes() for name, part in shown.items()})
    return seen


def test_killed_workers_change_no_number(make_env, plan_actions):
    """One within an episode, and one that trains; test_remote.py has the other moments."""
    with built(make_env) as env:
        calm, born = play(env, plan_actions), [env.pool._group.born(worker) for worker in (0, 1)]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert play(env, plan_actions, {2: 1, 5.5: 0}) == calm
        assert [env.pool._group.born(worker) for worker in (0, 1)] == [times + 1 for times in born]
    lost = [str(one.message) for one in told if one.category is UserNotice]
    assert [text.partition(":")[0] for text in lost] == [
        f"worker {worker} of 2 was lost (its process ended with signal SIGKILL)" for worker in (1, 0)
    ]
    assert "hosts 2 to 3 repeat 3 epochs of this episode; no other host is affected" in lost[0]


@pytest.mark.slow
@pytest.mark.usefixtures("interpreters")
def test_workers_show_what_one_process_shows(make_env, plan_actions):
    with built(make_env, cpus=2) as env:  # workers of its own
        remote_seen = play(env, plan_actions)
        assert env.machines()["cpu"].startswith("2 x ")
    seen = play(make_env(4, STEPS, test_at_end=True, members_per_shard=2), plan_actions)
    for step in (*remote_seen, *seen):
        del step["slots"]  # the growth potential of all hosts of a device is measured at once: float rounding
    assert remote_seen == seen


def test_environments_share_workers(make_env, plan_actions):
    with built(make_env) as first:
        second = make_env(4, STEPS, cluster=ProcessesConfig(workers=2), test_at_end=True)
        assert second.pool._group is first.pool._group
        seen = play(first, plan_actions)
        second.close()
        assert play(first, plan_actions) == seen


def test_environments_may_be_used_in_two_threads(make_env, plan_actions):
    with built(make_env) as first, ThreadPoolExecutor(2) as threads:
        second = make_env(4, STEPS, cluster=ProcessesConfig(workers=2), test_at_end=True)
        calm = play(first, plan_actions)
        assert list(threads.map(lambda env: play(env, plan_actions), (first, second))) == [calm] * 2
        second.close()


def test_a_closed_environment_says_so_and_closes_no_other(make_env, plan_actions):
    with built(make_env) as closed:
        closed.reset(seed=1)
    with built(make_env) as env:
        closed.close()
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="the environment is closed: make another one"):
            closed.step(plan_actions(*[(Op.WAIT, 0, 0)] * 4))
        with pytest.raises(RuntimeError, match=r"^this environment is closed: build another$"):
            closed.pool.potential(0)
        env.reset(seed=1)


def test_hosts_of_an_environment_that_nobody_closed_are_released(small_task, monkeypatch):
    parts = PoolParts(num_hosts=2, task=small_task, blueprints=(), devices={"cpu": DeviceConfig()}, optimiser=SGDConfig())
    config, released = ProcessesConfig(workers=1), list[tuple[int, int]]()
    kept, lost = config.build(parts), config.build(parts)
    group = kept._group
    release = group.release
    monkeypatch.setattr(group, "release", lambda *key: released.append(key) or release(*key))
    key = lost._key
    del lost
    gc.collect()
    config.build(parts).close()
    assert released[0] == (0, key)
    lost = config.build(parts)
    del lost
    gc.collect()
    kept.close()
    assert group not in remote._groups.values(), "nobody uses the workers any more"
    assert group._processes[0]._popen.returncode is not None


def test_a_group_that_ends_leaves_its_successor_alone(small_task):
    parts = PoolParts(num_hosts=2, task=small_task, blueprints=(), devices={"cpu": DeviceConfig()}, optimiser=SGDConfig())
    config = ProcessesConfig(workers=1)
    first = config.build(parts)
    old = remote._groups.pop(config.group_key())
    second = config.build(parts)
    assert second._group is not old
    first.close()
    assert remote._groups[config.group_key()] is second._group
    second.close()
    assert config.group_key() not in remote._groups


def test_an_environment_belongs_to_the_process_that_built_it(make_env, plan_actions):
    """Its copy in a forked process neither reads the other's messages nor ends the workers."""
    with built(make_env) as env:
        env.reset(seed=1)
        read, write = os.pipe()
        held, done = threading.Event(), threading.Event()

        def hold():
            with env.pool._group.lock:
                held.set()
                done.wait(60)

        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # ends the child if it waits for the lock
            try:
                env.pool.potential(0)
            except RuntimeError as error:
                os.write(write, str(error).encode())
            env.close()
            os._exit(0)
        done.set()
        other.join()
        os.waitpid(child, 0)
        os.set_blocking(read, False)
        assert os.read(read, 200) == b"this environment belongs to the process that built it: build another here"
        os.close(read)
        os.close(write)
        env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 4))


def test_errors_are_told_as_in_one_process(make_env, plan_actions):
    with built(make_env, replacements=0, cpus=2) as env:  # workers of its own, of which one is not replaced
        env.reset(seed=1)
        env.pool.plant(3, 9, 0, (0, "x"))
        with pytest.raises(IndexError):
            env.pool.validate(env.state.alpha[None])
        kill(env, 1)
        with pytest.raises(ClusterError, match=r"worker 1 of 2 was lost .* what was saved before is intact$"):
            env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 4))


class Talkative(Worker):
    """A worker that announces, warns, and raises an error that cannot be pickled."""

    def open(self, key, parts, num_hosts):
        from esper.notices import notice

        notice("opening", f"{num_hosts} hosts")
        warnings.warn("it is late", UserNotice, stacklevel=1)
        warnings.warn("for developers", DeprecationWarning, stacklevel=1)

    def run(self, key, messages):
        class Local(ValueError):
            def __init__(self, lock):
                super().__init__("a lock")
                self.lock = lock

        raise Local(threading.Lock())


@pytest.mark.usefixtures("interpreters")
def test_notices_warnings_and_errors_of_workers_are_passed_on(monkeypatch):
    serving = (
        "from tests.pool.test_process_cluster import Talkative; from esper.pool import process_cluster as p; p.Worker=Talkative"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **keys: popen([*command[:-1], f"{serving}; {command[-1]}"], **keys))
    group, heard = ProcessesConfig(workers=1).start_workers(), []
    parts = PoolParts(task=None, blueprints=(), devices={}, num_hosts=2, optimiser=None)
    with heard_by(lambda *text: heard.append(text)), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        group.open(0, 0, parts, 2)
    assert heard == [("opening", "2 hosts")]
    assert [str(one.message) for one in told] == ["it is late"]
    with pytest.raises(RuntimeError, match="Local: a lock") as caught:
        group.receive(group.send(0, 0, []))
    assert "raise Local(threading.Lock())" in str(caught.value.__cause__), "the traceback in the worker"
    monkeypatch.setattr("esper.plugins._sources", lambda: {"mine": [Path(__file__)]})
    line = 1 + Path(__file__).read_text().splitlines().index("        raise Local(threading.Lock())")
    assert place_in_plugin(caught.value) == f"{Path(__file__).name}, line {line}"
    group.end()


def test_workers_that_hang_end_together(monkeypatch):
    monkeypatch.setattr("esper.pool.process_cluster.GRACE", 0.5)
    group = ProcessesConfig(workers=4).start_workers()
    for process in group._processes:
        os.kill(process._popen.pid, signal.SIGSTOP)
    waited = list[float]()
    for process in group._processes:
        monkeypatch.setattr(process, "_wait", lambda grace, own=process._wait: (waited.append(grace), own(grace)))
    group.end()
    assert sum(waited) <= 0.5 + 1e-6, "one grace for all"
    assert all(process._popen.returncode == -signal.SIGKILL for process in group._processes)


@pytest.mark.usefixtures("interpreters")
def test_workers_that_cannot_start_are_one_sentence(monkeypatch):
    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(ClusterError, match=r"cluster\.workers=2 cannot start .*Resource temporarily unavailable\): lower it$"):
        ProcessesConfig(workers=2).start_workers()


@pytest.mark.usefixtures("interpreters")
def test_modules_in_the_current_folder_shadow_no_others(tmp_path, monkeypatch):
    """As long as the folder is not on the path of the first process; its path may hold other objects than texts."""
    (tmp_path / "random.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*(path for path in sys.path if path), tmp_path])
    group = ProcessesConfig(workers=1).start_workers()
    assert group.receive(group._ask(0, "close", 0)) is None
    group.end()


def test_a_forked_process_has_workers_of_its_own(make_env):
    with built(make_env):
        assert remote._groups
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(len(remote._groups)).encode())
            os._exit(0)
        assert os.read(read, 1) == b"0"
        os.close(read)
        os.close(write)
        os.waitpid(child, 0)


def test_the_answer_to_an_interrupted_request_is_dropped(make_env, plan_actions):
    with built(make_env) as env:
        calm = play(env, plan_actions)
        env.reset(seed=1)
        env.pool._group.send(0, env.pool._key, [])  # nobody waits for it
        assert play(env, plan_actions) == calm


def test_a_large_answer_that_nobody_read_does_not_block_a_large_request():
    """A worker that sends does not read, and both sockets are full."""
    group, size = ProcessesConfig(workers=1).start_workers(), 4_000_000
    group._ask(0, "close", Evaluated(f"open('0' * {size})"))  # an error that quotes it
    assert group.receive(group._ask(0, "close", "0" * size)) is None
    group.end()


def test_a_busy_worker_is_told_later_to_release_hosts():
    group = ProcessesConfig(workers=1).start_workers()
    group._ask(0, "close", Evaluated("0"))  # nobody waits for the answer
    group.release(0, 7)
    (process,) = group._processes
    assert process.unreleased == [7]
    assert group.receive(group._ask(0, "close", 0)) is None
    assert not process.unreleased
    assert not process.is_busy
    group.release(0, 8)
    assert not process.unreleased
    group.end()


def test_workers_end_with_the_process_that_started_them():
    """Even if it is killed; and Ctrl-C, which a terminal sends to a process group, reaches only the first process."""
    script = """
        import os, time
        from esper.pool.process_cluster import ProcessesConfig
        group = ProcessesConfig(workers=2).start_workers()
        pids = [process._popen.pid for process in group._processes]
        assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids)
        print(*pids, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        pids = [int(pid) for pid in first.stdout.readline().split()]
        assert len(pids) == 2
        first.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() and is_worker(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_worker(pid):
    try:
        return b"process_cluster" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.usefixtures("interpreters")
def test_workers_find_the_modules_of_the_first_process(tmp_path, monkeypatch):
    """Such as plugins, whose classes its messages contain."""
    (tmp_path / "found_beside.py").write_text("VALUE = 41\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    group = ProcessesConfig(workers=1).start_workers()
    assert group.receive(group._ask(0, "close", Evaluated("__import__('found_beside')"))) is None
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        group.receive(group._ask(0, "close", Evaluated("__import__('not_there')")))
    assert group.receive(group._ask(0, "close", 0)) is None, "the worker goes on"
    group.end()


@pytest.mark.parametrize("method", ["send_bytes", pytest.param("recv_bytes", marks=pytest.mark.slow)])
def test_a_worker_is_replaced_if_an_interrupt_cut_a_message(make_env, plan_actions, monkeypatch, method):
    with built(make_env) as env:
        calm = play(env, plan_actions)
        env.reset(seed=1)
        pipe = env.pool._group._processes[1]._pipe
        original = getattr(type(pipe), method)

        def cut(*_):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(type(pipe), method, lambda self, *given: cut() if self is pipe else original(self, *given))
        with pytest.raises(KeyboardInterrupt):
            env.step(plan_actions(*[(Op.WAIT, 0, 0)] * 4))
        with pytest.warns(UserNotice, match="worker 1 of 2 was lost"):
            assert play(env, plan_actions) == calm
