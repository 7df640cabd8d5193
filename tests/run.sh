#!/usr/bin/env bash
# All tests of Ebb, from a bare machine (Rust, Python 3 with pip, a C compiler).
#
#   tests/run.sh          everything that fits in about half an hour on two cores, once it is built
#   tests/run.sh --full   the longer checks too: more simulation seeds, the 1.5B model, every
#                         architecture of GPU, every family in the emulator, images built from
#                         source
set -euo pipefail
cd "$(dirname "$0")/.."
full=0
for arg in "$@"; do
  case $arg in
    --full) full=1 ;;
    *) echo "tests/run.sh: unknown option $arg; the only one is --full" >&2; exit 2 ;;
  esac
done
# All commands build the whole workspace: a choice of packages would build what they depend on once
# more, with other features.
emulator=(--workspace --features "ebb-engine/cuda-emulator,ebb-tests/cuda-emulator")
step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "columns, tables, links, formats of Python and CUDA"
tests/lint/run

step "format and lints"
cargo fmt --all --check
# modules that a macro declares, which cargo fmt does not see
git ls-files 'kernels/src/formats/*.rs' 'engine/models/src/model/families/*.rs' |
  xargs rustfmt --check --edition 2024
cargo clippy --workspace --all-targets --quiet -- -D warnings
if command -v "${CXX:-c++}" >/dev/null; then
  cargo clippy --quiet "${emulator[@]}" --all-targets -- -D warnings
fi

step "licences, duplicates and sources of dependencies"
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --log-level error check bans licenses sources
else
  echo "left out: cargo-deny is not installed (cargo install --locked cargo-deny)"
fi

step "build"
cargo build --workspace --all-targets --quiet

step "the default model"
"${CARGO_TARGET_DIR:-target}/debug/ebb" fetch

step "unit, property, conformance, golden and simulation tests"
if [ $full = 1 ]; then
  EBB_TEST_QWEN_MODEL=$(tests/fetch-qwen.sh)
  EBB_TEST_GEMMA_MODEL=$(tests/fetch-gemma.sh)
  export EBB_TEST_QWEN_MODEL EBB_TEST_GEMMA_MODEL
  EBB_SIM_SEEDS=200000 cargo test --workspace -- --include-ignored
else
  cargo test --workspace
fi

step "the CUDA backend, run by a CPU emulator, against the CPU backend and the CPU sampler"
if command -v "${CXX:-c++}" >/dev/null; then
  cargo test --quiet --no-run "${emulator[@]}" --lib --test cuda_selftest --test device \
    --test device_samples --test gradients --test device_scoring --test trajectory \
    --test calibrate --test golden_models
  export EBB_TEST_DEVICE=cuda # of the golden models; other tests do not look at it
  # A model for each thing that only some families have; the others differ in names.
  golden=$([ $full = 1 ] || echo arcee cohere2 gemma3_text gemma4_text glm4_moe gpt_oss \
    granitemoe hunyuan laguna lfm2 llama4_text ministral3 nemotron_h phi qwen2_moe qwen3_5_text \
    qwen3_next smollm3 starcoder2 256_channels long_rope share_keys beside_a_dense)
  # What only older devices run is also run by the tests of heads and of models, in part.
  older=$([ $full = 1 ] || echo --skip attention_on_older_devices)
  # The emulator runs one kernel at a time, so there are two processes at once.
  xargs -P 2 -I{} bash -c "cargo test --quiet ${emulator[*]} {}" <<END
--test golden_models -- --skip served --skip shrinking --skip table $golden
--test cuda_selftest -- attention $older
--test cuda_selftest -- --skip attention
--lib cuda::
--test device --test device_samples
--test gradients on_gpu
--test device_scoring
--test trajectory of_a_gpu
--test calibrate on_gpu
END
  unset EBB_TEST_DEVICE
  step "no races in the CUDA kernels' shared memory"
  tests/races.sh
else
  echo "left out: there is no C++ compiler on this machine"
fi

step "the CUDA kernels compile without warnings or spills"
pypi() {
  python3 -m pip install --quiet --dry-run --no-deps --ignore-installed \
    --disable-pip-version-check pip >/dev/null 2>&1
}
if cuda=$(kernels/cuda/setup.sh); then
  # 8.6 and 8.9 have 8.0's code with other numbers of registers and bytes.
  (eval "$cuda"; unset EBB_CUDA_ARCHS; [ $full = 1 ] || export EBB_CUDA_ARCHS=80,90a,ptx
   cargo clippy --quiet --workspace --features ebb-benches/cuda,ebb-engine/cuda -- -D warnings)
elif pypi; then
  echo "tests/run.sh: kernels/cuda/setup.sh failed although PyPI can be reached" >&2
  exit 1
else
  echo "left out: the compiler comes from PyPI, which cannot be reached"
fi

step "end to end: independent clients of gRPC and HTTP against a live server"
cargo build --quiet --workspace --all-targets # the steps above have built ebb with other features
tests/e2e/run

step "reliability: what benches/results/reliability.md promises, in small"
if [ $full = 1 ]; then
  tests/reliability/run --full
else
  tests/reliability/run
fi

if [ $full = 1 ]; then
  step "the HTTP API keeps to its OpenAPI document, whatever it is asked"
  tests/schema/run
  step "lm-eval over HTTP scores texts as ebb eval does"
  tests/lm_eval/run
  step "the page at / in a headless Chromium"
  tests/page/run
fi

step "deploy: chart, dashboards, alerts"
tests/deploy/run

step "container image: reproducible, read-only, without rights; drains without losing anything"
if deploy/image.sh --able; then
  if [ $full = 1 ]; then
    deploy/image.sh --check
    deploy/image.sh --check --cuda
  else
    deploy/image.sh --check --binary "${CARGO_TARGET_DIR:-target}/debug/ebb"
  fi
else
  echo "left out"
fi
step "all tests passed"
