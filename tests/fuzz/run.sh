#!/usr/bin/env bash
# Builds and runs the fuzz targets.
#
#   tests/fuzz/run.sh [--target NAME] [--seconds N | --runs N] [--sanitizer none] [--csv FILE]
#                     [--build DIR] [-- LIBFUZZER_OPTION...]
#
#   --target NAME      one target; without it all, one after another
#   --seconds N        how long each runs (default 60)
#   --runs N           how many inputs each tries instead
#   --sanitizer none   without AddressSanitizer; otherwise with it, where the compiler has it
#   --csv FILE         appends a line a target: target,runs,seconds,crashes,sanitizer,commit
#   --build DIR        builds only: the programs and the corpus, to be copied to another machine
#
# Needs a C++ compiler. The sanitizer and the coverage that guides the fuzzer are unstable options
# of rustc. A nightly toolchain has them; on a stable one RUSTC_BOOTSTRAP=1 unlocks them, for this
# build alone. New inputs and crashes go to target/fuzz. Exits with 1 when an input fails.
set -euo pipefail
cd "$(dirname "$0")"

targets=() limit=(-max_total_time=60) sanitizer=address csv='' build=''
while [ $# -gt 0 ]; do
  case $1 in
    --target) targets+=("$2"); shift 2 ;;
    --seconds) limit=("-max_total_time=$2"); shift 2 ;;
    --runs) limit=("-runs=$2"); shift 2 ;;
    --sanitizer) sanitizer=$2; shift 2 ;;
    --csv) csv=$(cd "$OLDPWD" && realpath -m "$2"); shift 2 ;;
    --build) build=$(cd "$OLDPWD" && realpath -m "$2"); shift 2 ;;
    --) shift; break ;;
    *) echo "tests/fuzz/run.sh: unknown option $1; see the head of the file" >&2; exit 2 ;;
  esac
done
known=(fuzz_targets/*.rs)
known=("${known[@]##*/}")
known=("${known[@]%.rs}")
for target in "${targets[@]}"; do
  if [ "$target" = any ] || [ ! -f "fuzz_targets/$target.rs" ]; then
    echo "tests/fuzz/run.sh: there is no target $target; there are: ${known[*]/#any/}" >&2
    exit 2
  fi
done
if [ ${#targets[@]} = 0 ]; then
  for target in "${known[@]}"; do
    [ "$target" = any ] || targets+=("$target")
  done
fi

# The versions that the other tests run with.
cp ../../Cargo.lock Cargo.lock
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target}/fuzz
triple=$(rustc -vV | sed -n 's/^host: //p')
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares)
if [ "$sanitizer" = address ]; then
  runtime=$(compgen -G "$(rustc --print target-libdir)/librustc-*_rt.asan.a" || true)
  if [ -n "$runtime" ]; then
    flags+=(-Zsanitizer=address)
  else
    echo "tests/fuzz/run.sh: this toolchain has no AddressSanitizer; going on without" >&2
    sanitizer=none
  fi
fi
# One program for all: it goes by the name that it is started by.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="${flags[*]}" \
  cargo build --quiet --release --target "$triple" --bin any
programs=${build:-$CARGO_TARGET_DIR/programs}
mkdir -p "$programs"
strip -o "$programs/any" "$CARGO_TARGET_DIR/$triple/release/any"
for target in "${targets[@]}"; do
  ln -sf any "$programs/$target"
done
if [ -n "$build" ]; then
  tar -C corpus -czf "$build/corpus.tar.gz" "${targets[@]}"
  echo "$build: ${targets[*]}; sanitizer $sanitizer"
  exit
fi

# A small quarantine, as the inputs of most targets take microseconds.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=1:malloc_context_size=2:detect_leaks=0}
commit=$(git describe --always --dirty --exclude '*')
failed=0
for target in "${targets[@]}"; do
  found=$CARGO_TARGET_DIR/corpus/$target crashes=$CARGO_TARGET_DIR/artifacts/$target
  mkdir -p "$found" "$crashes"
  before=$(find "$crashes" -type f | wc -l)
  start=$SECONDS
  "$programs/$target" "${limit[@]}" -timeout=1 -malloc_limit_mb=256 -rss_limit_mb=2048 \
    -max_len=8192 -detect_leaks=0 -print_final_stats=1 -artifact_prefix="$crashes/" "$@" \
    "$found" "corpus/$target" 2>"$CARGO_TARGET_DIR/$target.log" || failed=1
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$CARGO_TARGET_DIR/$target.log")
  new=$(($(find "$crashes" -type f | wc -l) - before))
  line=$target,${runs:-0},$((SECONDS - start)),$new,$sanitizer,$commit
  echo "$line"
  [ "$new" = 0 ] || echo "  see $crashes and $CARGO_TARGET_DIR/$target.log" >&2
  if [ -n "$csv" ]; then
    [ -s "$csv" ] || echo target,runs,seconds,crashes,sanitizer,commit >"$csv"
    echo "$line" >>"$csv"
  fi
done
exit $failed
