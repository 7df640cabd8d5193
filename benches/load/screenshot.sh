#!/usr/bin/env bash
# A picture of a report, by a headless Chromium that finds no network.
#
#   benches/load/screenshot.sh REPORT.html OUT.png [WIDTH] [HEIGHT]
#
# WIDTH and HEIGHT are CSS pixels, 1300 × 1270 unless told; the file has three for two.
#
# Takes $CHROMIUM, or the machine's chromium or Chrome; where there is none, root on Debian gets it
# from apt.
set -euo pipefail
report=$(realpath -e "${1:?usage: screenshot.sh REPORT.html OUT.png [WIDTH] [HEIGHT]}")
out=$(realpath -m "${2:?usage: screenshot.sh REPORT.html OUT.png [WIDTH] [HEIGHT]}")
find_chromium() {
  for name in ${CHROMIUM:-} chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" && return
  done
  return 1
}
if ! chromium=$(find_chromium); then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && {
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
  } >&2 || {
    echo "screenshot.sh: there is no Chromium; install one, or name it in CHROMIUM" >&2; exit 1; }
  chromium=$(find_chromium)
fi
profile=$(mktemp -d); trap 'rm -rf "$profile"' EXIT
# Root has no sandbox of its own; the page is ours, and is a file.
[ "$(id -u)" != 0 ] || unboxed=--no-sandbox
rm -f "$out"
timeout 120 "$chromium" --headless ${unboxed:-} --disable-gpu --disable-dev-shm-usage \
  --user-data-dir="$profile" --hide-scrollbars \
  --host-resolver-rules="MAP * ~NOTFOUND" --force-device-scale-factor=1.5 \
  --window-size="${3:-1300},${4:-1270}" --virtual-time-budget=5000 --screenshot="$out" \
  "file://$report" 2>"$profile/log" >&2 || { cat "$profile/log" >&2; exit 1; }
[ -s "$out" ] \
  || { echo "screenshot.sh: Chromium made no picture:" >&2; cat "$profile/log" >&2; exit 1; }
