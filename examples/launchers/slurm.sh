#!/usr/bin/env bash
# An experiment as jobs of Slurm, one GPU and eight cores each. Run it where sbatch works, such as a login node, and let it wait.
#
#     examples/launchers/slurm.sh [OVERRIDES]
#
# needs pip install -c constraints.txt -e '.[compare,slurm]'. Add hydra.launcher.partition=NAME and what else your cluster asks for. A job that
# reaches its time limit is queued again and resumes. Without Slurm the same jobs run on this machine, as many at a time as it has cores for.
set -euo pipefail

jobs=(hydra/launcher=submitit_slurm hydra.launcher.max_num_timeout=10 hydra.launcher.gpus_per_node=1 hydra.launcher.cpus_per_task=8)
if ! sinfo >/dev/null 2>&1; then
    echo "no Slurm answers here: the jobs run on this machine" >&2
    jobs=(hydra/launcher=submitit_local hydra.launcher.cpus_per_task=1)
fi
python -m esper.train -m sweep=ab arms='reward: shaped,sparse' blocks=12 root=1 \
    "${jobs[@]}" hydra.launcher.timeout_min=240 "$@"
