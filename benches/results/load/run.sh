#!/usr/bin/env bash
# The figures of this folder: SmolLM2-135M on the CPU under ebb-load. Needs a release build of `ebb`
# and `ebb-load`; takes 15 minutes.
#
#   benches/results/load/run.sh [OUT]    into OUT instead of this folder
#
# Each run's report and requests stay in its folder; its summary is what the page is made from.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
bin="$here/../../../target/release"
mkdir -p "${1:-$here}"
cd "${1:-$here}"
port=50071

serve() {
  : >server.log
  "$bin/ebb" serve --device cpu --port $port --http-port 0 --metrics-port 0 "$@" 2>server.log &
  server=$!
  trap 'kill $server 2>/dev/null || true' EXIT
  until grep -q "INFO ready" server.log; do sleep 0.2; done
}
stop() { kill $server; wait $server || true; rm server.log; }
load() { "$bin/ebb-load" "$@" --target 127.0.0.1:$port; }
kept() { mv "$1/summary.json" "$1.json"; }
short="--prompt-tokens 64 --output-tokens 32 --slo-ttft-ms 4000 --slo-itl-ms 250"

# KV memory for some 1,400 tokens at 16 bit.
serve --kv-memory 32MiB --max-running 16
load closed --concurrency 1,2,4,8,16 --duration 20 \
  --prompt-tokens uniform:100..500 --output-tokens uniform:20..80 \
  --slo-ttft-ms 5000 --slo-itl-ms 250 --title "SmolLM2-135M on two CPU cores: concurrency" \
  --out sweep
kept sweep
load replay --rate 0.7 --requests 40 --length-scale 0.25 --slo-ttft-ms 5000 --slo-itl-ms 250 \
  --title "SmolLM2-135M on two CPU cores: the Azure trace at a quarter of its lengths" --out replay
kept replay
stop
# More clients than the queue holds, and as many as run at once: nobody is to be refused.
for waiting in 1 4; do
  serve --kv-memory 256MiB --max-running 8 --max-waiting $waiting
  for seed in 1 2 3; do
    load closed --concurrency 8 --requests 48 --duration 300 \
      --prompt-tokens 64 --output-tokens 32 --seed $seed
  done
  stop
done
# A queue as short as the target for the first token asks for; and ten times what eight clients that
# never pause are served.
serve --kv-memory 256MiB --max-running 8 --max-waiting 4
load closed --concurrency 8 --duration 20 $short --out peak
ten=$(python3 -c 'import json
print(round(10 * json.load(open("peak/summary.json"))["stages"][0]["goodput"]))')
rm -r peak
load open --rate 2,6,10,14,$ten --duration 25 $short \
  --title "SmolLM2-135M on two CPU cores: overload" --out overload
kept overload
# Near the peak and ten times that, in turns, with the time that the server computed: on a shared
# machine rates say more about the others. Stages leave requests.jsonl and their reports behind in
# overload-rounds.
cpu() {
  read -r user system < <(cut -d' ' -f14,15 /proc/$server/stat)
  echo $(((user + system) * 1000 / $(getconf CLK_TCK)))
}
fields=round,rate,requests,good,goodput_per_s,server_cpu_s,good_per_server_cpu_s
echo "$fields,refusal_p50_ms,refusal_p99_ms,refusal_max_ms" >overload.csv
for round in 1 2 3; do
  for rate in 10 14 $ten; do
    before=$(cpu)
    load open --rate $rate --duration 20 $short --seed $round --out overload-rounds/$round-$rate
    cpu_ms=$(($(cpu) - before))
    summary=overload-rounds/$round-$rate/summary.json
    python3 - $round $rate $cpu_ms $summary <<'PYTHON' >>overload.csv
import json, sys
round_, rate, cpu_ms, path = sys.argv[1:]
stage = json.load(open(path))["stages"][0]
good, cpu = round(stage["goodput"] * stage["seconds"]), int(cpu_ms) / 1000
refusal = stage["refusal_ms"] or {}
cells = [round_, rate, stage["requests"], good, f"{stage['goodput']:.3f}"]
cells += [f"{cpu:.2f}", f"{good / cpu:.3f}"]
print(",".join(map(str, cells + [refusal.get(name, "") for name in ("p50", "p99", "max")])))
PYTHON
  done
done
stop
