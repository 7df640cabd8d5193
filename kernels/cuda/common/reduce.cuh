// Sums and maxima over a warp or a CTA in a fixed order.
#pragma once

namespace ebb {

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int k = 16; k > 0; k >>= 1) v += __shfl_xor_sync(~0u, v, k);
  return v;
}

// The sum over a CTA of `Warps` warps, in every thread. `scratch` holds Warps floats.
template <int Warps>
__device__ __forceinline__ float cta_sum(float v, float* scratch) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < Warps; w++) sum += scratch[w];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int k = 16; k > 0; k >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, k));
  return v;
}

// The maximum over a CTA, likewise.
template <int Warps>
__device__ __forceinline__ float cta_max(float v, float* scratch) {
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  float max = scratch[0];
#pragma unroll
  for (int w = 1; w < Warps; w++) max = fmaxf(max, scratch[w]);
  __syncthreads();
  return max;
}

}  // namespace ebb
