#!/bin/bash
#SBATCH --job-name=sage-eval
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.log

# Evaluates a model by an array of jobs that share the problems; the last to end writes the results. A job that is
# started again goes on where it was, and single ones can be submitted again by their numbers, as in --array=3,5:
#
#   MODEL=outputs/my-run OUTPUT=outputs/eval/my-run sbatch examples/slurm/evaluate.sh
MODEL="${MODEL:?set MODEL to a Hub id or a folder}"
OUTPUT="${OUTPUT:?set OUTPUT to a folder that all jobs see}"
BENCHMARKS="${BENCHMARKS:-math500,aime24,aime25,amc23,minerva}"
SAMPLES="${SAMPLES:-256}"
SHARDS="${SHARDS:-8}"  # as many as the array has jobs, numbered from 0
RECIPE="${RECIPE:-}"  # a training recipe, whose way of prompting and sampling is taken over
VENV="${VENV:-.venv}"

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck disable=SC1091
source "$VENV/bin/activate"

python -m sage_trl.eval --model "$MODEL" --benchmarks "$BENCHMARKS" --n "$SAMPLES" --output_dir "$OUTPUT" \
    --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" ${RECIPE:+--config "$RECIPE"}
