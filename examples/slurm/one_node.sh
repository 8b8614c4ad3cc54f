#!/bin/bash
#SBATCH --job-name=sage
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Trains on one machine, and goes on from the newest whole checkpoint when it is started again. Five minutes before its
# time is over, and when SLURM wants the machine back (SIGTERM), it saves one after the step that it is in, and ends:
#
#   sbatch examples/slurm/one_node.sh
#
# Each variable can be set in front of it, as in RECIPE=my_recipe.yaml sbatch examples/slurm/one_node.sh. A recipe's
# batch sizes are per process: on N GPUs a step takes N times as many completions. The default one continues from its
# SFT stage, which recipes/README.md tells how to run.
RECIPE="${RECIPE:-recipes/Qwen2.5-Math-7B/sage_branch.yaml}"
CONFIG="${CONFIG:-recipes/accelerate_configs/zero2.yaml}"
VENV="${VENV:-.venv}"
STOPPABLE="${STOPPABLE:-examples/slurm/stoppable.sh}"
GPUS="${SLURM_GPUS_ON_NODE:-8}"

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck disable=SC1091
source "$VENV/bin/activate"

# In the place of this shell, so that it gets this shell's signals
exec "$STOPPABLE" accelerate launch --config_file "$CONFIG" --num_processes "$GPUS" --main_process_port 0 \
    -m sage_trl.train --config "$RECIPE" --resume_from_checkpoint auto --save_on_signal true
