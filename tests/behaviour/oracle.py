"""The optimal controller of the sandbox."""

# C configurations of a host's slots, A actions, Q kinds, M sets of kinds still possible, L counts of lights, S slots, H heads

import numpy as np
import numpy.typing as npt
import torch

from esper.buffer.transition import Decision, State
from esper.env.sandbox_optimum import Optimum
from esper.env.sandbox_rules import CONTRIBUTION_UNIT, SLOT_FEATURES, Float64Array
from esper.env.spec import Observation


class Oracle(Optimum):
    """The optimal controller, from the tables of `Optimum`."""

    # ---- as a controller

    def start(self, num_hosts: int) -> State:
        """Return the observed lights, the kinds still possible, and the configuration of each host."""
        kinds, slots, _ = self.rules.worth_QSK.shape
        return {
            "counts": torch.zeros(num_hosts, slots, dtype=torch.int64),
            "possible": torch.full((num_hosts,), 2**kinds - 1),
            "config": torch.zeros(num_hosts, dtype=torch.int64),
        }

    def act(
        self,
        observation: Observation,
        state: State,
        *,
        is_init: npt.NDArray[np.bool_],
        uniform: Float64Array,
        greedy: bool = False,
    ) -> Decision:
        """Act on observations alone; all hosts must be in the same step of their episode."""
        fresh = {name: tensor.numpy() for name, tensor in self.start(len(is_init)).items()}
        mask = {"counts": is_init[:, None], "possible": is_init, "config": is_init}
        known = {name: np.where(mask[name], fresh[name], tensor.numpy()) for name, tensor in state.items()}
        seen = {name: observation.slots[:, :, SLOT_FEATURES.index(name)] for name in ("light", "contribution", "measured")}
        counts_NS = known["counts"] + (seen["light"] > 0.5)
        time = int(counts_NS[0].sum()) - 1
        possible_N = known["possible"].copy()
        slot_S = np.arange(counts_NS.shape[1])
        worth_QNS = self.rules.worth_QSK[:, slot_S, np.minimum(observation.blueprints, len(self.rules.rent_K) - 1)]
        agrees_QN = ((np.abs(worth_QNS / CONTRIBUTION_UNIT - seen["contribution"]) < 1e-6) | (seen["measured"] < 0.5)).all(axis=2)
        possible_N &= (agrees_QN.T * (1 << np.arange(len(worth_QNS)))).sum(axis=1)
        place_N = (counts_NS[:, None] == self.counts_TLS[time][None]).all(axis=2).argmax(axis=1)
        action_N = self.best_TCML[time][known["config"], possible_N, place_N]
        following = {"counts": counts_NS, "possible": possible_N, "config": self.next_TCA[time][known["config"], action_N]}
        memory = {name: torch.from_numpy(np.asarray(array)) for name, array in following.items()}
        return Decision(action=self.action_AH[action_N], state=memory)
