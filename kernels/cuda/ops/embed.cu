// Rows of the embedding, multiplied, into the residual stream, which is f32.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

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
  const uint4* from =
      reinterpret_cast<const uint4*>(p.table + static_cast<uint64_t>(token) * p.hidden);
  float4* to = reinterpret_cast<float4*>(p.residual + static_cast<uint64_t>(blockIdx.x) * p.hidden);
  for (uint32_t i = threadIdx.x; i < p.hidden / 8; i += 256) {
    const uint4 v = from[i];
    const float2 a = ebb::unpack_bf16(v.x), b = ebb::unpack_bf16(v.y), c = ebb::unpack_bf16(v.z),
                 d = ebb::unpack_bf16(v.w);
    const float by = p.multiplier;
    to[2 * i] = make_float4(a.x * by, a.y * by, b.x * by, b.y * by);
    to[2 * i + 1] = make_float4(c.x * by, c.y * by, d.x * by, d.y * by);
  }
}
