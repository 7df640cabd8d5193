// The activation of gated layers.
#pragma once
#include "ptx.cuh"

namespace ebb {

__device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }

// silu(gate) * up of two values, which are rounded to bf16 before, as they are where they pass
// through memory.
__device__ __forceinline__ uint32_t gated_pair(float2 gate, float2 up) {
  const float2 g = unpack_bf16(pack_bf16(gate.x, gate.y)), u = unpack_bf16(pack_bf16(up.x, up.y));
  return pack_bf16(silu(g.x) * u.x, silu(g.y) * u.y);
}

}  // namespace ebb
