"""A NaN at one place of a run: into all weights of one host before one of its epochs, or into the loss of one policy step.

The place is a place of the run and not of a process, so that a resumed run meets it again. With it, the weights of every host
at the end of every episode are recorded.
"""

import hashlib
import io
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esper.agent.ppo.ppo import PPO
from esper.env.growth_env import GrowthEnv

_OPEN, _MKNOD = io.open, os.mknod
"""As they were before an injector counted them."""


@dataclass(frozen=True)
class Nan:
    """The place of a NaN."""

    update: int
    """Update in which it strikes, from 0."""
    at: int
    """Epoch of the host, or step of the policy in this update, from 0."""
    host: int | None
    """Host that it strikes; None for the policy."""

    @property
    def name(self) -> str:
        return "nan_policy" if self.host is None else "nan_host"

    def __str__(self) -> str:
        return f"{self.name}@{self.update}/{self.at}{'' if self.host is None else f'/{self.host}'}"


def install(nan: Nan | None, folder: Path) -> None:
    """Put a NaN into the runs of this process, and record the weights of their hosts in FOLDER.hosts.

    FOLDER.nan exists once it has struck.
    """
    train, step, begin = GrowthEnv._train, PPO._step, PPO.begin
    steps = 0

    def strike() -> None:
        if not folder.with_suffix(".nan").exists():
            _MKNOD(folder.with_suffix(".nan"))

    def spoiled_train(env: GrowthEnv, *, last: bool) -> Any:
        if nan and nan.host is not None and (env.episode, env.time) == (nan.update, nan.at):
            shard, member = env.pool._of(nan.host)
            with torch.no_grad():
                shard.network.host.flat[member] = math.nan
            strike()
        result = train(env, last=last)
        if last:
            weights = [row for shard in env.pool.shards for row in shard.network.host.flat]
            digests = [hashlib.sha256(row.detach().numpy().tobytes()).hexdigest() for row in weights]
            with _OPEN(folder.with_suffix(".hosts"), "a") as file:
                file.write(json.dumps([env.episode, digests]) + "\n")
        return result

    def spoiled_step(agent: PPO, terms: dict[str, Any], entropy_coef: float) -> Any:
        nonlocal steps
        if nan and nan.host is None and (agent._number, steps) == (nan.update, nan.at):
            terms = terms | {"policy_loss": terms["policy_loss"] * math.nan}
            strike()
        steps += 1
        return step(agent, terms, entropy_coef)

    def counted_begin(agent: PPO, update: int) -> None:
        nonlocal steps
        steps = 0
        begin(agent, update)

    GrowthEnv._train, PPO._step, PPO.begin = spoiled_train, spoiled_step, counted_begin


def hosts(folder: Path) -> dict[str, str]:
    """Return the recorded weights of every host, as digests by update and host."""
    path = folder.with_suffix(".hosts")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {f"hosts/{update}/{host}": one for update, digests in lines for host, one in enumerate(digests)}


def problem(nan: Nan, clean: dict[str, Any], found: dict[str, Any], last_update: int) -> str:
    """Return what is wrong with a finished run with a NaN beside one without: nothing before it may differ, nor, in the episode
    that it strikes, any other host; and it must be recorded."""
    if found.get("./update") != last_update:
        return "the run with a NaN is not finished"
    for name, value in clean.items():
        if name.startswith("hosts/"):
            _, update, host = name.split("/")
            here = int(update) == nan.update and (nan.host is None or int(host) != nan.host)
            if (int(update) < nan.update or here) and found.get(name) != value:
                return f"a NaN in {nan} changed {name}"
    tag = "policy/minibatches_nonfinite" if nan.host is None else "governor/rollbacks_nonfinite"
    before, now = (float.fromhex(one.get(f"./metrics.jsonl[{nan.update}]/{tag}", "0x0p0")) for one in (clean, found))
    return "" if now >= max(1.0, before) else f"{nan} was not recorded: {tag} is {now}, and {before} without it"
