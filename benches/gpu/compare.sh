#!/usr/bin/env bash
# Two builds of `ebb-bench` beside each other on the first GPU: decode attention at three shapes and
# the whole engine at 1, 64 and 256 requests, by turns, so that both see the same clocks.
#
#   benches/gpu/compare.sh OLD NEW [OUT [TURNS]]
#
# OUT gets attention-{old,new}.csv and throughput-{old,new}.csv with a block of rows for each turn.
set -uo pipefail
old=$(realpath "$1") new=$(realpath "$2")
out=$(realpath -m "${3:-target/gpu-compare}")
turns=${4:-3}
cd "$(dirname "$0")/../.."
mkdir -p "$out"
rm -f "$out"/*.csv
. benches/gpu/cublaslt.sh

failed=0
for turn in $(seq "$turns"); do
  for which in old new; do
    for shape in 128x8192 64x4096 8x32768; do
      "${!which}" attention --shapes "$shape" --clean-l2 >>"$out/attention-$which.csv" || failed=1
    done
    "${!which}" throughput --device cuda --model benches/data/llama-3.1-8b \
      --workloads 1x1024/256,64x1024/256,256x1024/256 \
      --out "$out/throughput.tmp" >/dev/null 2>>"$out/log.txt" || failed=1
    cat "$out/throughput.tmp" >>"$out/throughput-$which.csv"
    rm -f "$out/throughput.tmp"
  done
  echo "turn $turn: ${SECONDS}s" >&2
done
python3 benches/gpu/compare.py "$out"
exit $failed
