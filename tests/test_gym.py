"""Environments for other libraries: ids, spaces, info, pictures, pickles, and a door that names every mistake."""

import multiprocessing
import pickle
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import esper
from esper.config import ConfigError
from esper.env.actions import Head, Op
from esper.gym import ids
from esper.task.table import TASKS
from esper.wrappers.hosts import HostEnv, HostsEnv, make_env, make_vec_env

QUICK = ["steps=6", "task.batch_size=256", "devices=[cpu]"]
SANDBOX = ["env=sandbox", "steps=6"]
WAIT = np.zeros(len(Head), dtype=np.int64)
GERMINATE = np.array([Op.GERMINATE, 1, 0, 0, 0, 2, 0, 0])


def episode(env: Any, action: Any, steps: int = 6) -> tuple[float, dict[str, Any]]:
    """Play one episode with the same action in every step; return the sum of rewards and the last info."""
    total, info = 0.0, dict[str, Any]()
    for _ in range(steps):
        _, reward, *_, info = env.step(action)
        total += reward
    return total, info


def test_every_task_has_an_id() -> None:
    assert {f"task={name}" for name in TASKS} < {override for preset in ids().values() for override in preset}
    assert all(name in gymnasium.registry for name in ids())
    assert ids()["Esper/DigitsDrift-v0"] == ("task=digits_drift",)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("name", "overrides"), [("Esper/Digits-v0", QUICK), ("Esper/Sandbox-v0", ["steps=6"])])
