#!/usr/bin/env bash
# What shrinking brings on the GPU of this machine: attention over shrunk blocks, prompts over a
# shrunk context, and the engine where memory is short. About 11 minutes.
#
#   benches/gpu/shrunk.sh [EBB_BENCH [OUT]]
#
# EBB_BENCH: the binary (cargo build --release -p ebb-benches --features cuda). OUT: a folder for
# attention.csv, attention-clean-l2.csv, prompts.csv, throughput.csv and itl.csv.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-target/release/ebb-bench}
out=${2:-target/gpu-shrunk}
mkdir -p "$out"
rm -f "$out"/{throughput,itl}.csv

. benches/gpu/cublaslt.sh

"$bin" attention > "$out/attention.csv"
"$bin" attention --clean-l2 > "$out/attention-clean-l2.csv"
"$bin" prompts > "$out/prompts.csv"
throughput() {
  timeout 200 "$bin" throughput --device cuda --model benches/data/llama-3.1-8b \
    --out "$out/throughput.csv" --itl "$out/itl.csv" "$@" > /dev/null
}
throughput --workloads 1x1024/256,64x1024/256,256x1024/256,1x8192/16
throughput --workloads 256x1024/256 --kv-mode static --kv-floor k=int4,v=int4
for mode in preempt-only static progressive; do
  throughput --workloads 64x8192/512 --kv-memory 16GiB --kv-mode $mode
done
for mode in preempt-only static progressive; do
  throughput --workloads 128x256/4096 --kv-memory 16GiB --kv-mode $mode
done
for mode in static progressive; do
  throughput --workloads 128x256/4096 --kv-memory 8GiB --kv-mode $mode
done
sed 's/,/\t/g' "$out/throughput.csv" | expand -t 14
