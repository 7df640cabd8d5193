#!/usr/bin/env bash
# Tests what an image promises; deploy/image.sh --check calls it.
#
#   EBB_WORK=DIR deploy/image/check.sh IMAGE FEATURES [FETCH_IMAGE]
set -euo pipefail
cd "$(dirname "$0")/../.."
image=$1 features=$2 fetch=${3:-}
containers=()
clean() {
  for c in "${containers[@]}"; do buildah umount "$c" >/dev/null; buildah rm "$c" >/dev/null; done
}
trap clean EXIT
fail() { echo "image $image: $1" >&2; exit 1; }
# Mounts a container of an image; its root comes in $root.
mounted() { local c; c=$(buildah from "$1"); containers+=("$c"); root=$(buildah mount "$c"); }

[ "$(buildah inspect --type image --format '{{.OCIv1.Config.User}}' "$image")" = 65532:65532 ] \
  || fail "does not run as 65532"
mounted "$image"; server=$root
shells=$(cd "$server" && find . -not -type d \
  \( -name sh -o -name bash -o -name dash -o -name busybox -o -name 'python*' \))
[ -z "$shells" ] || fail "has a shell: $shells"
writable=$(find "$server" -xdev -not -type l -perm /022 \
  -not -path "$server/tmp" -not -path "$server")
[ -z "$writable" ] || fail "has files that others may write: $writable"
models=${XDG_CACHE_HOME:-$HOME/.cache}/ebb

if [ -n "$features" ]; then
  [ -e "$server"/usr/lib/*-linux-gnu/libcublasLt.so.13 ] || fail "has no libcublasLt.so.13"
  if [ ! -e /dev/nvidiactl ]; then
    status=0
    said=$(deploy/image/run.sh "$server" "$models:/models:ro" serve --device cuda --port 0 \
      --http-port 0 --metrics-port 0 --model /models/SmolLM2-135M-Instruct.Q4_1.gguf 2>&1) \
      || status=$?
    [ $status = 1 ] && [[ $(tail -1 <<<"$said") == *"no CUDA driver on this machine"* ]] \
      || fail "without a driver it ended with $status: $said"
  fi
fi

volumes="$models:/models:ro"
if [ -n "$fetch" ]; then
  # The chart's init container fills the volume that the server reads.
  mounted "$fetch"
  mkdir "$EBB_WORK/models"; chown 65532:65532 "$EBB_WORK/models"; chmod a+x "$EBB_WORK"
  deploy/image/run.sh "$root" "$EBB_WORK/models:/models" fetch --model=SmolLM2-135M-Instruct \
    --cache-dir=/models || fail "ebb fetch failed in $fetch"
  volumes="$EBB_WORK/models:/models:ro"
fi
# The end-to-end tests see the image as the program: health, answers, and a drain that loses
# nothing.
cat >"$EBB_WORK/ebb" <<WRAPPER
#!/usr/bin/env bash
exec "$PWD/deploy/image/run.sh" "$server" "$volumes" "\$@"
WRAPPER
chmod +x "$EBB_WORK/ebb"
EBB_BIN="$EBB_WORK/ebb" EBB_TEST_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf tests/e2e/run \
  -q test_shutdown.py test_image.py test_info.py
id=$(buildah images --quiet "$image")
echo "image $image: $id, $(du -sm "$server" | cut -f1) MB, does what it promises"
