// The greedy token of each row of logits: the largest, of equals the first.
#include <cstdint>

#include "../common/kernel.cuh"

namespace ebb {

struct ArgmaxParams {
  const float* logits;  // [rows][vocab]
  uint32_t* tokens;     // [rows]
  uint32_t vocab;
  uint32_t reserved;
};
static_assert(sizeof(ArgmaxParams) == 24);

__device__ __forceinline__ void take_better(float& value, uint32_t& index, float other, uint32_t at) {
  if (other > value || (other == value && at < index)) {
    value = other;
    index = at;
  }
}

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(argmax, ebb::ArgmaxParams, 1024, 1) {
  ebb::follow_previous();
  __shared__ float values[32];
  __shared__ uint32_t indices[32];
  const float* row = p.logits + static_cast<uint64_t>(blockIdx.x) * p.vocab;
  float value = -INFINITY;
  uint32_t index = 0;
  for (uint32_t i = threadIdx.x; i < p.vocab; i += 1024) ebb::take_better(value, index, row[i], i);
  for (int k = 16; k > 0; k >>= 1) ebb::take_better(value, index, __shfl_xor_sync(~0u, value, k), __shfl_xor_sync(~0u, index, k));
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = value;
    indices[threadIdx.x / 32] = index;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    value = values[threadIdx.x];
    index = indices[threadIdx.x];
    for (int k = 16; k > 0; k >>= 1) ebb::take_better(value, index, __shfl_xor_sync(~0u, value, k), __shfl_xor_sync(~0u, index, k));
    if (threadIdx.x == 0) p.tokens[blockIdx.x] = index;
  }
}
