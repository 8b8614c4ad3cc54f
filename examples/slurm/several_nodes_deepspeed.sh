#!/bin/bash
#SBATCH --job-name=sage
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# several_nodes.sh with DeepSpeed's own launcher on each machine, without ssh, for those who keep DeepSpeed's settings
# in its JSON file. Needs "sage-trl[deepspeed]". This launcher kills what trains when it gets SIGTERM: no checkpoint is
# saved then, and a job that is started again goes on from the last that `save_steps` made.
#
#   sbatch --nodes 4 examples/slurm/several_nodes_deepspeed.sh
RECIPE="${RECIPE:-recipes/Qwen2.5-Math-7B/sage_branch.yaml}"
DEEPSPEED="${DEEPSPEED:-recipes/deepspeed_configs/zero2.json}"
VENV="${VENV:-.venv}"
PORT="${PORT:-29500}"
GPUS="${SLURM_GPUS_ON_NODE:-8}"

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck disable=SC1091
source "$VENV/bin/activate"

HOSTFILE="hosts-${SLURM_JOB_ID:?}.txt"  # all machines see it
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/ slots=$GPUS/" > "$HOSTFILE"
trap 'rm -f "$HOSTFILE"' EXIT
FIRST="$(sed -n '1s/ .*//p' "$HOSTFILE")"
SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-64}"  # srun takes it from the job no more
export RECIPE DEEPSPEED PORT FIRST HOSTFILE SRUN_CPUS_PER_TASK

# What stands in single quotes is run on each machine, which knows its own number
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
    exec deepspeed --hostfile "$HOSTFILE" --no_ssh --node_rank "$SLURM_NODEID" \
        --master_addr "$FIRST" --master_port "$PORT" --no_local_rank \
        --module sage_trl.train --config "$RECIPE" --resume_from_checkpoint auto --deepspeed "$DEEPSPEED"'
