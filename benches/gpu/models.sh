#!/usr/bin/env bash
# Measures models with experts, sliding windows and recurrent layers on the first GPU of this
# machine, in the shapes of Qwen3-30B-A3B, gpt-oss-20B, Gemma 3 12B, Qwen3.6-27B and Nemotron 3 Nano
# with random weights.
#
#   benches/gpu/models.sh OUT [EBB_BENCH] [PART...]
#
# OUT: a folder for run.txt and the CSV files.
# EBB_BENCH: the binary (cargo build --release -p ebb-benches --features cuda), target/release's
#   unless told.
# PART: check, windows, kv, qwen3, gpt-oss, gemma, gemma4, hybrid, nemotron, experts, recurrent or
#   profile (where Nsight Compute is installed); all of them unless told.
set -euo pipefail
out=$(realpath -m "${1:?usage: models.sh OUT [EBB_BENCH] [PART...]}")
cd "$(dirname "$0")/../.."
bin=$(realpath "${2:-target/release/ebb-bench}")
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] ||
  set -- check windows kv qwen3 gpt-oss gemma gemma4 hybrid nemotron experts recurrent profile
mkdir -p "$out"
. benches/gpu/cublaslt.sh

{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(date -u +%F)"
  nvidia-smi --query-gpu=name,driver_version,power.limit,memory.total --format=csv,noheader
} > "$out/run.txt"

# throughput NAME MODEL [FLAG...]: appends to NAME.csv.
throughput() {
  "$bin" throughput --device cuda --model "benches/data/$2" --out "$out/$1.csv" "${@:3}" \
    --workloads 1x1024/256,64x1024/256,256x1024/256 || echo "$1: refused" >> "$out/run.txt"
}

for part in "$@"; do
  echo "== $part" >&2
  case $part in
    check) "$bin" check > "$out/check.txt" ;;
    windows) "$bin" windows > "$out/windows.csv" ;;
    kv)
      "$bin" kv-memory benches/data/{gpt-oss-20b,gemma-3-12b,qwen3-30b-a3b,llama-3.1-8b} \
        > "$out/kv-memory.csv"
      ;;
    qwen3)
      throughput qwen3-30b-a3b qwen3-30b-a3b
      throughput qwen3-30b-a3b-fp8 qwen3-30b-a3b --quantization fp8
      ;;
    gpt-oss)
      throughput gpt-oss-20b gpt-oss-20b
      throughput gpt-oss-20b-mxfp4 gpt-oss-20b --quantization mxfp4
      ;;
    gemma) throughput gemma-3-12b gemma-3-12b ;;
    gemma4) throughput gemma-4 gemma-4 ;;
    nemotron) throughput nemotron-3-nano nemotron-3-nano ;;
    experts)
      "$bin" experts --rows 1,4,16,64,96,128,192,256,512,1024,4096,8192 > "$out/experts.csv"
      ;;
    recurrent) "$bin" recurrent > "$out/recurrent.csv" ;;
    profile)
      # One decode step, kernel by kernel: 1 and 64 sequences.
      for batch in 1 64; do
        ncu --clock-control none --cache-control none --graph-profiling node --csv \
          --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum \
          --launch-skip 3000 --launch-count 1500 \
          "$bin" step --model benches/data/qwen3-30b-a3b --no-tune --batches "$batch" \
          > "$out/ncu.txt" || true
        python3 benches/step_profile.py "$out/ncu.txt" --gbps 3000 \
          > "$out/step-qwen3-30b-a3b-$batch.csv"
        rm -f "$out/ncu.txt"
      done
      ;;
    hybrid)
      throughput qwen3.6-27b qwen3.6-27b
      throughput qwen3.6-27b-fp8 qwen3.6-27b --quantization fp8
      ;;
    *) echo "models.sh: no part is called $part" >&2; exit 2 ;;
  esac
done
