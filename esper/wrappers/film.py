"""Frames of `render`: the stages of the slots of one host over an episode."""

# N hosts, S slots, T host epochs

import numpy as np
import numpy.typing as npt

from esper.env.base import Environment
from esper.env.spec import EnvSpec
from esper.lifecycle.stages import Stage
from esper.telemetry.pictures import timeline
from esper.telemetry.traces import Table


class Film:
    """Records the slots of an environment, step by step."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self._stage_TNS: list[npt.NDArray[np.int64]] = []
        self._alpha_TNS: list[npt.NDArray[np.float32]] = []

    def start(self) -> None:
        """Forget the last episode."""
        self._stage_TNS, self._alpha_TNS = [], []

    def add(self, env: Environment) -> None:
        """Add the slots as they are after a step of the environment.

        Raises:
            NotImplementedError: the environment has no slots to show.
        """
        if env.shown is None:
            raise NotImplementedError(f"{type(env).__name__} cannot be rendered: leave out render_mode")
        self._stage_TNS.append(env.shown.stage.copy())
        self._alpha_TNS.append(env.shown.alpha.copy())

    def frame(self, host: int) -> npt.NDArray[np.uint8]:
        """Return the life of a host's slots up to now as an image `[height, width, 3]` of constant size."""
        done, steps = len(self._stage_TNS), self.spec.num_steps
        table: Table = {"epoch": [float(epoch) for epoch in range(1, steps + 1)]}
        ahead = steps - done
        for rank, slot in enumerate(self.spec.slot_names):
            stages = [Stage(int(stage_NS[host, rank])).name.lower() for stage_NS in self._stage_TNS]
            alphas = [float(alpha_NS[host, rank]) for alpha_NS in self._alpha_TNS]
            table[f"{slot}.stage"] = [*stages, *[""] * ahead]
            table[f"{slot}.alpha"] = [*alphas, *[0.0] * ahead]
        return timeline(table)
