"""Ids for `gymnasium.make` and `gymnasium.make_vec`, registered when this module is imported.

    import gymnasium
    import esper.gym

    env = gymnasium.make("Esper/DigitsDrift-v0")                 # one host
    envs = gymnasium.make_vec("Esper/Digits-v0", num_envs=32)    # 32 hosts that train as one program
    env = gymnasium.make("esper.gym:Esper/Digits-v0")            # without the import

Both take the arguments of `esper.make_env`, as in `overrides=["steps=30", "reward=sparse"]`.
"""

import gymnasium

from esper.config import CONF
from esper.task.table import TASKS

VERSION = "v0"
"""Version of the ids. It rises when the same settings give other observations, actions or rewards."""
HOSTS = "esper.wrappers.hosts"
"""Module of the environments."""


def ids() -> dict[str, tuple[str, ...]]:
    """Return the overrides of every registered id: one for each task and each preset of one, and one for the sandbox."""
    presets = (path.stem for path in (CONF / "task").glob("*.yaml"))
    tasks = {"".join(map(str.capitalize, name.split("_"))): f"task={name}" for name in sorted({*TASKS, *presets})}
    return {f"Esper/{name}-{VERSION}": (chosen,) for name, chosen in (tasks | {"Sandbox": "env=sandbox"}).items()}


def register_ids() -> None:
    """Register all ids; a second call changes nothing."""
    for name, preset in ids().items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name, entry_point=f"{HOSTS}:HostEnv", vector_entry_point=f"{HOSTS}:HostsEnv", kwargs={"preset": preset}
            )


register_ids()
