#!/usr/bin/env bash
# Runs the program of an unpacked image as a container engine would under the chart's security
# context: as 65532 with neither capabilities nor a way to get them, on a root file system that
# nobody can write to. Replaces itself, so signals arrive.
#
#   deploy/image/run.sh ROOT VOLUMES ARGUMENT...
#
# VOLUMES: `HOST:PATH` and `HOST:PATH:ro`, separated by spaces; /cache and /tmp are empty and
# writable, as in the chart's pod.
set -euo pipefail
for volume in $2 /proc:/proc /dev:/dev :/cache :/tmp; do
  IFS=: read -r _ path _ <<<"$volume"
  mkdir -p "$1$path"
done
# An engine brings the names of the network, too.
mkdir -p "$1/etc"; cp -L /etc/resolv.conf /etc/hosts "$1/etc/" 2>/dev/null || true
exec unshare --mount --propagation private bash -euc '
  root=$1 volumes=$2; shift 2
  mount --bind "$root" "$root"
  for volume in $volumes; do
    IFS=: read -r host path mode <<<"$volume"
    mount --bind "$host" "$root$path"
    [ "$mode" != ro ] || mount -o remount,bind,ro "$root$path"
  done
  for path in /cache /tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root$path"; done
  mount --rbind /proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -o remount,bind,ro "$root"
  exec env -i XDG_CACHE_HOME=/cache HOME=/cache EBB_IMAGE=1 \
    ${PIP_CERT:+PIP_CERT="$PIP_CERT"} ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    ${HTTPS_PROXY:+HTTPS_PROXY="$HTTPS_PROXY"} ${https_proxy:+https_proxy="$https_proxy"} \
    PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all \
    chroot --userspec=65532:65532 --groups= "$root" /usr/local/bin/ebb "$@"
' _ "$@"
