// Rows of the embedding, multiplied, and normed if the model norms them, into the residual stream,
// which is f32.
#include "../common/eight.cuh"
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct EmbedParams {
  const uint32_t* tokens;   // [rows], an id, or the top bit and a sample of the step before
  const uint32_t* sampled;  // tokens of those samples
  const bf16* table;        // [vocab][hidden]
  float* residual;          // [rows][hidden]
  uint32_t hidden;          // a multiple of 8
  float multiplier;
  float eps;        // added to the mean of squares
  uint32_t normed;  // rows are divided by its root
};
static_assert(sizeof(EmbedParams) == 48);

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(embed, ebb::EmbedParams, 256, 1) {
  uint32_t token = p.tokens[blockIdx.x];
  if (token >> 31) token = p.sampled[token & ~(1u << 31)];
  const ebb::bf16* const from = p.table + static_cast<uint64_t>(token) * p.hidden;
  float* const to = p.residual + static_cast<uint64_t>(blockIdx.x) * p.hidden;
  float multiplier = p.multiplier;
  if (p.normed) {
    __shared__ float scratch[8];
    float sum = 0.f;
    for (uint32_t i = threadIdx.x; i < p.hidden / 8; i += 256) {
      float x[8];
      ebb::load8(from + 8 * i, x);
#pragma unroll
      for (int k = 0; k < 8; k++) {
        x[k] *= multiplier;
        sum = fmaf(x[k], x[k], sum);
      }
    }
    const float mean = ebb::cta_sum<8>(sum, scratch) / static_cast<float>(p.hidden);
    multiplier *= rsqrtf(mean + p.eps);
  }
  for (uint32_t i = threadIdx.x; i < p.hidden / 8; i += 256) {
    float x[8];
    ebb::load8(from + 8 * i, x);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= multiplier;
    ebb::store8(to + 8 * i, x);
  }
}
