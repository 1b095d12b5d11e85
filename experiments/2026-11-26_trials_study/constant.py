"""One schedule for all held-out hosts of a study: python constant.py FOLDER/ppo/block-NN ...

Grows the 64 held-out hosts of each run with `conv_light` in `r0c1`, germinated in epoch 2 and fossilized in epoch 8, and prints
block and mean return.
"""

import sys
from pathlib import Path

from esper.agent.scripted.schedule import ActionConfig, ActionLists
from esper.evaluation.held_out import Evaluation

HOSTS = 64

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        evaluation = Evaluation.load(folder, hosts=HOSTS)
        layout = evaluation.env.layout
        slot = layout.slot_names.index("r0c1")
        actions = [ActionConfig(at=2, slot=slot, blueprint="conv_light"), ActionConfig(at=8, slot=slot, op="fossilize")]
        found = evaluation.grow(ActionLists([actions] * HOSTS, layout))
        print(f"{Path(folder).name},{found.values['return'].mean():.4f}", flush=True)
