// The norm in front of a streamed product: what its sums are divided by.
#pragma once
#include "../common/ptx.cuh"
#include "stream_ends.cuh"

namespace ebb {

// The squares that the product before left of x's rows. WARPS warps add them up, a thread four rows
// of its share of the inputs; loads are under way while products run. `sums` is shared memory,
// [WARPS + 1][N]: sums of squares of each warp's share, and behind them 1 / rms.
template <int N, int WARPS>
struct StreamSquares {
  static constexpr uint32_t kQuads = N / 4, kGroups = WARPS * 32 / kQuads,
                            kHeld = N == 8    ? 2
                                    : N <= 32 ? 4
                                              : 16;

  float4 held[kHeld], sum = make_float4(0.f, 0.f, 0.f, 0.f);
  uint32_t slot = threadIdx.x / kQuads;

  static __device__ __forceinline__ uint32_t slots(const StreamParams& p) {
    return (p.inputs + kStreamSlice - 1) / kStreamSlice;
  }
  __device__ __forceinline__ void load(const StreamParams& p) {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; i++, slot += kGroups)
      held[i] =
          slot < slots(p)
              ? *reinterpret_cast<const float4*>(p.norms + slot * N + 4 * (threadIdx.x % kQuads))
              : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __device__ __forceinline__ void add() {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; i++) {
      sum.x += held[i].x;
      sum.y += held[i].y;
      sum.z += held[i].z;
      sum.w += held[i].w;
    }
  }

  static __device__ __forceinline__ void barrier() { named_barrier_sync(3, WARPS * 32); }

  // Adds up the rest. By all threads that consume, once the first share is loaded.
  __device__ __forceinline__ void share(const StreamParams& p, float* sums) {
    add();
#pragma unroll 1
    while (slot < slots(p)) {
      load(p);
      add();
    }
#pragma unroll
    for (uint32_t lanes = kQuads; lanes < 32; lanes *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, lanes);
      sum.y += __shfl_xor_sync(~0u, sum.y, lanes);
      sum.z += __shfl_xor_sync(~0u, sum.z, lanes);
      sum.w += __shfl_xor_sync(~0u, sum.w, lanes);
    }
    if (threadIdx.x % 32 < kQuads)
      *reinterpret_cast<float4*>(sums + N * (threadIdx.x / 32) + 4 * (threadIdx.x % 32)) = sum;
    barrier();
    if (threadIdx.x < N) {
      float square = 0.f;
#pragma unroll
      for (int warp = 0; warp < WARPS; warp++) square += sums[N * warp + threadIdx.x];
      sums[N * WARPS + threadIdx.x] = rsqrtf(square / p.inputs + p.eps);
    }
    barrier();
  }

  // Divides a block's sums, once the squares have been shared.
  static __device__ __forceinline__ void divide(const float* sums, const StreamBlock& block,
                                                float (&of_block)[4]) {
    const float2 inverse =
        *reinterpret_cast<const float2*>(sums + N * WARPS + block.row() + 2 * (threadIdx.x % 4));
    of_block[0] *= inverse.x;
    of_block[1] *= inverse.y;
    of_block[2] *= inverse.x;
    of_block[3] *= inverse.y;
  }
};

}  // namespace ebb
