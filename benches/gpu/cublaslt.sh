# To be sourced: lets the loader find cuBLASLt. cuBLASLt from a toolkit or from pip's packages,
# where the loader does not know it; the newest version there is.
if ! ldconfig -p 2>/dev/null | grep -q 'libcublasLt.so.13'; then
  sites=$(python3 -c 'import site, sys
print("\n".join(site.getsitepackages() + [site.getusersitepackages()] + sys.path))' 2>/dev/null)
  found=$(
    while IFS= read -r site; do
      [ -n "$site" ] && ls -d "$site"/nvidia/*/lib/libcublasLt.so.[0-9]* 2>/dev/null
    done <<< "$sites"
    ls -d /usr/local/cuda*/lib64/libcublasLt.so.[0-9]* \
      "${CUDA_HOME:-/nowhere}"/lib*/libcublasLt.so.[0-9]* 2>/dev/null
  ) || true  # some of these places are missing
  [ -z "$found" ] \
    && found=$(find / \( -path /proc -o -path /sys -o -path '*/stubs' \) -prune \
      -o -name 'libcublasLt.so.[0-9]*' -print -quit 2>/dev/null || true)
  lib=$(awk -F'libcublasLt.so.' '{ print $NF "\t" $0 }' <<< "$found" | sort -V | tail -1 | cut -f2)
  if [ -n "$lib" ]; then
    export LD_LIBRARY_PATH="$(dirname "$lib")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
fi
