// Eight values beside each other, of bf16 or f32 in memory: 16 bytes a load or two.
#pragma once
#include "ptx.cuh"

namespace ebb {

__device__ __forceinline__ void unpack8(const uint4& words, float (&x)[8]) {
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 f = unpack_bf16(w[k]);
    x[2 * k] = f.x;
    x[2 * k + 1] = f.y;
  }
}

__device__ __forceinline__ void load8(const bf16* from, float (&x)[8]) {
  unpack8(*reinterpret_cast<const uint4*>(from), x);
}

__device__ __forceinline__ void load8(const float* from, float (&x)[8]) {
  *reinterpret_cast<float4*>(&x[0]) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(&x[4]) = *reinterpret_cast<const float4*>(from + 4);
}

__device__ __forceinline__ void store8(bf16* to, const float (&x)[8]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                             pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

__device__ __forceinline__ void store8(float* to, const float (&x)[8]) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(&x[0]);
  *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(&x[4]);
}

}  // namespace ebb
