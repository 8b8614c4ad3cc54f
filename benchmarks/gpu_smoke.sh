#!/bin/bash
# SAGE on one CUDA GPU with the real vLLM, in at most ten minutes, and a table of what it took:
#
#   benchmarks/gpu_smoke.sh > gpu_smoke.md
#
# VENV is an environment with "sage-trl[vllm]". Arguments are those of benchmarks/gpu_smoke.py, such as --rounds 1.
VENV="${VENV:-.venv}"

set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091
source "$VENV/bin/activate"
# The engine belongs into the process that trains, and nothing is to be downloaded
export VLLM_ENABLE_V1_MULTIPROCESSING=0 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec timeout 600 python -m benchmarks.gpu_smoke "$@"
