#!/usr/bin/env bash
# What rotating keys changes, format by format and in a calibrated schedule, on the first GPU of
# this machine: one to three minutes.
#
#   EBB=target/release/ebb benches/gpu/rotation.sh OUT MODEL TEXT PROFILE
#
# EBB: the binary (cargo build --release -p ebb-engine --features cuda --bin ebb); it may have been
# built elsewhere. OUT: a folder for rotation.csv and the profiles of rotated keys, rotated.json
# (the default formats) and rotated-plain.json (int8, int4, int2); what is there already is not
# computed again. MODEL: a .gguf file or a directory. TEXT: plain text; its last 600,000 bytes
# calibrate, the first 16,384 tokens are scored. PROFILE: of keys that are not rotated, to compare
# with (quality.sh).
set -euo pipefail
if [ $# -ne 4 ]; then
  echo "usage: EBB=BINARY benches/gpu/rotation.sh OUT MODEL TEXT PROFILE" >&2
  exit 2
fi
profile=$(realpath "$4")
. "$(dirname "$0")/model_and_text.sh"
cp "$profile" .
profile=$(basename "$profile")

calibrate() {
  "$ebb" calibrate --device cuda --model "$model" --text calibration.txt --samples 8 \
    --rotate-v --rotate-k "$@"
}
calibrate --out rotated.json
calibrate --formats int8,int4,int2 --out rotated-plain.json

specs=()
for keys in int8 int4 int3 int2 int2c kitty25 kitty25c kitty12c int4t int2t polar44; do
  specs+=("k=$keys" "k=$keys,rotate=k")
done
for pair in int4,v=int4 int4,v=int2c int3,v=int3 int3,v=int2c kitty25c,v=int2c kitty12c,v=int2c \
  int2,v=int2c int2c,v=int2c; do
  specs+=("k=$pair,rotate=v" "k=$pair,rotate=kv")
done
for bits in 8 6 5 4 3.5 3 2.75 2.6; do
  specs+=("profile:$profile@$bits" "profile:rotated.json@$bits" "profile:rotated-plain.json@$bits")
done
python3 "$root/benches/quality.py" "$ebb" "$model" "$text" rotation.csv --device cuda --windows 4 \
  "${specs[@]}"
