#!/usr/bin/env bash
# Builds the container images with buildah: the same commit gives the same digests.
#
#   deploy/image.sh                        localhost/ebb:dev and localhost/ebb-fetch:dev, from the
#                                          public base images that the Containerfile names
#   deploy/image.sh --cuda                 localhost/ebb-cuda:dev
#   deploy/image.sh --check [--cuda]       without any registry: bases are made here from Debian
#                                          packages and this machine's Rust toolchain, and what the
#                                          images promise is tested (deploy/image/check.sh)
#   deploy/image.sh --check --binary FILE  the same with a program that is built already
#   deploy/image.sh --able                 whether --check can run here: if not, says why and ends
#                                          with 1
#
# --check needs root, apt-get, which also installs buildah where there is none, and PyPI.
# EBB_CUDA_ARCHS restricts what --cuda compiles for.
set -euo pipefail
cd "$(dirname "$0")/.."
check=0 able=0 name=ebb features='' binary=''
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1 ;;
    --able) check=1 able=1 ;;
    --cuda) name=ebb-cuda features=cuda ;;
    --binary) binary=$(realpath -e "${2:?--binary needs a file}"); shift ;;
    *)
      echo "deploy/image.sh: unknown option $1; there are --check, --cuda, --binary and --able" >&2
      exit 2 ;;
  esac
  shift
done
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
# Times in the image and its files are the commit's, so that the same files give the same digest.
bud() { buildah bud --quiet --timestamp "$SOURCE_DATE_EPOCH" -f deploy/Containerfile "$@" .; }
if [ $check = 0 ]; then
  [ -z "$binary" ] || { echo "deploy/image.sh: --binary goes with --check" >&2; exit 2; }
  bud -t localhost/$name:dev --build-arg FEATURES=$features
  [ -n "$features" ] || bud -t localhost/ebb-fetch:dev \
    --build-arg BASE_IMAGE=docker.io/library/python:3.13-slim-bookworm
  exit
fi

