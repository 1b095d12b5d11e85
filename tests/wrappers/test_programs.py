"""Environments inside programs that have threads, Hydra, modes of torch or habits of their own."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import gymnasium
import hydra
import numpy as np
import pytest
import torch
from hydra import version
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime

import esper.gym  # noqa: F401  (registers the ids)
from esper.cli.search_path import hydra_at_conf
from esper.config import ConfigError
from esper.wrappers.hosts import make_env, make_vec_env
from tests.forked import in_fork

STEPS = 3


def played(_: object = None) -> list[float]:
    """Return the rewards of a host that never grows."""
    env = make_env([f"steps={STEPS}"])
    env.reset(seed=3)
    return [env.step(np.zeros(8, np.int64))[1] for _ in range(STEPS)]


def test_environments_in_concurrent_threads_train_the_hosts_of_their_seeds() -> None:
    alone, state = played(), torch.random.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(played, range(12))) == [alone] * 12
    assert torch.equal(torch.random.get_rng_state(), state), "of the program"


def test_environments_are_built_inside_a_program_that_uses_hydra(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text("a: 1\n")
    with hydra.initialize_config_dir(str(tmp_path), job_name="theirs", version_base="1.1"):
        theirs = GlobalHydra.instance().hydra
        assert played() == played()
        with pytest.raises(ConfigError, match="there is no key nothing"):
            make_env(["nothing=1"])
        assert GlobalHydra.instance().hydra is theirs
        assert (JobRuntime().get("name"), str(version.getbase())) == ("theirs", "1.1")
        assert hydra.compose("theirs") == {"a": 1}
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("inside", [("build",), ("reset",), ("step",), ("build", "reset", "step")])
@pytest.mark.parametrize("many", [False, True])
def test_inference_mode_changes_nothing(inside: tuple[str, ...], many: bool) -> None:
    def mode(part: str) -> torch.inference_mode:
        return torch.inference_mode(part in inside)

    with mode("build"):
        env: Any = make_vec_env([f"steps={STEPS}"], num_envs=1) if many else make_env([f"steps={STEPS}"])
    with mode("reset"):
        env.reset(seed=3)
    with mode("step"):
        rewards = [float(np.squeeze(env.step(np.zeros((1, 8) if many else 8, np.int64))[1])) for _ in range(STEPS)]
    assert rewards == played()


def test_another_default_type_is_refused() -> None:
    env = make_env(["steps=3"])
    torch.set_default_dtype(torch.float64)
    try:
        for call in (lambda: make_env(["steps=3"]), lambda: env.reset(seed=1)):
            with pytest.raises(ConfigError, match=r"torch\.set_default_dtype\(torch\.float64\) is in effect, .* devices\.auto\."):
                call()
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_an_info_names_repeats_an_episode() -> None:
    envs = make_vec_env(["env=sandbox"], num_envs=2)
    envs.reset()
    seen, info = envs.reset()
    again, repeated = envs.reset(seed=info["root"], options={"episode": info["host_episode"]})
    assert (repeated["root"] == info["root"]).all()
    assert (repeated["host_episode"] == 1).all()
    assert all(np.array_equal(seen[name], again[name]) for name in seen)
    assert make_env(["env=sandbox"]).reset(seed=np.int64(3))[1]["root"] == 3
    for wrong in ([1, 2], np.array([1, 2])):
        for env in (envs, make_env(["env=sandbox"])):
            with pytest.raises(ValueError, match=r"reset got several numbers as seed, .*: give one integer"):
                env.reset(seed=wrong)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_keep_their_spec(again: Any) -> None:
    for env in (gymnasium.make("Esper/Sandbox-v0").unwrapped, gymnasium.make_vec("Esper/Sandbox-v0", num_envs=2)):
        assert again(env).spec.id == "Esper/Sandbox-v0"


def test_a_rollback_ends_an_episode_with_its_final_info() -> None:
    envs = make_vec_env(["steps=8", "optimiser.learning_rate=100", "governor.patience=1"], num_envs=3)
    envs.reset(seed=3)
    rollbacks = 0
    for _ in range(8):
        _, _, terminated, _, info = envs.step(np.zeros((3, 8), np.int64))
        assert ("final_info" in info) is bool(terminated.any())
        if terminated.any():
            assert info["_final_info"].tolist() == terminated.tolist()
            assert info["final_info"]["instance"].shape == (3,)
        rollbacks += info["rolled_back"].sum()
    assert rollbacks


@pytest.mark.parametrize("build", [make_env, make_vec_env, lambda **keys: gymnasium.make("Esper/Sandbox-v0", **keys)])
def test_keys_of_a_run_belong_into_overrides(build: Any) -> None:
    with pytest.raises(ConfigError, match=r"steps is no argument of an environment: write overrides=\['steps=30'\]"):
        build(steps=30)


def test_hosts_end_their_episode_together() -> None:
    with pytest.raises(ConfigError, match=r"max_episode_steps .*write overrides=\['steps=2'\]"):
        gymnasium.make_vec("Esper/Sandbox-v0", num_envs=2, max_episode_steps=2)


def test_methods_of_an_environment_give_a_row_per_host_or_are_refused() -> None:
    sb3 = pytest.importorskip("esper.wrappers.sb3", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    envs = sb3.SB3VecEnv(make_vec_env(["env=sandbox"], num_envs=2))
    envs.reset()
    assert len(envs.env_method("action_masks", indices=[1])) == 1
    assert envs.env_method("render") == [None, None]
    for name in ("reset", "step"):
        with pytest.raises(ConfigError, match=f"{name} of one host is not possible"):
            envs.env_method(name)
    with pytest.raises(ConfigError, match="observation returns no row for each host: call observation of the attribute envs"):
        envs.env_method("observation")
    envs.env_method("close")


def test_a_seed_that_reads_what_its_host_predicts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"reads later positions, .* as blueprint\.attention\.causal=true does"):
        make_env(["task=python_text", "blueprint=attention", "blueprint.attention.causal=false"])


def test_one_host_is_one_host() -> None:
    with pytest.raises(ConfigError, match=r"build several by esper\.make_vec_env"):
        make_env(num_envs=2)


def test_a_process_that_is_forked_while_a_thread_composes_composes_too() -> None:
    begun, ended = Event(), Event()

    def compose() -> None:
        with hydra_at_conf():
            begun.set()
            ended.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compose)
        begun.wait(60)
        try:
            done = in_fork(lambda: {"steps": make_env(["env=sandbox"]).num_steps})
        finally:
            ended.set()
    assert done["steps"] == make_env(["env=sandbox"]).num_steps
