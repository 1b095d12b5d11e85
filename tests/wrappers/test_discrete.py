"""Actions by number: those of the heads, with exact masks."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from esper.config import ConfigError
from esper.env.actions import RELEVANT, Head, Op
from esper.wrappers.hosts import make_env, make_vec_env

SANDBOX = ["env=sandbox", "steps=6"]
TINY = ["task=digits", "task.epoch_samples=32", "task.valid_samples=16", "task.batch_size=16", "host.blocks=2", "steps=16"]
QUICK = ["gates.min_training=1", "gates.min_blending=1"]
FREE = ["agent.heads.alpha_target=free", "agent.heads.tempo=free", "agent.heads.alpha_speed=free"]
ALWAYS = {Op.WAIT, Op.GERMINATE, Op.PRUNE}


@pytest.mark.parametrize(
    ("overrides", "ops"),
    [
        (SANDBOX, {Op.FOSSILIZE, Op.ADVANCE}),
        pytest.param([*TINY, *QUICK], {Op.FOSSILIZE, Op.ADVANCE}, marks=pytest.mark.slow),
        ([*TINY, *QUICK, "slots.auto_advance=[]", *FREE], {Op.FOSSILIZE, Op.ADVANCE, Op.SET_ALPHA_TARGET}),
        pytest.param(
            [*TINY, *QUICK, "slots.auto_advance=[training,blending,holding,fossilized]", "slots.switchable=true"],
            {Op.SET_ALPHA_TARGET},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_legal_numbers_are_the_legal_actions(overrides: list[str], ops: set[Op]) -> None:
    """In random play: what a number does is what its heads do, and every legal action of the heads has one number."""
    numbered, heads = (make_vec_env(overrides, num_envs=3, discrete=one, flat=one) for one in (True, False))
    assert numbered.actions is not None
    rows, rng = numbered.population.actions(), np.random.default_rng(0)
    assert {*rows[:, Head.OP].tolist()} == ALWAYS | ops
    assert len({tuple(row) for row in rows}) == len(rows) == len(set(numbered.actions.names))
    numbered.reset(seed=3)
    seen, _ = heads.reset(seed=3)
    ends = np.cumsum(heads.population.layout.head_sizes[Head.BLUEPRINT :])[:-1]
    for _ in range(3 * heads.num_steps):
        masks = numbered.action_masks()
        for host in range(3):
            values = np.array([part.sum() for part in np.split(seen["legal_values"][host], ends)])
            pairs = [op for op, _ in np.argwhere(seen["legal_slots"][host]) if op != Op.WAIT]
            assert masks[host].sum() == 1 + sum(values[RELEVANT[op, Head.BLUEPRINT :]].prod() for op in pairs)
        chosen = np.array([rng.choice(np.flatnonzero(legal)) for legal in masks])
        _, paid, _, _, info = numbered.step(chosen)
        seen, same, _, _, told = heads.step(rows[chosen])
        assert np.array_equal(paid, same)
        assert np.array_equal(info["op"], told["op"])
        assert np.array_equal(info["op"], rows[chosen, Head.OP]), "no legal action was refused"
    numbered.close()
    heads.close()


def test_a_number_outside_of_the_list_is_one_sentence() -> None:
    env, envs = make_env(SANDBOX, discrete=True), make_vec_env(SANDBOX, num_envs=2, discrete=True)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.action_masks()
    env.reset(seed=0)
    envs.reset(seed=0)
    last = env.action_space.n - 1
    for wrong in (last + 1, -1, 0.5):
        with pytest.raises(ValueError, match=rf"^an action must be a whole number from 0 to {last}, got "):
            env.step(wrong)
    with pytest.raises(ValueError, match=r"^an action must be one number, got an array of shape \(1,\)$"):
        env.step(np.array([0]))
    with pytest.raises(ValueError, match=r"must have the shape \(2,\), one number per host, got \(1,\)$"):
        envs.step([3])
    with pytest.raises(ValueError, match=rf"a whole number from 0 to {last} for each of 2 hosts, got \[3, -1\]$"):
        envs.step([3, -1])
    assert env.step(last)[4]["op"] != Op.WAIT or not env.action_masks()[last]
    assert env.actions.names[0] == "wait"
    assert env.step(0)[4]["op"] == Op.WAIT


def test_gymnasium_accepts_numbers() -> None:
    env = gymnasium.make("esper.gym:Esper/Sandbox-v0", discrete=True, flat=True)
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    check_env(env.unwrapped, skip_render_check=True)
    envs = gymnasium.make_vec("esper.gym:Esper/Sandbox-v0", num_envs=2, discrete=True)
    assert envs.action_space == gymnasium.spaces.MultiDiscrete([env.action_space.n] * 2)


def test_torchrl_masks_numbers() -> None:
    torchrl = pytest.importorskip("esper.wrappers.torchrl", reason="pip install -e '.[drivers]'", exc_type=ConfigError)
    from torchrl.envs import ActionMask, TransformedEnv
    from torchrl.envs.utils import check_env_specs

    hosts = make_vec_env(SANDBOX, num_envs=3, flat=True, discrete=True)
    env = TransformedEnv(torchrl.TorchRLEnv(hosts), ActionMask())
    env.set_seed(0)
    check_env_specs(env)
    row = env.reset()
    for _ in range(12):
        row = env.rand_action(row)
        assert row["action_mask"].gather(1, row["action"][:, None]).all()
        _, row = env.step_and_maybe_reset(row)