unable() { echo "deploy/image.sh cannot check images here: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || unable "it makes root file systems, which takes root"
command -v apt-get >/dev/null \
  || unable "it makes base images from Debian packages, and there is no apt-get"
unshare --mount true 2>/dev/null || unable "this machine does not let root have mounts of its own"
work=$(mktemp -d)
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
trap 'rm -rf "$work"' EXIT
(cd "$work"; apt-get download -qq libgcc-s1 \
  || { apt-get update -qq; apt-get download -qq libgcc-s1; }) >/dev/null 2>&1 \
  || unable "apt-get reaches no mirror"
command -v buildah >/dev/null || apt-get install -y -qq buildah >/dev/null 2>&1 \
  || unable "there is no buildah, and apt-get could not install it"
python3 -m pip install --quiet --dry-run --no-deps --ignore-installed \
  --disable-pip-version-check pip >/dev/null 2>&1 || unable "PyPI cannot be reached"
[ $able = 0 ] || exit 0

# unpack ROOT PACKAGE...: what the packages and all that they depend on contain. Their scripts do
# not run.
unpack() {
  local root=$1 debs="$work/debs"
  rm -rf "$debs"; mkdir -p "$debs/partial" "$root"; : >"$work/none"
  local apt=(apt-get -qq -y -o Dir::State::status="$work/none" -o Dir::Cache::archives="$debs" \
    -o APT::Sandbox::User=root
    -o APT::Install-Recommends=0 install --download-only "${@:2}")
  "${apt[@]}" >"$work/apt.log" 2>&1 \
    || { apt-get update -qq && "${apt[@]}" >"$work/apt.log" 2>&1; } \
    || { cat "$work/apt.log" >&2; exit 1; }
  for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$root"; done
  rm -rf "$debs" "$root"/usr/share/{doc,man,locale,info}
}
# commit ROOT NAME [CONFIG...]: an image of these files.
commit() {
  local c; c=$(buildah from scratch)
  buildah add --quiet "$c" "$1" / >/dev/null
  [ $# = 2 ] || buildah config "${@:3}" "$c"
  buildah commit --quiet --timestamp 0 "$c" "$2" >/dev/null
  buildah rm "$c" >/dev/null; rm -rf "$1"
}
have() { buildah inspect --type image "$1" >/dev/null 2>&1; }
libraries=(libc6 libgcc-s1)
tools=(dash bash coreutils findutils python3-pip)
compilers=(gcc g++ libc6-dev)
# Bases are kept from check to check while these stay the same.
key=$(echo "${libraries[*]} ${tools[*]} ${compilers[*]} $(rustc --version)" | cksum | cut -d' ' -f1)
base=localhost/ebb-check-base:$key
python=localhost/ebb-check-python:$key
build=localhost/ebb-check-build:$key
prepare_tools() {
  unpack "$1" "${tools[@]}" "${@:2}"
  ln -sf dash "$1/bin/sh"
  mkdir -p "$1/tmp"; chmod 1777 "$1/tmp"
  install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"
}
have $base || {
  unpack "$work/base" "${libraries[@]}"
  mkdir -p "$work/base/tmp"
  chmod 1777 "$work/base/tmp"
  commit "$work/base" $base
}
have $python \
  || { prepare_tools "$work/python"; commit "$work/python" $python --env PATH=/usr/bin:/bin; }

arguments=(--build-arg BASE_IMAGE=$base --build-arg FEATURES=$features)
[ -z "${EBB_CUDA_ARCHS:-}" ] || arguments+=(--build-arg EBB_CUDA_ARCHS="$EBB_CUDA_ARCHS")
# How this machine reaches PyPI, if it says so: for the build, and not for the image's environment.
{ echo "[global]"; for key in cert index-url extra-index-url trusted-host; do
    variable=PIP_$(tr a-z- A-Z_ <<<"$key")
    [ -z "${!variable:-}" ] || echo "$key = ${!variable}"; done; } >"$work/pip.conf"
arguments+=(--volume "$work/pip.conf:/etc/pip.conf:ro")
if [ -n "$binary" ]; then
  # In a folder of its own: a volume is copied nowhere, but seen whole.
  mkdir "$work/binary"; cp "$binary" "$work/binary/ebb"
  arguments+=(--build-arg BUILD_IMAGE=$python --build-arg EBB=/binary/ebb \
    --volume "$work/binary:/binary:ro")
else
  have $build || {
    prepare_tools "$work/build" "${compilers[@]}"
    ln -sf gcc "$work/build/usr/bin/cc"
    mkdir -p "$work/build/opt/rust/lib/rustlib"
    (cd "$(rustc --print sysroot)"
     cp -a bin "$work/build/opt/rust"
     cp -a lib/*.so* "$work/build/opt/rust/lib"
     cp -a "lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')" "$work/build/opt/rust/lib/rustlib")
    commit "$work/build" $build --env PATH=/opt/rust/bin:/usr/bin:/bin --env CARGO_HOME=/cargo
  }
  cargo fetch --locked
  arguments+=(--build-arg BUILD_IMAGE=$build --build-arg CARGO_NET_OFFLINE=true \
    --volume "${CARGO_HOME:-$HOME/.cargo}:/cargo")
fi
image=localhost/$name:check
first=$(bud -t $image "${arguments[@]}")
# The kernels take too long to be compiled twice.
if [ -z "$features" ]; then
  again=$(bud --no-cache -t $image "${arguments[@]}")
  [ "$first" = "$again" ] \
    || { echo "deploy/image.sh: two builds of one commit differ: $first, $again" >&2; exit 1; }
fi
if [ -z "$features" ]; then
  fetch=localhost/ebb-fetch:check
  bud -t $fetch "${arguments[@]}" --build-arg BASE_IMAGE=$python >/dev/null
fi
EBB_WORK="$work" deploy/image/check.sh $image "$features" "${fetch:-}"
