"""Workers as real processes of Ray, killed at several moments; all in a process of their own, which starts Ray."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from esper.pool.cluster import ClusterError
from esper.pool.ray_cluster import RayClusterConfig, RayWorkerGroup

if find_spec("ray") is None:  # it takes seconds to import
    pytest.skip("pip install -e '.[ray]'", allow_module_level=True)

SCRIPT = """
    import json, os, signal, threading, warnings
    import numpy as np
    from esper.pool import remote
    from esper.env.actions import Head, Op
    from esper.pool.cluster import ClusterError
    from esper.pool.ray_cluster import RayClusterConfig
    from tests.env_fixtures import BLUEPRINTS
    from esper.env.base import EnvParts
    from esper.pool.devices import DeviceConfig
    from esper.env.growth_env import GrowthConfig
    from esper.governor.watchdog import WatchdogConfig
    from esper.hosts.cnn import CNNConfig
    from esper.lifecycle.slots import EveryBlockConfig
    from esper.reward.modes import ShapedConfig
    from esper.task.digits import DigitsConfig

    told, said = [], {}
    warnings.showwarning = lambda message, *_: told.append(str(message))
    warnings.simplefilter("always")

    def refused(config):
        try:
            config.build(parts)
        except ClusterError as error:
            return str(error)

    def make(cluster):
        return GrowthConfig().build(EnvParts(
            task=DigitsConfig(epoch_samples=256), host=CNNConfig(), slots=EveryBlockConfig(), blueprints=BLUEPRINTS,
            reward=ShapedConfig(), governor=WatchdogConfig(), devices={"auto": DeviceConfig()}, cluster=cluster, gamma=0.9,
            num_hosts=4, num_steps=4, test_at_end=True,
        ))

    def kill(group, worker):
        actor = group._actors[worker]
        os.kill(group._ray.get(actor.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)

    def play(env, killings=()):
        seen, group = [], env.pool._group
        env.reset(seed=1)
        for step in range(8):
            if step in killings:
                kill(group, killings[step])
            if step + 0.5 in killings:  # while it trains
                actor = group._actors[killings[step + 0.5]]
                pid = group._ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
                threading.Timer(0.02, os.kill, (pid, signal.SIGKILL)).start()
            actions = np.zeros((4, len(Head)), dtype=np.int64)
            actions[:, Head.OP] = Op.GERMINATE if step % 4 == 1 else Op.WAIT
            observation, reward, *_, info = env.step(actions)
            seen.append([part.tobytes().hex() for part in (*observation.values(), reward, info["training_flops"])])
        return seen

    config = RayClusterConfig(workers=2)
    first = make(config)
    parts = first.pool.parts
    calm = play(first)
    group = first.pool._group
    said["one group"] = make(config).pool._group is group
    said["machines"] = first.machines()
    second = make(config)
    said["same"] = play(second, {2: 1, 5.5: 0}) == calm
    said["told"] = told[:]
    try:
        second.pool.plant(3, 9, 0, (0, "x"))
        second.pool.validate(second.state.alpha[None])
    except Exception as error:
        said["error"] = type(error).__name__
    tired = make(RayClusterConfig(workers=2, replacements=0))
    tired.reset(seed=0)
    kill(tired.pool._group, 1)
    try:
        tired.step(np.zeros((4, len(Head)), dtype=np.int64))
    except ClusterError as error:
        said["lost"] = str(error)
    for env in (first, second, tired):
        env.close()
    for key in list(group._open):
        group.close(key)
    said["groups left"] = len(remote._groups)
    said["running"] = group._ray.is_initialized()
    said["no cluster"] = refused(RayClusterConfig(address="127.0.0.1:1"))
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    """What happened in a process that killed its workers."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    env = os.environ | {"RAY_worker_niceness": "0"}  # by default they give way, here to the tests of other processes
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_killed_workers_change_no_number(said):
    """One within an episode, and one that trains; tests/pool/test_remote.py has the other moments."""
    assert said["same"]
    lost = [text for text in said["told"] if "was lost" in text]
    assert len(lost) == 2
    assert [f"worker {worker} of 2 was lost" in text for worker, text in zip((1, 0), lost, strict=True)] == [True] * 2
    assert "hosts 2 to 3 repeat 3 epochs of this episode; no other host is affected" in lost[0]


@pytest.mark.slow
def test_environments_share_workers_and_leave_none_behind(said):
    assert said["one group"]
    assert list(said["machines"]) == ["auto"]
    assert said["machines"]["auto"].startswith("2 x ")
    assert said["groups left"] == 0
    assert not said["running"]


@pytest.mark.slow
def test_errors_are_told_as_in_one_process(said):
    assert said["error"] == "IndexError"
    assert "worker 1 of 2 was lost" in said["lost"]
    assert said["lost"].endswith("what was saved before is intact")
    assert "no cluster answers at cluster.address=127.0.0.1:1 (" in said["no cluster"]


def test_workers_that_ask_for_more_gpus_than_there_are_are_refused(monkeypatch):
    ray, ended = pytest.importorskip("ray", reason="pip install -e '.[ray]'"), []
    fakes = {
        "is_initialized": bool,
        "init": lambda *_, **__: None,
        "cluster_resources": dict,
        "shutdown": lambda: ended.append(1),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(ray, name, fake)
    with pytest.raises(
        ClusterError, match=r"cluster\.workers=3 with cluster\.gpus=100 need more than the 0 GPUs of this machine"
    ):
        RayWorkerGroup(RayClusterConfig(workers=3, gpus=100))
    assert ended
