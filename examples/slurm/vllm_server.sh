#!/bin/bash
#SBATCH --job-name=sage
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=USR1@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# Trains on all machines but the last, which generates: a vLLM server has it for itself, and ends when training does.
# All else is as in several_nodes.sh, of which this is the variant for models that leave no room for vLLM beside the
# trainer. Needs "sage-trl[vllm]".
#
#   sbatch --nodes 3 examples/slurm/vllm_server.sh
#
# Five minutes before its time is over it saves a checkpoint. When SLURM wants the machines back (SIGTERM) the server
# goes at once, and what the run saves is not certain.
RECIPE="${RECIPE:-recipes/Qwen2.5-Math-7B/sage_branch.yaml}"
CONFIG="${CONFIG:-recipes/accelerate_configs/zero2_multinode.yaml}"
VENV="${VENV:-.venv}"
STOPPABLE="${STOPPABLE:-examples/slurm/stoppable.sh}"
PORT="${PORT:-29500}"
SERVER_PORT="${SERVER_PORT:-8000}"
GPUS="${SLURM_GPUS_ON_NODE:-8}"
TENSOR_PARALLEL="${TENSOR_PARALLEL:-4}"  # GPUs that share the server's model; they divide its attention heads

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck disable=SC1091
source "$VENV/bin/activate"

mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
FIRST="${NODES[0]}" SERVER="${NODES[-1]}" TRAINING="$((${#NODES[@]} - 1))"
if ((TRAINING == 0)); then
    echo "vllm_server.sh: one machine is too few, the server needs its own: sbatch --nodes 2" >&2
    exit 1
fi
MODEL="$(python -c 'import sys, yaml; print(yaml.safe_load(open(sys.argv[1]))["model_name_or_path"])' "$RECIPE")"
SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-64}"  # srun takes it from the job no more
export RECIPE CONFIG STOPPABLE PORT GPUS FIRST SERVER SERVER_PORT TRAINING MODEL TENSOR_PARALLEL SRUN_CPUS_PER_TASK

trap : TERM USR1  # for the processes of `srun`, which this shell waits for
# `trl vllm-serve` starts vLLM with what each version of TRL wants of it. SIGUSR1 is for those that train
# shellcheck disable=SC2016
srun --nodes=1 --ntasks=1 --nodelist="$SERVER" bash -c '
    trap "" USR1
    exec trl vllm-serve --model "$MODEL" --port "$SERVER_PORT" --tensor_parallel_size "$TENSOR_PARALLEL"' &
server=$!
trap 'kill "$server" 2> /dev/null || true; wait' EXIT

until curl --silent --fail --output /dev/null "http://$SERVER:$SERVER_PORT/health"; do
    kill -0 "$server" 2> /dev/null || { echo "vllm_server.sh: the server ended before it was ready" >&2; exit 1; }
    sleep 2
done

# What stands in single quotes is run on each machine, which knows its own number
# shellcheck disable=SC2016
srun --nodes="$TRAINING" --ntasks="$TRAINING" --exclude="$SERVER" --kill-on-bad-exit=1 bash -c '
    exec "$STOPPABLE" accelerate launch --config_file "$CONFIG" \
        --num_machines "$TRAINING" --num_processes "$((TRAINING * GPUS))" --machine_rank "$SLURM_NODEID" \
        --main_process_ip "$FIRST" --main_process_port "$PORT" \
        -m sage_trl.train --config "$RECIPE" --resume_from_checkpoint auto --save_on_signal true \
        --use_vllm true --vllm_mode server --vllm_server_host "$SERVER" --vllm_server_port "$SERVER_PORT"'
