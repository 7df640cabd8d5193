#!/usr/bin/env bash
# Compares the answers of two `ebb` binaries on the CPU, to the last bit that they print: sampled
# tokens, log-probabilities and KV bits over prompts and modes, losses of every page format.
#
#   tests/compare_binaries.sh OLD NEW
#
# A refactoring must leave all of them alone. Needs the default model.
set -euo pipefail
old=$(realpath "$1") new=$(realpath "$2")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
text=tests/data/wikitext2-test-head.txt
differ=0 count=0

both() { # both NAME ARG...: runs both binaries, compares what they print
  local name=$1
  shift
  "$old" "$@" --log error >"$work/old" 2>"$work/old.err" || echo "exit $?" >>"$work/old"
  "$new" "$@" --log error >"$work/new" 2>"$work/new.err" || echo "exit $?" >>"$work/new"
  # Times are not answers.
  sed -E 's/"[a-z_]*second[a-z_]*": ?[0-9.e-]+//g' -i "$work/old" "$work/new"
  count=$((count + 1))
  if cmp -s "$work/old" "$work/new" && [ -s "$work/new" ] && ! grep -q '^exit' "$work/new"; then
    printf '%-44s same, %s\n' "$name" "$(sha256sum <"$work/new" | cut -c1-12)"
  else
    printf '%-44s DIFFERENT\n' "$name"
    diff "$work/old" "$work/new" | head -5 | cut -c1-300
    head -3 "$work/new.err" | cut -c1-300
    differ=1
  fi
}

long="$(head -c 3000 "$text")"
answer=(--json --logprobs 5 --max-tokens 160 --ignore-eos)
for mode in progressive static preempt-only; do
  for memory in 24MiB 64MiB; do
    both "generate, $mode, $memory, greedy" generate -p "$long" "${answer[@]}" -t 0 \
      --kv-mode $mode --kv-memory $memory
  done
  both "generate, $mode, sampled" generate -p "$long" "${answer[@]}" -t 0.9 --top-p 0.9 --seed 7 \
    --kv-mode $mode --kv-memory 24MiB
done
for prompt in "The capital of Japan is" "def add(a, b):" "日本の首都は"; do
  both "generate, $prompt" generate -p "$prompt" "${answer[@]}" -t 0
done
both "generate, kitty25" generate -p "$long" "${answer[@]}" -t 0 --kv-preset kitty25
both "generate, polarquant44" generate -p "$long" "${answer[@]}" -t 0 --kv-preset polarquant44
both "generate, min_kv_bits 16" generate -p "$long" "${answer[@]}" -t 0 --min-kv-bits 16 \
  --kv-memory 24MiB

for spec in k=int8,v=int8 k=int4,v=int4 k=int3,v=int3 k=int2,v=int2 k=int2c,v=int2c \
  k=kitty25,v=int2 k=kitty25c,v=int2c k=kitty12,v=int2 k=kitty12c,v=int2c k=polar44,v=int4 \
  k=polar42,v=int2 k=int4t,v=int4 k=int2t,v=int2 k=int4,v=int4,rotate=v k=int4,v=int4,rotate=k; do
  both "eval, $spec" eval --text "$text" --ctx 768 --windows 1 --json --kv "$spec"
done

echo "$count comparisons"
exit $differ
