// Rows of the embedding, multiplied, into the residual stream, which is f32.
#include "../common/eight.cuh"
#include "../common/kernel.cuh"

namespace ebb {

struct EmbedParams {
  const uint32_t* tokens;   // [rows], an id, or the top bit and a sample of the step before
  const uint32_t* sampled;  // tokens of those samples
  const bf16* table;        // [vocab][hidden]
  float* residual;          // [rows][hidden]
  uint32_t hidden;          // a multiple of 8
  float multiplier;
};
static_assert(sizeof(EmbedParams) == 40);

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(embed, ebb::EmbedParams, 256, 1) {
  uint32_t token = p.tokens[blockIdx.x];
  if (token >> 31) token = p.sampled[token & ~(1u << 31)];
  const ebb::bf16* const from = p.table + static_cast<uint64_t>(token) * p.hidden;
  float* const to = p.residual + static_cast<uint64_t>(blockIdx.x) * p.hidden;
  for (uint32_t i = threadIdx.x; i < p.hidden / 8; i += 256) {
    float x[8];
    ebb::load8(from + 8 * i, x);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= p.multiplier;
    ebb::store8(to + 8 * i, x);
  }
}
