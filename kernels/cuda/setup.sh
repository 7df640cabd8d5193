#!/usr/bin/env bash
# Installs the CUDA 13.0 compiler from PyPI wheels, for building the `cuda` feature on a machine
# without a CUDA toolkit. Needs python3 with pip, no GPU and no root. Idempotent.
#
#   eval "$(kernels/cuda/setup.sh [DIR])"       sets CUDA_HOME and PATH; messages go to stderr
set -euo pipefail

dir=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/ebb/cuda-13.0}")
wheels=(
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  # not published for 13.0; these read its output
  nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86
)
home="$dir/nvidia/cu13"
stamp="${wheels[*]}"

if [ "$(cat "$dir/.stamp" 2>/dev/null || true)" != "$stamp" ]; then
  new="$dir.new.$$"
  trap 'rm -rf "$new"' EXIT
  mkdir -p "$(dirname "$dir")"
  # One call: a second --target install into the same folder would skip the shared nvidia/ package.
  python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all: \
    --disable-pip-version-check \
    --root-user-action=ignore --target "$new" "${wheels[@]}" >&2
  # asks the driver for -arch=native; there may be none
  rm -f "$new/nvidia/cu13/bin/__nvcc_device_query"
  echo "$stamp" > "$new/.stamp"
  rm -rf "$dir"
  mv "$new" "$dir"
fi

"$home/bin/nvcc" --version >&2
printf 'export CUDA_HOME=%q\nexport PATH=%q:"$PATH"\n' "$home" "$home/bin"
