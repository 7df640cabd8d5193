// Attention's output where V was multiplied by a Hadamard matrix as it was appended: weighted sums
// of H v are H times those of v, and H is its own inverse. One warp a head.
#include "../common/kernel.cuh"
#include "hadamard.cuh"

namespace ebb {

struct RotateBackParams {
  bf16* attended;     // [heads][head_dim], in place
  uint32_t heads;     // of all rows
  uint32_t head_dim;  // a power of two from 16 to 256
};
static_assert(sizeof(RotateBackParams) == 16);

constexpr uint32_t kRotateWarps = 8, kMostRotatedDim = 256;

__device__ __forceinline__ uint32_t rotated_head() {
  return blockIdx.x * kRotateWarps + threadIdx.x / 32;
}

template <int D>
__device__ __forceinline__ void rotate_back(const RotateBackParams& p) {
  constexpr int P = D / 64;
  const uint32_t head = rotated_head(), lane = threadIdx.x % 32;
  if (head >= p.heads) return;
  bf16* const at = p.attended + static_cast<uint64_t>(head) * D + lane * P;
  float x[2][P];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if constexpr (P == 2) {
      const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t*>(at + h * (D / 2)));
      x[h][0] = pair.x;
      x[h][1] = pair.y;
    } else {
      x[h][0] = __bfloat162float(at[h * (D / 2)]);
    }
  }
  hadamard(x, lane);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if constexpr (P == 2)
      *reinterpret_cast<uint32_t*>(at + h * (D / 2)) = pack_bf16(x[h][0], x[h][1]);
    else
      at[h * (D / 2)] = __float2bfloat16(x[h][0]);
  }
}

__device__ __forceinline__ void rotate_back_any(const RotateBackParams& p) {
  __shared__ float rotated[kRotateWarps][kMostRotatedDim];
  const uint32_t head = rotated_head(), lane = threadIdx.x % 32, d = p.head_dim;
  if (head >= p.heads) return;
  bf16* const at = p.attended + static_cast<uint64_t>(head) * d;
  float* const mine = rotated[threadIdx.x / 32];
  for (uint32_t c = lane; c < d; c += 32) mine[c] = __bfloat162float(at[c]);
  __syncwarp();
  hadamard_in_shared(mine, d, lane);
  const float scale = rsqrtf(static_cast<float>(d));
  for (uint32_t c = lane; c < d; c += 32) at[c] = __float2bfloat16(mine[c] * scale);
}

}  // namespace ebb

// Grid: heads / 8.
EBB_KERNEL(rotate_back_d128, ebb::RotateBackParams, 256, 1) { ebb::rotate_back<128>(p); }
EBB_KERNEL(rotate_back_d64, ebb::RotateBackParams, 256, 1) { ebb::rotate_back<64>(p); }
EBB_KERNEL(rotate_back_any, ebb::RotateBackParams, 256, 1) { ebb::rotate_back_any(p); }