def test_ids_make_environments_that_gymnasium_accepts(name: str, overrides: list[str], flat: bool) -> None:
    env = gymnasium.make(name, overrides=overrides, flat=flat, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    assert isinstance(env.unwrapped, HostEnv)
    env.close()


def test_one_host_and_many_are_the_same_hosts() -> None:
    one, many = make_env(QUICK, flat=True), make_vec_env(QUICK, num_envs=2, flat=True)
    seen, (all_seen, _) = one.reset(seed=4)[0], many.reset(seed=4)
    for _ in range(6):
        assert np.allclose(seen, all_seen[0], atol=0.02), "equal up to rounding"
        assert np.array_equal(one.action_masks(), many.action_masks()[0])
        seen, reward, terminated, truncated, _ = one.step(WAIT)
        all_seen, reward_N, terminated_N, truncated_N, info = many.step(np.stack([WAIT, WAIT]))
        assert reward == pytest.approx(reward_N[0], abs=2.1), "an image more or less of 100"
        assert (terminated, truncated) == (terminated_N[0], truncated_N[0])
    assert terminated
    assert np.allclose(seen, info["final_obs"][0], atol=0.02)
    assert not np.allclose(seen, all_seen[0], atol=0.02), "the first observation of the next episode"
    assert many.observation_space.contains(all_seen)


def test_the_flat_observation_holds_all_parts() -> None:
    dicts, flat = make_env(SANDBOX), make_env(SANDBOX, flat=True)
    dicts.reset(seed=0), flat.reset(seed=0)
    seen, vector = dicts.step(GERMINATE)[0], flat.step(GERMINATE)[0]
    kinds = len(dicts.population.layout.blueprint_names) + 1
    parts = [seen[name].ravel() for name in ("features", "slots", "legal_slots", "legal_values")]
    assert np.array_equal(vector, np.concatenate([*parts, np.eye(kinds)[seen["blueprints"]].ravel()]))
    assert flat.observation_space.contains(vector)


def test_infos_are_arrays_over_hosts() -> None:
    env = gymnasium.make_vec("Esper/Digits-v0", num_envs=2, overrides=QUICK)
    assert isinstance(env.unwrapped, HostsEnv)
    env.reset()
    _, info = episode(env, np.stack([WAIT, WAIT]))
    last = {"final_obs", "_final_obs", "final_info", "_final_info"}
    assert last < info.keys()
    arrays = [*(info.keys() - {"components", "final_info"}), "instance"]
    held = info | info["final_info"] | info["components"]
    assert all(isinstance(held[name], np.ndarray) and len(held[name]) == 2 for name in arrays)
    assert not {"signals", "timetable"} & held.keys()
    single = make_env(QUICK)
    single.reset()
    _, shown = episode(single, WAIT)
    assert shown["final_info"].keys() == {"instance"}
    assert isinstance(shown["final_info"]["instance"], str)


def test_overrides_reach_the_environment() -> None:
    made = make_env([*QUICK, "reward=simplified", "agent.heads.tempo=free", "host.base_channels=2"])
    assert made.num_steps == 6
    assert made.population.heads.tempo == "free"  # pyright: ignore[reportAttributeAccessIssue]
    training, held_out = (make_env(SANDBOX, split=split) for split in ("training", "held_out"))
    differs = [not np.array_equal(training.reset()[0]["slots"], held_out.reset()[0]["slots"]) for _ in range(8)]
    assert any(differs), "held-out hosts are others"


def test_a_pickle_starts_anew() -> None:
    env = make_env([*SANDBOX, "seed=3"], flat=True)
    first, _ = env.reset()
    again = pickle.loads(pickle.dumps(env))
    assert np.array_equal(again.reset()[0], first)
    many = pickle.loads(pickle.dumps(make_vec_env(SANDBOX, num_envs=3)))
    assert many.reset()[0]["features"].shape == (3, 1)


@pytest.mark.parametrize("make", [make_env, partial(make_vec_env, num_envs=2)])
def test_without_a_seed_every_environment_draws_a_root_that_repeats_its_episodes(make: Callable[..., Any]) -> None:
    first, second = make(SANDBOX), make(SANDBOX)
    infos = [env.reset()[1] for env in (first, second, pickle.loads(pickle.dumps(first)))]
    roots = {int(np.ravel(info["root"])[0]) for info in infos}
    assert len(roots) == 3
    assert first.population.root == np.ravel(infos[0]["root"])[0]
    seen, info = first.reset(options={"episode": 4})
    assert np.array_equal(info["root"], infos[0]["root"]), "drawn once"
    root, number = (int(np.ravel(info[name])[0]) for name in ("root", "host_episode"))
    again, _ = second.reset(seed=root, options={"episode": number})
    assert all(np.array_equal(again[name], seen[name]) for name in seen)
    assert np.all(make([*SANDBOX, "seed=3"]).reset()[1]["root"] == 3)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_gymnasiums_vectors_of_single_hosts_take_its_statistics(mode: AutoresetMode) -> None:
    """They put the info of a reset into that of a step, and the statistics under "episode"."""
    envs = RecordEpisodeStatistics(SyncVectorEnv([lambda: make_env(SANDBOX, flat=True)] * 2, autoreset_mode=mode))
    envs.reset(seed=1)
    ends = 0
    for _ in range(15):
        *_, terminated, _, info = envs.step(np.stack([WAIT, WAIT]))
        ends += int(terminated.sum())
        assert not terminated.any() or (info["episode"]["l"][terminated] == 6).all()
    assert ends >= 4


def test_pictures_show_the_life_of_the_slots() -> None:
    one, many = make_env(SANDBOX, render_mode="rgb_array"), make_vec_env(SANDBOX, num_envs=2, render_mode="rgb_array")
    one.reset(), many.reset()
    empty = one.render()
    one.step(WAIT)
    assert not np.array_equal(one.render(), empty), "epochs to come differ from those of dormant slots"
    one.reset()
    one.step(GERMINATE)
    grown = one.render()
    assert grown.shape == empty.shape
    assert grown.dtype == np.uint8
    assert not np.array_equal(grown, empty)
    many.step(np.stack([GERMINATE, WAIT]))
    first, second = many.render()
    assert np.array_equal(first, grown)
    assert not np.array_equal(second, grown)
    episode(one, WAIT, steps=5)
    ended = one.render()
    one.reset()
    assert np.array_equal(one.render(), empty)
    assert not np.array_equal(ended, empty), "the picture of the last step shows the whole episode"
    assert make_env(SANDBOX).render() is None


@pytest.mark.slow
def test_forked_environments_do_not_wait_for_threads_of_their_parent() -> None:
    """In a process of its own: a test process that has forked once is no place to fork from again."""
    process = multiprocessing.get_context("spawn").Process(target=play_forked)
    process.start()
    process.join(120)
    hangs = process.is_alive()
    process.kill()
    assert not hangs
    assert process.exitcode == 0


def play_forked() -> None:
    import torch

    torch.set_num_threads(2)
    torch.randn(500, 500) @ torch.randn(500, 500)  # starts the threads that a fork will lack
    envs = AsyncVectorEnv([lambda: make_env(QUICK) for _ in range(2)], context="fork")
    envs.reset(seed=0)
    envs.step(np.stack([WAIT, WAIT]))
    envs.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"overrides": ["updates=5"]}, "updates=5 has no effect in an environment"),
        ({"overrides": ["agent=ppo"]}, "agent=ppo has no effect in an environment"),
        ({"overrides": ["agent.learning_rate=1"]}, "agent.learning_rate=1 has no effect in an environment"),
        ({"overrides": ["hosts=4"]}, "hosts=4 cannot be overridden in an environment: set num_envs of make_vec_env instead"),
        ({"overrides": ["sweep=ab"]}, "sweep=ab has no effect in an environment"),
        ({"overrides": ["cluster=processes"]}, r"raise hosts to at least 2, .* \(hosts is num_envs of make_vec_env\)"),
        ({"overrides": ["stepz=4"]}, "did you mean steps"),
        ({"overrides": ["experiment=digits_drift"]}, "name what its hosts need instead, as in task=digits_drift"),
        ({"overrides": "steps=4"}, "overrides must be a list, got 'steps=4'"),
        ({"overrides": {"steps": 4}}, "overrides must be a list of texts"),
        ({"overrides": [4]}, "overrides must be a list of texts"),
        ({"split": "test"}, "split must be training or held_out, got 'test'"),
        ({"render_mode": "human"}, "render_mode must be rgb_array or None, got 'human'"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_env(**arguments)


def test_there_is_at_least_one_host() -> None:
    with pytest.raises(ConfigError, match=r"^num_envs must be a whole number of at least 1, got 0$"):
        gymnasium.make_vec("esper.gym:Esper/Digits-v0", num_envs=0)
    with pytest.raises(ConfigError, match=r"^num_envs must be a whole number of at least 1, got '4'$"):
        make_vec_env(SANDBOX, num_envs="4")  # pyright: ignore[reportArgumentType]


def test_an_id_of_a_task_refuses_the_sandbox() -> None:
    with pytest.raises(ConfigError, match="this id chooses task=digits, which env=sandbox ignores: use Esper/Sandbox-v0"):
        gymnasium.make("esper.gym:Esper/Digits-v0", overrides=SANDBOX)


def test_an_id_of_a_task_refuses_another() -> None:
    with pytest.raises(ConfigError, match="this id chooses task=digits, but the overrides have task=diabetes"):
        gymnasium.make("esper.gym:Esper/Digits-v0", overrides=["task=diabetes"])


def test_the_id_of_the_sandbox_refuses_hosts() -> None:
    for given, sentence in {
        "env=growth": "this id chooses env=sandbox, but the overrides have env=growth: use the id of that env, or esper.make_env",
        "+env=growth": "this id chooses env=sandbox, but the overrides have",
        "task=digits_drift": "task=digits_drift has no effect with env=sandbox: leave it out",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            gymnasium.make("esper.gym:Esper/Sandbox-v0", overrides=[given])


def test_unknown_options_of_reset_are_named() -> None:
    with pytest.raises(ValueError, match=r"reset\(options=\.\.\.\) has the unknown key 'episod': the only key is 'episode'"):
        make_env(SANDBOX).reset(options={"episod": 3})
    for wrong in (-1, 1.5, True, "a"):
        with pytest.raises(ValueError, match=rf"reset\(options=...\) has episode={wrong!r}, which must be an integer"):
            make_env(SANDBOX).reset(options={"episode": wrong})


def test_fixed_heads_are_ignored() -> None:
    """A sample of the action space would otherwise nearly always be refused."""
    strange = GERMINATE.copy()
    strange[Head.STYLE :] = [3, 2, 1, 3, 4]
    seen = []
    for action in (GERMINATE, strange):
        env, many = make_env(QUICK), make_vec_env(QUICK, num_envs=2, flat=True)
        env.reset(seed=3), many.reset(seed=3)
        seen += [env.step(action)[0]["slots"], many.step(np.stack([action, action]))[0]]
        assert action.tolist()[: Head.STYLE] == GERMINATE.tolist()[: Head.STYLE], "the caller's array stays"
    assert np.array_equal(seen[0], seen[2])
    assert np.array_equal(seen[1], seen[3])
    assert seen[0].any()
    free = make_env([*QUICK, "agent.heads.alpha_target=free"])
    free.reset(seed=3)
    free.step(strange)
    assert free.population.state.ramp_target.max() == 0.7, "a free head is chosen"


@pytest.mark.parametrize("overrides", [SANDBOX, QUICK], ids=["sandbox", "hosts"])
def test_a_closed_environment_says_so(overrides: list[str]) -> None:
    env = make_env(overrides)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"an action must have the shape \(8,\), one number per head, got \(3,\)"):
        env.step(WAIT[:3])
    episode(env, WAIT, steps=6)
    env.close()
    env.close()
    for use in (env.reset, lambda: env.population.step(WAIT[None])):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="the environment is closed"):
            use()


def test_nothing_is_seen_before_the_first_reset() -> None:
    env = make_vec_env(SANDBOX, num_envs=2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.action_masks()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.stack([WAIT, WAIT]))


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hosts that are pretrained for one epoch, and not kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    page = Path(__file__).parent.parent / "docs" / "howto" / "libraries.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    names = dict[str, Any]()
    overrides = '"reward=sparse"'
    assert overrides in code
    exec(code.replace(overrides, f'{overrides}, "task.pretrain=1", "task.pretrain_pool=1"'), names)
    assert names["env"].unwrapped.num_steps == 30


def test_the_package_offers_both() -> None:
    assert esper.make_env is make_env
    assert esper.make_vec_env is make_vec_env


def test_a_seed_seeds_what_the_environment_draws_itself() -> None:
    env, drawn = make_vec_env(SANDBOX, num_envs=2), []
    for _ in range(2):
        env.reset(seed=5)
        drawn.append(env.np_random.integers(1000, size=3).tolist())
    assert env.np_random_seed == 5
    assert drawn[0] == drawn[1]
