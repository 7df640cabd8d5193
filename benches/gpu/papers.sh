#!/usr/bin/env bash
# What the papers' modes and their ablations cost a model, on the first GPU of this machine: some
# minutes.
#
#   EBB=target/release/ebb benches/gpu/papers.sh OUT MODEL TEXT
#
# EBB: the binary (cargo build --release -p ebb-engine --features cuda --bin ebb); it may have been
# built elsewhere. OUT: a folder for the profiles, the figures behind them and quality.csv; what is
# there already is not computed again. MODEL: a .gguf file or a directory. TEXT: plain text; its
# last 600,000 bytes calibrate, the first 16,384 tokens are scored. SAMPLES: windows of 2,048 tokens
# for PM-KVQ (64), of which KEY_SAMPLES choose λ (4). NORMS: windows of 512 tokens for KVmix (24).
# PARTS: which of `modes kvmix pmkvq` to run (all).
set -euo pipefail
if [ $# -ne 3 ]; then
  echo "usage: EBB=BINARY benches/gpu/papers.sh OUT MODEL TEXT" >&2
  exit 2
fi
parts=${PARTS:-modes kvmix pmkvq}
. "$(dirname "$0")/model_and_text.sh"

score() {
  local begin=$SECONDS
  python3 "$root/benches/quality.py" "$ebb" "$model" "$text" quality.csv --device cuda --as-is \
    "$@" > /dev/null
  echo "scored $# modes in $((SECONDS - begin)) s"
}
calibrate() { # calibrate NAME FLAGS...
  local begin=$SECONDS name=$1
  shift
  [ -f "$name.json" ] && return
  "$ebb" calibrate --device cuda --model "$model" --text calibration.txt --out "$name.json" "$@" \
    > "$name.txt" 2>&1 || { cat "$name.txt" >&2; return 1; }
  echo "$name in $((SECONDS - begin)) s"
}

for part in $parts; do
  case $part in
    modes)
      score kivi4 kivi2 kivi2-128 \
        kitty25 kitty25-top kitty25-page kitty25-variance kitty25-random \
        kitty12 kitty12-page kitty12-variance kitty12-random \
        k=kitty25,v=int2,protect=f16,sink=0,recent.k=0,recent.v=1 \
        k=kitty25page,v=int2,protect=f16,sink=0,recent.k=0,recent.v=1 \
        k=kitty25page,v=int2,protect=f16,sink=32,recent.k=0,recent.v=1 \
        k=int2,v=int2,protect=f16,recent.k=0,recent.v=1 \
        polarquant44 polarquant42 polarquant44-grid \
        polarquant44-paper polarquant42-paper polarquant44-page \
        k=polar44g64,protect=f16,sink=0,recent.k=1,recent.v=0 \
        pmkvq-shift4 pmkvq-direct4 pmkvq-modified4 \
        pmkvq-shift4-token pmkvq-direct4-token pmkvq-modified4-token \
        pmkvq-shift2 pmkvq-direct2 pmkvq-modified2 \
        pmkvq-shift2-token pmkvq-direct2-token pmkvq-modified2-token \
        ebb
      ;;
    kvmix)
      # One set of norms; then the layers with more bits, and the shares of recent context.
      modes=()
      for high in 20 30; do
        for recent in 0/0 10/0 10/10 20/10 20/20; do
          name=kvmix$high-${recent/\//-}
          [ -f norms.losses ] && cp norms.losses "$name.json.losses"
          calibrate "$name" --method kvmix --samples "${NORMS:-24}" --share "$high" \
            --recent "$recent" --high k=kvmix11,v=int4g32 --low k=int2g32,v=int2g32
          mv "$name.json.losses" norms.losses
          modes+=("profile:$name.json,protect=f16,sink=0,recent=share")
        done
        modes+=("kvmix:kvmix$high-20-10.json")
      done
      score "${modes[@]}"
      ;;
    pmkvq)
      # Keys per token, as the paper's, and per channel, as ours; the program over layers and over
      # pages; with and without λ; the positions of the sensitivities 4 apart and 1 apart.
      modes=()
      for keys in token channel; do
        case $keys in
          token) ladder=int8t,int4t,int2t,int8,int4,int2 floors=int4t,int2t,int4,int2 ;;
          channel) ladder=int8,int4,int2 floors=int4,int2 ;;
        esac
        for stride in 4 1; do
          [ "$keys$stride" = channel1 ] && continue
          run=(--method pmkvq --ctx 2048 --samples "${SAMPLES:-64}" --position-stride "$stride"
            --formats "$ladder" --floors "$floors" --budget 3)
          name=pmkvq-$keys-stride$stride
          calibrate "$name" "${run[@]}" --per-layer
          if [ "$stride" = 4 ]; then
            modes+=("profile:$name.json,protect=f16,recent=0")
            cp "$name.json.losses" "$name-pages.json.losses"
            calibrate "$name-pages" "${run[@]}"
            modes+=("pmkvq:$name-pages.json")
          fi
          modes+=("pmkvq:$name.json")
          if [ $keys = token ]; then
            cp "$name.json.losses" "$name-scaled.json.losses"
            calibrate "$name-scaled" "${run[@]}" --per-layer --key-scales int2t \
              --key-scale-samples "${KEY_SAMPLES:-4}"
            modes+=("pmkvq:$name-scaled.json" "pmkvq-token4:$name-scaled.json"
              "pmkvq-token2:$name-scaled.json")
          fi
        done
      done
      modes+=(k=int4t,v=int4,protect=f16,recent=0 k=int2t,v=int2,protect=f16,recent=0
        k=int4,v=int4,protect=f16,recent=0 k=int2,v=int2,protect=f16,recent=0
        k=int4t,v=int4,protect=f16,recent=0,shrink=by-length
        k=int2t,v=int2,protect=f16,recent=0,shrink=by-length
        k=int4,v=int4,protect=f16,recent=0,shrink=by-length
        k=int2,v=int2,protect=f16,recent=0,shrink=by-length)
      score "${modes[@]}"
      ;;
    *)
      echo "papers.sh: no part is called $part; there are modes, kvmix and pmkvq" >&2
      exit 2
      ;;
  esac
done
