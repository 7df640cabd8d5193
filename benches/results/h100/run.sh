#!/usr/bin/env bash
# Measures what the page of this folder shows, on the first GPU of this machine.
#
#   benches/results/h100/run.sh OUT [EBB_BENCH] [PART...]
#
# OUT: a folder for run.txt, attention.csv, throughput.csv and startup.csv.
# EBB_BENCH: the binary (cargo build --release -p ebb-benches --features cuda), target/release's
#   unless told.
# PART: attention, 16bit, shrunk or startup; all of them unless told. Each takes some minutes.
set -euo pipefail
out=$(realpath -m "${1:?usage: run.sh OUT [EBB_BENCH] [PART...]}")
cd "$(dirname "$0")/../../.."
bin=$(realpath "${2:-target/release/ebb-bench}")
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- attention 16bit shrunk startup
model=benches/data/llama-3.1-8b
mkdir -p "$out"
. benches/gpu/cublaslt.sh

{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(date -u +%F)"
  nvidia-smi --query-gpu=name,driver_version,power.limit,memory.total --format=csv,noheader
} > "$out/run.txt"

throughput() {
  "$bin" throughput --device cuda --model $model --out "$out/throughput.csv" --workloads "$@"
}

for part in "$@"; do
  echo "== $part" >&2
  case $part in
    attention) "$bin" attention --clean-l2 > "$out/attention.csv" ;;
    16bit)
      throughput 1x1024/256,64x1024/256,256x1024/256,1x8192/16
      throughput 64x8192/512 --kv-memory 16GiB --kv-mode preempt-only
      throughput 128x256/4096 --kv-memory 16GiB --kv-mode preempt-only
      ;;
    shrunk)
      throughput 256x1024/256 --kv-mode static --kv-floor k=int4,v=int4
      for mode in static progressive; do
        throughput 64x8192/512 --kv-memory 16GiB --kv-mode $mode
        throughput 128x256/4096 --kv-memory 16GiB --kv-mode $mode
        throughput 128x256/4096 --kv-memory 8GiB --kv-mode $mode
      done
      ;;
    startup) "$bin" startup --device cuda --model $model --out "$out/startup.csv" ;;
    *) echo "run.sh: no part is called $part" >&2; exit 2 ;;
  esac
done
