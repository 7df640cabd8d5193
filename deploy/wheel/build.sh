#!/usr/bin/env bash
# Makes a program without any libraries beside it, and a wheel that carries it: who has either
# needs no Rust.
#
#   deploy/wheel/build.sh [FOLDER]      FOLDER/ebb and FOLDER/ebb-VERSION-….whl, by default in
#                                       target/wheel
#
# Needs Rust with rustup, a C compiler, and Python 3 with pip. The program runs on any Linux of this
# machine's architecture, on its CPU; a GPU needs a program that can load its driver (README).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-target/wheel}
target="$(uname -m)-unknown-linux-musl"
rustup target list --installed | grep -qx "$target" || rustup target add "$target"
# The C code among the dependencies needs no C library of its own: any compiler will do, as long as
# it calls nothing that glibc alone has.
variable=${target//-/_}
export "CC_$variable=${CC:-cc}"
export "CFLAGS_$variable=-U_FORTIFY_SOURCE -fno-stack-protector"
export CARGO_PROFILE_RELEASE_STRIP=symbols
cargo build --release --locked -p ebb-engine --bin ebb --target "$target"
mkdir -p "$out"
install "${CARGO_TARGET_DIR:-target}/$target/release/ebb" "$out/ebb"
python3 deploy/wheel/pack.py "$out/ebb" "$out"
