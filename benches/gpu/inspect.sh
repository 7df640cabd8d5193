#!/usr/bin/env bash
# A closer look at the CUDA backend on the first GPU of this machine: matrix products, whole steps,
# every attention kernel, and what compute-sanitizer and Nsight Compute say where they are
# installed. Takes some 15 minutes.
#
#   benches/gpu/inspect.sh [EBB_BENCH [OUT]]
#
# EBB_BENCH: the binary (cargo build --release -p ebb-benches --features cuda). OUT: a folder for
# what each step printed.
set -uo pipefail
root=$(realpath "$(dirname "$0")/../..")
bin=$(realpath "${1:-$root/target/release/ebb-bench}")
out=$(realpath -m "${2:-$root/target/gpu-inspect}")
cd "$root"
mkdir -p "$out"
. benches/gpu/cublaslt.sh

failed=0
step() {  # name, seconds, command...
  local name=$1 seconds=$2 code=0
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" > "$out/$name.txt" 2>&1 || code=$?
  tail -40 "$out/$name.txt"
  [ $code -ne 0 ] && { echo "   exit code $code"; failed=1; }
  return 0
}

step attention 90 "$bin" attention --kernels decode
step products 60 "$bin" products
step step 180 "$bin" step
step step-untuned 90 "$bin" step --no-tune --batches 1,64
if command -v compute-sanitizer > /dev/null; then
  # cuBLASLt's own kernels (nvjet, split-K) read scratch they have not written and synchronise in
  # ways the tools do not know.
  others="--kernel-name-exclude kernel_substring=nvjet"
  others+=" --kernel-name-exclude kernel_substring=splitKreduce"
  step memcheck 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
    --print-limit 3 "$bin" check --quick
  step racecheck 240 compute-sanitizer --tool racecheck --error-exitcode 1 $others \
    --print-limit 3 "$bin" check --quick
  step initcheck 120 compute-sanitizer --tool initcheck --error-exitcode 1 $others \
    --print-limit 3 "$bin" check --quick
fi
if command -v ncu > /dev/null; then
  metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__cycles_active.avg,sm__cycles_active.max,sm__cycles_active.min
  step ncu-attention 60 ncu --clock-control none --metrics "$metrics" -k regex:decode \
    --launch-skip 30 --launch-count 4 "$bin" attention --repeats 10
  # One decode step at batch 64, kernel by kernel, as a table.
  metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum
  step ncu-step 120 ncu --clock-control none --cache-control none --metrics $metrics \
    --graph-profiling node --launch-skip 2600 --launch-count 700 --csv "$bin" step --batches 64
  step step-64 20 python3 benches/step_profile.py "$out/ncu-step.txt"
fi
exit $failed
