#!/usr/bin/env bash
# An experiment on one machine, four runs at a time; its cores are divided among the runs, and its GPUs are assigned to them in turn.
#
#     examples/launchers/joblib.sh [OVERRIDES]
#
# needs pip install -c constraints.txt -e '.[compare,parallel]'. Overrides replace those below, as in blocks=24. To
# resume, add hydra.sweep.dir=FOLDER.
set -euo pipefail

python -m esper.train -m sweep=ab arms='reward: shaped,sparse' blocks=12 root=1 \
    hydra/launcher=joblib hydra.launcher.n_jobs=4 "$@"
