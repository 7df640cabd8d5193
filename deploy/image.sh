#!/usr/bin/env bash
# Builds the container image with buildah.
#
#   deploy/image.sh           from the public base images named in the Containerfile
#   deploy/image.sh --check   without any image registry: bases are made here from Debian packages and the Rust toolchain on
#                             this machine; then the image runs read-only, as non-root, and answers a prompt
set -euo pipefail
cd "$(dirname "$0")/.."
tag=localhost/ebb:dev
case ${1:-} in
  "") exec buildah bud -f deploy/Containerfile -t "$tag" . ;;
  --check) ;;
  *) echo "deploy/image.sh: unknown option $1; the only one is --check" >&2; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || { echo "deploy/image.sh --check makes a root file system and must run as root" >&2; exit 1; }
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
for tool in buildah debootstrap; do
  command -v $tool >/dev/null || { apt-get update -qq; apt-get install -y -qq buildah debootstrap; break; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The Debian mirror of this machine, if it has one.
mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } | sed 's/#.*//' | { grep -oE 'https?://[^ ]+/debian\b' || true; } | sed -n 1p)

if ! buildah inspect --type image localhost/ebb-base >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=libgcc-s1 bookworm "$work/root" ${mirror:+"$mirror"} >"$work/log" || { cat "$work/log" >&2; exit 1; }
  rm -rf "$work/root"/var/cache/apt/* "$work/root"/var/lib/apt/lists/*
  c=$(buildah from scratch); buildah add -q "$c" "$work/root" / >/dev/null
  buildah commit -q "$c" localhost/ebb-base >/dev/null; buildah rm "$c" >/dev/null
fi
if ! buildah inspect --type image localhost/ebb-build >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=gcc,libc6-dev bookworm "$work/build" ${mirror:+"$mirror"} >"$work/log" || { cat "$work/log" >&2; exit 1; }
  cp -a "$(rustc --print sysroot)" "$work/build/opt/rust"
  c=$(buildah from scratch); buildah add -q "$c" "$work/build" / >/dev/null
  buildah config --env PATH=/opt/rust/bin:/usr/bin:/bin --env CARGO_HOME=/cargo "$c"
  buildah commit -q "$c" localhost/ebb-build >/dev/null; buildah rm "$c" >/dev/null
fi
cargo fetch --locked
buildah bud -q -f deploy/Containerfile -t "$tag" --build-arg BUILD_IMAGE=localhost/ebb-build --build-arg BASE_IMAGE=localhost/ebb-base \
  --build-arg CARGO_NET_OFFLINE=true --volume "${CARGO_HOME:-$HOME/.cargo}:/cargo" . >/dev/null

# What the image promises: non-root, no shell needed, and a root file system that is never written to.
[ "$(buildah inspect --type image --format '{{.OCIv1.Config.User}}' "$tag")" = 65532:65532 ]
c=$(buildah from "$tag"); root=$(buildah mount "$c")
model=${EBB_TEST_MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/ebb/SmolLM2-135M-Instruct.Q4_1.gguf}
mkdir -p "$work/models"; cp "$model" "$work/models/model.gguf"; chmod -R a+rX "$work"
answer=$(unshare --mount bash -euc '
  mount --bind "$1" "$1"; mkdir -p "$1/tmp/models"; mount --bind "$2" "$1/tmp/models"; mount -o remount,bind,ro "$1"
  exec setpriv --no-new-privs chroot --userspec=65532:65532 --groups= "$1" \
    /usr/local/bin/ebb generate --model /tmp/models/model.gguf --prompt "The capital of France is" --max-tokens 2 --temperature 0
' _ "$root" "$work/models" 2>"$work/stderr") || { cat "$work/stderr" >&2; exit 1; }
buildah umount "$c" >/dev/null; buildah rm "$c" >/dev/null
case $answer in *Paris*) echo "image $tag: builds, runs read-only as 65532, answers:$answer" ;; *) echo "the image answered: $answer" >&2; exit 1 ;; esac
