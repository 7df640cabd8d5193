#!/usr/bin/env bash
# What the page formats and a calibrated schedule cost a model, on the first GPU of this machine: a
# few minutes.
#
#   EBB=target/release/ebb benches/gpu/quality.sh OUT MODEL TEXT
#
# EBB: the binary (cargo build --release -p ebb-engine --features cuda --bin ebb); it may have been
# built elsewhere. OUT: a folder for the profile and the losses behind it (MODEL's name, .json and
# .json.losses) and for quality.csv; what is there already is not computed again. MODEL: a .gguf
# file or a directory. TEXT: plain text, at least 20,000 tokens beyond its last 600,000 bytes: those
# calibrate, the first 16,384 tokens are scored. SAMPLES, WINDOWS: windows of 1,024 tokens that
# calibrate (8), of 4,096 that are scored (4).
set -euo pipefail
if [ $# -ne 3 ]; then
  echo "usage: EBB=BINARY benches/gpu/quality.sh OUT MODEL TEXT" >&2
  exit 2
fi
. "$(dirname "$0")/model_and_text.sh"

profile=$(basename "$model" .gguf).json
begin=$SECONDS
"$ebb" calibrate --device cuda --model "$model" --text calibration.txt --samples "${SAMPLES:-8}" \
  --rotate-v --out "$profile"
calibrated=$SECONDS

specs=(
  k=int8,v=int8 k=int4,v=int4 k=int4,v=int2 k=int3,v=int3 k=int3,v=int2 k=int2,v=int4
  k=kitty25,v=int2 k=kitty12,v=int2 k=int2,v=int2 k=int4 k=int3 k=kitty25 k=kitty12 k=int2 v=int4
  v=int2 v=int2,rotate=v k=int4,v=int2,rotate=v k=kitty25,v=int4,rotate=v k=kitty25,v=int2,rotate=v
  k=kitty12,v=int2,rotate=v k=int2,v=int2,rotate=v
)
# Clipped 2-bit pages, what calibrated schedules come down to; those above are what they are
# compared with.
specs+=(
  k=kitty25c,v=int2c k=kitty12c,v=int2c k=int2c,v=int2c k=int4,v=int2c k=kitty25c k=kitty12c k=int2c
  v=int2c v=int2c,rotate=v
)
# What a schedule is compared with: every uniform mix of its own formats, V rotated as its is.
mixes=()
for keys in int8 int4 kitty25c kitty12c int2c; do
  for values in int8 int4 int2c; do
    mixes+=("k=$keys,v=$values,rotate=v")
  done
done
specs+=("${mixes[@]}")
for bits in 8 6 5 4 3.5 3 2.75 2.6; do
  specs+=("profile:$profile@$bits")
done
score() {
  python3 "$root/benches/quality.py" "$ebb" "$model" "$text" quality.csv --device cuda \
    --windows "${WINDOWS:-4}" "$@"
}
score "${specs[@]}"

# The schedule at each mix's own width, which follows from the heads' channels: the table `mixes` of
# benches/results/calibrate is made of these rows.
mapfile -t cuts < <(
  python3 - "$profile" "${mixes[@]}" <<'WIDTHS'
import csv, sys
profile, *mixes = sys.argv[1:]
wanted = {f"{mix},protect=f16" for mix in mixes}
rows = [row for row in csv.DictReader(open("quality.csv")) if row["kv"] in wanted]
for bits in sorted({float(row["mean_bits_sealed"]) for row in rows}):
    print(f"profile:{profile}@{bits}")
WIDTHS
)
if [ ${#cuts[@]} -eq 0 ]; then
  echo "quality.sh: quality.csv has no row of a mix, so no width to cut the schedule at" >&2
  exit 1
fi
score "${cuts[@]}"

python3 - <<'TABLE'
import csv
keys = """mean_bits_sealed mean_bits kl_second_half ppl_second_half top1_second_half
ppl_16bit_second_half""".split()
rows = sorted(csv.DictReader(open("quality.csv")), key=lambda row: float(row["mean_bits_sealed"]))
widest = max(len(row["kv"]) for row in rows)
print(" " * widest, *(f"{key.replace('_second_half', ''):>16}" for key in keys))
for row in rows:
    print(f"{row['kv']:<{widest}}", *(f"{float(row[key]):>16.5f}" for key in keys))
TABLE
echo "calibrated in $((calibrated - begin)) s, scored in $((SECONDS - calibrated)) s"
