// Heads times the normalised Walsh-Hadamard matrix, H[i][j] = (-1)^popcount(i & j) /
// sqrt(head_dim), its own inverse. Stages are in the order of the CPU's
// (`formats::rotation::hadamard`), so that sums round alike.
#pragma once
#include "../common/ptx.cuh"

namespace ebb {

// A head of 64 P channels in registers, in the order of `Head` (heads.cuh): the bits of a channel's
// index are, from the lowest, i's, the lane's, h's.
template <int P>
__device__ __forceinline__ void hadamard(float (&x)[2][P], uint32_t lane) {
  if constexpr (P == 2) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float a = x[h][0], b = x[h][1];
      x[h][0] = a + b;
      x[h][1] = a - b;
    }
  }
#pragma unroll
  for (uint32_t k = 1; k < 32; k *= 2) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < P; i++) {
        const float other = __shfl_xor_sync(~0u, x[h][i], k);
        x[h][i] = lane & k ? other - x[h][i] : other + x[h][i];
      }
    }
  }
  const float scale = P == 2 ? 0.08838834764831845f : 0.125f;  // 1 / sqrt(64 P)
#pragma unroll
  for (int i = 0; i < P; i++) {
    const float a = x[0][i], b = x[1][i];
    x[0][i] = (a + b) * scale;
    x[1][i] = (a - b) * scale;
  }
}

// A head of any power of two in shared memory, still to be divided by sqrt(head_dim).
__device__ __forceinline__ void hadamard_in_shared(float* head, uint32_t head_dim, uint32_t lane) {
  for (uint32_t h = 1; h < head_dim; h *= 2) {
    for (uint32_t i = lane; i < head_dim / 2; i += 32) {
      float* const low = head + i / h * 2 * h + i % h;
      const float a = low[0], b = low[h];
      low[0] = a + b;
      low[h] = a - b;
    }
    __syncwarp();
  }
}

}  // namespace ebb
