#!/usr/bin/env bash
# What a GPU draws and how fast its multiprocessors run while the engine works: one workload, the
# card read ten times a second (it is only read).
#
#   benches/gpu/power.sh EBB_BENCH OUT.csv [OPTIONS OF ebb-bench throughput]
#
# OUT.csv: `sm_mhz,watts,power_cap,utilization_percent`, a line a reading; power_cap says whether
# the driver holds clocks down to stay within the card's power limit. Prompts come first, then all
# decode: where clocks step up, if they do, that begins.
set -euo pipefail
bin=$(realpath "$1")
out=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/../.."
. benches/gpu/cublaslt.sh
fields=clocks.sm,power.draw.instant,clocks_event_reasons.sw_power_cap,utilization.gpu
echo sm_mhz,watts,power_cap,utilization_percent > "$out"
nvidia-smi --query-gpu=$fields --format=csv,noheader,nounits -lms 100 \
  | sed -u 's/, /,/g; s/Not Active/no/; s/Active/yes/' >> "$out" &
trap 'kill $!' EXIT
"$bin" throughput --device cuda --model benches/data/llama-3.1-8b "$@"
