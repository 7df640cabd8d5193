#!/usr/bin/env bash
# Measures packed weights beside bf16 on the first GPU of this machine, a model of Llama-3.1-8B's
# shape with random weights.
#
#   benches/gpu/packed.sh OUT [EBB_BENCH] [PART...]
#
# OUT: a folder for run.txt and the CSV files.
# EBB_BENCH: the binary (cargo build --release -p ebb-benches --features cuda), target/release's
#   unless told.
# PART: check, products, steps, engine, card24, long or startup; all of them unless told.
set -euo pipefail
out=$(realpath -m "${1:?usage: packed.sh OUT [EBB_BENCH] [PART...]}")
cd "$(dirname "$0")/../.."
bin=$(realpath "${2:-target/release/ebb-bench}")
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- check products steps engine card24 long startup
model=benches/data/llama-3.1-8b
mkdir -p "$out"
. benches/gpu/cublaslt.sh

{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(date -u +%F)"
  nvidia-smi --query-gpu=name,driver_version,power.limit,memory.total --format=csv,noheader
} > "$out/run.txt"

formats=(bf16 fp8 int4)

# throughput NAME FORMAT WORKLOADS [FLAG...]: appends to NAME-FORMAT.csv.
throughput() {
  local csv=$out/$1-$2.csv
  local flags=()
  [ "$2" = bf16 ] || flags=(--quantization "$2")
  "$bin" throughput --device cuda --model $model --out "$csv" "${flags[@]}" --workloads "${@:3}"
}

for part in "$@"; do
  echo "== $part" >&2
  case $part in
    check) "$bin" check --only packed > "$out/check.txt" ;;
    products) "$bin" products --packed --rows 1,8,16,32,64,128,256 > "$out/products.csv" ;;
    steps)
      for format in bf16 fp8 fp8-blocks int8 int4 q4 mxfp4; do
        flags=()
        [ $format = bf16 ] || flags=(--quantization $format)
        "$bin" step --batches 1,8,16,32,64,128,256 "${flags[@]}" > "$out/steps-$format.csv"
      done
      ;;
    engine)
      for format in "${formats[@]}"; do
        throughput engine $format 1x1024/256,64x1024/256,256x1024/256,1x8192/16
        throughput engine $format 256x1024/256 --kv-mode static --kv-floor k=int4,v=int4
      done
      ;;
    card24) # what a card of 24 GB holds in all, weights, workspaces and KV cache
      share=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits |
        awk 'NR == 1 { printf "%.4f", 24 * 1024 / $1 }')
      for format in "${formats[@]}"; do
        for work in 64x8192/512 64x256/4096; do
          throughput card24 $format $work --gpu-memory-utilization "$share" \
            --kv-mode progressive || echo "$format $work: refused" >> "$out/card24.txt"
        done
      done
      ;;
    long)
      for work in 1x32512/128 1x130816/128; do
        throughput long bf16 $work --kv-mode preempt-only
        throughput long int4 $work --kv-mode preempt-only
        throughput long int4 $work --kv-mode static --kv-floor k=int4,v=int4
      done
      ;;
    startup)
      for format in "${formats[@]}"; do
        flags=()
        [ $format = bf16 ] || flags=(--quantization $format)
        "$bin" startup --device cuda --model $model --out "$out/startup-$format.csv" "${flags[@]}"
      done
      ;;
    *) echo "packed.sh: no part is called $part" >&2; exit 2 ;;
  esac
done
