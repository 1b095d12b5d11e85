"""An environment without host training: in every host, one of two slots pays; a noisy hint says which."""

# N hosts, T steps

import numpy as np

from esper.env.actions import Head, Op
from esper.env.base import Environment, EpisodeRecord
from esper.env.spec import EnvSpec, one_each
from esper.seeding import stream


class Hints(Environment):
    def __init__(self, parts, honesty):
        names = {"slot_names": ("left", "right"), "blueprint_names": ("bet",), "seed_params": ((1, 1),)}
        names |= {"feature_names": ("time_left",), "slot_feature_names": ("hint",)}
        spec = EnvSpec(num_hosts=parts.num_hosts, num_steps=parts.num_steps, **names)
        super().__init__(spec, seed=parts.seed, split=parts.split, heads=parts.heads, slots=parts.slots)
        self.honesty, self.twins, self.chosen_S = honesty, parts.num_twins, np.ones(2, bool)

    def reset(self, *, seed=None, options=None):
        self.begin(seed, options)
        draws = (stream(self.root, "hints", self.split, self.episode, host // self.twins) for host in range(self.num_envs))
        uniform_NT = np.stack([draw.random(self.num_steps + 2) for draw in draws])
        self.right_N, self.time = (uniform_NT[:, 0] < 0.5).astype(int), 0
        self.hint_NT = np.where(uniform_NT[:, 1:] < self.honesty, self.right_N[:, None], 1 - self.right_N[:, None])
        return self.observation(), {}

    def step(self, actions):
        action_NH, _ = self.permitted(actions)
        op_N, right_N, self.time = action_NH[:, Head.OP], action_NH[:, Head.SLOT] == self.right_N, self.time + 1
        reward_N = np.where(op_N == Op.GERMINATE, 2.0 * right_N - 1, 0.0).astype(np.float32)
        over_N = np.full(self.num_envs, self.time == self.num_steps)
        seen, info = self.observation(), {"op": op_N, "fossilized": np.zeros_like(op_N)}
        if over_N[0]:
            info |= {"final_obs": one_each(seen, over_N), "_final_obs": over_N}
            seen = self.reset()[0] if self.autoreset else seen  # the first observation of the next episode
        return seen, reward_N, over_N, np.zeros_like(over_N), info

    def legal_slots(self):
        legal = np.isin(np.arange(len(Op)), [Op.WAIT, Op.GERMINATE])
        return np.tile(legal[:, None], (self.num_envs, 1, 2))

    def observation(self):
        return {
            "features": np.full((self.num_envs, 1), 1 - self.time / self.num_steps, np.float32),
            "slots": np.eye(2, dtype=np.float32)[self.hint_NT[:, self.time]][:, :, None],
            "blueprints": np.ones((self.num_envs, 2), np.int64),
            "legal_slots": self.legal_slots().astype(np.int8),
            "legal_values": self._legal_values.astype(np.int8),
        }

    def record(self):
        sides = np.array(["left", "right"])[self.right_N].tolist()
        return EpisodeRecord(return_N=np.zeros(self.num_envs, np.float32), instance=sides)
