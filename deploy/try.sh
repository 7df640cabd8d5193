#!/usr/bin/env bash
# Builds Ebb, fetches the default model, serves it on free loopback ports, asks it one question over
# gRPC, and stops.
#
#   deploy/try.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."
prompt=${1:-"What is the capital of Japan? Answer in one sentence."}
cargo build --release --bin ebb
ebb=${CARGO_TARGET_DIR:-target}/release/ebb
"$ebb" fetch
read -r port http_port metrics_port < <(python3 - <<'PY'
import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))
PY
)
log=$(mktemp)
"$ebb" serve --host 127.0.0.1 --port "$port" --http-port "$http_port" \
  --metrics-port "$metrics_port" 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 600); do
  if python3 -c "import urllib.request as u
u.urlopen('http://127.0.0.1:$metrics_port/readyz', timeout=1)" 2>/dev/null; then break; fi
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
echo "serving on 127.0.0.1:$port; asking: $prompt"
"$ebb" generate --server "http://127.0.0.1:$port" --chat --prompt "$prompt" --temperature 0 \
  --max-tokens 64
echo
echo "To keep a server running:  $ebb serve"
echo "To talk to it:             $ebb chat --server http://127.0.0.1:50051"
echo "From OpenAI's client:      OpenAI(base_url=\"http://127.0.0.1:8000/v1\", api_key=\"none\")"
