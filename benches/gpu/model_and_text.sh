# To be sourced with OUT MODEL TEXT: sets $root, $ebb (of $EBB), $model and $text, goes to OUT, so
# that tables name the profiles in it without a path, and writes the text's last 600,000 bytes to
# calibration.txt there, until the script ends.
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
ebb=$(realpath "${EBB:-$root/target/release/ebb}")
model=$(realpath "$2")
text=$(realpath "$3")
. "$root/benches/gpu/cublaslt.sh" || true # where there is none, ebb says so
mkdir -p "$1"
cd "$1"
tail -c 600000 "$text" > calibration.txt
trap 'rm -f calibration.txt' EXIT
