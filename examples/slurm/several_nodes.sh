#!/bin/bash
#SBATCH --job-name=sage
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=USR1@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Trains on several machines, one launcher on each, and goes on from the newest whole checkpoint when it is started
# again. Five minutes before its time is over, and when SLURM wants the machines back (SIGTERM), it saves one after the
# step that it is in, and ends. The folder that it is started in, its .venv and the models are to be seen from all:
#
#   sbatch --nodes 4 examples/slurm/several_nodes.sh
#
# Each variable can be set in front of it. A recipe's batch sizes are per process: on N GPUs a step takes N times as
# many completions. The default one continues from its SFT stage, which recipes/README.md tells how to run.
RECIPE="${RECIPE:-recipes/Qwen2.5-Math-7B/sage_branch.yaml}"
CONFIG="${CONFIG:-recipes/accelerate_configs/zero2_multinode.yaml}"
VENV="${VENV:-.venv}"
STOPPABLE="${STOPPABLE:-examples/slurm/stoppable.sh}"
PORT="${PORT:-29500}"
GPUS="${SLURM_GPUS_ON_NODE:-8}"

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck disable=SC1091
source "$VENV/bin/activate"

FIRST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"  # reads to the end, which head does not
SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-64}"  # srun takes it from the job no more
export RECIPE CONFIG STOPPABLE PORT GPUS FIRST SRUN_CPUS_PER_TASK

trap : TERM USR1  # for the processes of `srun`, which this shell waits for
# What stands in single quotes is run on each machine, which knows its own number
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
    exec "$STOPPABLE" accelerate launch --config_file "$CONFIG" \
        --num_machines "$SLURM_NNODES" --num_processes "$((SLURM_NNODES * GPUS))" --machine_rank "$SLURM_NODEID" \
        --main_process_ip "$FIRST" --main_process_port "$PORT" \
        -m sage_trl.train --config "$RECIPE" --resume_from_checkpoint auto --save_on_signal true'
