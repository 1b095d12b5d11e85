#!/usr/bin/env bash
# An experiment on a Ray cluster, or on this machine, with two cores for each run.
#
#     examples/launchers/ray.sh [OVERRIDES]
#
# needs pip install -c constraints.txt -e '.[compare,ray]'. Add hydra.launcher.address=auto to use a cluster that is running; its
# machines need the folder of the experiment on a shared disk. With GPUs, add hydra.launcher.gpus=1, or 0.5 for two runs on each.
set -euo pipefail

python -m esper.train -m sweep=ab arms='reward: shaped,sparse' blocks=12 root=1 \
    hydra/launcher=esper_ray hydra.launcher.cpus=2 "$@"
