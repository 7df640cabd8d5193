#!/usr/bin/env bash
# Races in the shared memory of the CUDA kernels: attention, sampling and matrix products run in the
# emulator, which is told of every access and knows what orders them
# (kernels/cuda/emulator/races.h).
#
#   tests/races.sh          few cases, about a minute
#   tests/races.sh --full   all of attention, products, page formats and whole models; takes long
#
# Needs GCC or Clang as $CXX or c++.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=(attention samples products)
if [ "${1:-}" = --full ]; then
  tests=()
  export EBB_EMULATOR_RACES=all
fi
EBB_EMULATOR_RACES=${EBB_EMULATOR_RACES:-quick} cargo test --quiet --workspace \
  --features ebb-engine/cuda-emulator,ebb-tests/cuda-emulator --test cuda_selftest -- "${tests[@]}"
