// Q, K and V after their projection, as rope.cu, for heads of any width up to 256: bias, norm of
// each head before RoPE or behind it, or of the whole projection, RoPE of all, some or no channels,
// growth of Q with its position, factors, Hadamard rotation, append.
//
// One warp a (row, head).
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"
#include "paired_head.cuh"
#include "rope.cuh"

namespace ebb {

struct AnyRopeAppendParams {
  RopeAppendParams append;
  uint32_t head_dim;  // even, at most 256; a power of two if heads rotate_k or rotate_v
  uint32_t
      rotary_half;  // half of the channels that rotate, and of a row of heads.table; 0: none do
  // Norms are over all heads of Q, or of K, weights [q_heads * head_dim] and [kv_heads * head_dim].
  uint32_t whole_norms;
  uint32_t norms_behind_rope;  // norms of each head alone
  // Q is multiplied by 1 + beta ln(1 + floor((position + offset) / interval)); 0: it is not
  float growth_beta;
  uint32_t growth_interval;
  uint32_t growth_offset;
  uint32_t reserved;
};
static_assert(sizeof(AnyRopeAppendParams) == 176);

constexpr uint32_t kRopeWarps = 8, kMostHeadDim = 256;

// Sum of the squares of channels `from` .. `to` of a row, in every thread of the CTA.
__device__ __forceinline__ float squares(const HeadParams& p, uint64_t row_at, uint32_t from,
                                         uint32_t to, float* scratch) {
  float sum = 0.f;
  for (uint32_t c = from + 2 * threadIdx.x; c < to; c += 2 * kRopeWarps * 32) {
    float2 x = unpack_bf16(*reinterpret_cast<const uint32_t*>(p.qkv + row_at + c));
    if (p.bias) {
      const float2 bias = unpack_bf16(*reinterpret_cast<const uint32_t*>(p.bias + c));
      x = make_float2(x.x + bias.x, x.y + bias.y);
    }
    sum = fmaf(x.x, x.x, fmaf(x.y, x.y, sum));
  }
  return cta_sum<kRopeWarps>(sum, scratch);
}

__device__ __forceinline__ void rope_append_any(const AnyRopeAppendParams& params) {
  __shared__ float scratch[kRopeWarps];
  __shared__ float rotated[kRopeWarps][kMostHeadDim];
  const RopeAppendParams& p = params.append;
  const HeadParams& h = p.heads;
  const uint32_t d = params.head_dim, half = params.rotary_half;
  const uint32_t row = blockIdx.x, heads = p.q_heads + 2 * p.kv_heads;
  const uint32_t first = blockIdx.y * kRopeWarps, warp = threadIdx.x / 32, head = first + warp,
                 lane = threadIdx.x % 32;
  let_next_start();
  const bool any = row < *p.row_count, is_q = head < p.q_heads,
             is_v = head >= p.q_heads + p.kv_heads;
  bf16* to = nullptr;
  if (is_q)
    to = p.q + (static_cast<uint64_t>(row) * p.q_heads + head) * d;
  else if (any && head < heads)
    to = row_in_page(p, row, head, d);
  wait_for_previous();
  if (!any) return;

  const uint64_t row_at = static_cast<uint64_t>(row) * heads * d;
  const uint32_t q_width = p.q_heads * d, k_end = q_width + p.kv_heads * d;
  const bf16* norm = is_v ? nullptr : is_q ? h.q_norm : h.k_norm;
  float square = 0.f, width = static_cast<float>(d);
  if (h.q_norm && params.whole_norms) {
    // The CTA's heads may be Q's and K's.
    if (first < p.q_heads) square = squares(h, row_at, 0, q_width, scratch);
    if (first + kRopeWarps > p.q_heads && first < p.q_heads + p.kv_heads) {
      const float of_k = squares(h, row_at, q_width, k_end, scratch);
      if (!is_q) square = of_k;
    }
    width = static_cast<float>(is_q ? q_width : k_end - q_width);
    if (norm) norm += (is_q ? head : head - p.q_heads) * d;
  }
  if (head >= heads) return;

  PairedHead<kMostHeadDim / 64> channels(h, row_at, head, d, half);
  if (norm && !params.norms_behind_rope) {
    if (!params.whole_norms) square = channels.square();
    channels.normalise(h, square, width, norm);
  }
  if (!is_v) {
    channels.rotate(h, row, half);
    // Its angles may be scaled.
    if (norm && params.norms_behind_rope) channels.normalise(h, channels.square(), width, norm);
    if (is_q && params.growth_interval) {
      const uint32_t counted = p.positions[row] + params.growth_offset;
      const float steps = static_cast<float>(counted / params.growth_interval);
      const float growth = fmaf(params.growth_beta, log1pf(steps), 1.f);
      channels.each([&](float& x, uint32_t) { x *= growth; });
    }
    if (h.factors)
      channels.each([&](float& x, uint32_t c) { x *= h.factors[head * (d / 2) + c % (d / 2)]; });
  }
  if (is_v ? h.rotate_v : h.rotate_k) {
    float* const mine = rotated[warp];
    channels.each([&](float& x, uint32_t c) { mine[c] = x; });
    __syncwarp();
    hadamard_in_shared(mine, d, lane);
    const float scale = rsqrtf(static_cast<float>(d));
    channels.each([&](float& x, uint32_t c) { x = mine[c] * scale; });
  }
  channels.each([&](float& x, uint32_t c) { to[c] = __float2bfloat16(x); });
}

}  // namespace ebb

// Grid: (rows, heads / 8).
EBB_KERNEL_EARLY(rope_append_any, ebb::AnyRopeAppendParams, 256, 5) { ebb::rope_append_any(p); }
