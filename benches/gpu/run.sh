#!/usr/bin/env bash
# Correctness, then figures, of Ebb on the first GPU of this machine: within 8 minutes, in one go.
#
#   benches/gpu/run.sh [EBB_BENCH [OUT]]
#
# EBB_BENCH: the binary (cargo build --release -p ebb-benches --features cuda); it may have been
# built elsewhere, and needs only the driver and cuBLASLt. OUT: a folder for attention.csv,
# attention-clean-l2.csv, throughput.csv, startup.csv and log.txt; what is there already is
# replaced. Exits nonzero if a check or a benchmark failed; the rest runs all the same.
set -uo pipefail
root=$(realpath "$(dirname "$0")/../..")
bin=$(realpath "${1:-$root/target/release/ebb-bench}")
out=$(realpath -m "${2:-$root/target/gpu-run}")
cd "$root"
model=benches/data/llama-3.1-8b
mkdir -p "$out"
rm -f "$out"/{attention,throughput,startup}.csv "$out/log.txt"

. benches/gpu/cublaslt.sh

failed=0
step() {  # seconds, file for its output, command...; errors and progress go to the log
  local seconds=$1 file=$2 code=0
  shift 2
  echo "== ${SECONDS}s: $*" | tee -a "$out/log.txt" >&2
  timeout "$seconds" "$@" > "$file" 2>> "$out/log.txt" || code=$?
  if [ $code -ne 0 ]; then
    failed=1
    echo "   exit code $code" | tee -a "$out/log.txt" >&2
    tail -3 "$out/log.txt" >&2
  fi
}

step 90 "$out/check.tmp" "$bin" check
cat "$out/check.tmp" >> "$out/log.txt"
grep -v '^pass' "$out/check.tmp"
rm "$out/check.tmp"
step 120 "$out/attention.csv" "$bin" attention
step 120 "$out/attention-clean-l2.csv" "$bin" attention --clean-l2
throughput() {
  step "$1" /dev/null "$bin" throughput --device cuda --model $model \
    --out "$out/throughput.csv" "${@:2}"
}
throughput 60 --workloads 1x1024/256,64x1024/256,256x1024/256,1x8192/16
throughput 60 --workloads 64x8192/512 --kv-memory 16GiB
throughput 150 --workloads 128x256/4096 --kv-memory 16GiB
step 60 /dev/null "$bin" startup --device cuda --model $model --out "$out/startup.csv"

for name in attention throughput startup; do
  echo
  [ -s "$out/$name.csv" ] && sed 's/,/\t/g' "$out/$name.csv" | expand -t 14
done
echo
ended=$([ $failed = 0 ] && echo 'everything ran' || echo 'SOMETHING FAILED')
echo "${SECONDS}s in all; $ended; see $out/log.txt"
exit $failed
