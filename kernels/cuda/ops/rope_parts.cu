// Q, K and V after their projection, as rope_any.cu, for layers whose heads are parts of the KV
// cache's records (attention/parts.cuh), that norm values, or that have queries alone: bias, norm
// of each head, RoPE of all, some or no channels, Hadamard rotation of each part, append.
//
// One warp a (row, head), of up to 512 channels.
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"
#include "paired_head.cuh"
#include "rope.cuh"

namespace ebb {

struct PartsAppendParams {
  RopeAppendParams append;  // its layer is the first of the KV cache; 0 KV heads: queries alone
  uint32_t head_dim;        // a multiple of 16 * parts, at most 512
  uint32_t rotary_half;     // half of the channels that rotate, and of a row of heads.table
  uint32_t records;         // of a layer and side of the KV cache
  uint32_t parts;           // records of a head
  uint32_t norm_values;     // whether V is normed, without weights
  uint32_t reserved;
};
static_assert(sizeof(PartsAppendParams) == 168);

constexpr uint32_t kPartsWarps = 8, kMostPartsHead = 512;

// Where a part of a row's head of K or V goes.
__device__ __forceinline__ bf16* row_of_part(const PartsAppendParams& params, uint32_t row,
                                             uint32_t side, uint32_t kv_head, uint32_t part) {
  const RopeAppendParams& p = params.append;
  const uint32_t row_bytes = 2 * params.head_dim / params.parts, position = p.positions[row];
  const uint32_t record = kv_head * params.parts + part, layer = p.layer + record / params.records;
  const RecordPlace place =
      record_place(p.pages, (layer * 2 + side) * params.records + record % params.records,
                   kSubBlockTokens * row_bytes);
  const uint32_t frame =
      sub_block_frame(p.pages, p.first_blocks[row], position / kSubBlockTokens, place.slot);
  return reinterpret_cast<bf16*>(
      frame_address(p.pages, frame, place.offset + position % kSubBlockTokens * row_bytes));
}

__device__ __forceinline__ void rope_append_parts(const PartsAppendParams& params) {
  __shared__ float staged[kPartsWarps][kMostPartsHead];
  const RopeAppendParams& p = params.append;
  const HeadParams& h = p.heads;
  const uint32_t d = params.head_dim, half = params.rotary_half;
  const uint32_t row = blockIdx.x, heads = p.q_heads + 2 * p.kv_heads;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                 head = blockIdx.y * kPartsWarps + warp;
  if (row >= *p.row_count || head >= heads) return;
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads;

  const uint64_t row_at = static_cast<uint64_t>(row) * heads * d;
  PairedHead<kMostPartsHead / 64> channels(h, row_at, head, d, half);
  const bf16* const norm = is_v ? nullptr : is_q ? h.q_norm : h.k_norm;
  if (norm || (is_v && params.norm_values))
    channels.normalise(h, channels.square(), static_cast<float>(d), norm);
  if (!is_v) channels.rotate(h, row, half);
  float* const mine = staged[warp];
  channels.each([&](float& x, uint32_t c) { mine[c] = x; });
  __syncwarp();
  const uint32_t width = d / params.parts;
  const bool rotates = is_v ? h.rotate_v : h.rotate_k;
  const float scale = rotates ? rsqrtf(static_cast<float>(width)) : 1.f;
  for (uint32_t part = 0; part < params.parts; part++) {
    if (rotates) hadamard_in_shared(mine + part * width, width, lane);
    bf16* const to = is_q ? p.q + (static_cast<uint64_t>(row) * p.q_heads + head) * d + part * width
                          : row_of_part(params, row, is_v, (head - p.q_heads) % p.kv_heads, part);
    for (uint32_t c = lane; c < width; c += 32)
      to[c] = __float2bfloat16(mine[part * width + c] * scale);
  }
}

}  // namespace ebb

// Grid: (rows, heads / 8).
EBB_KERNEL(rope_append_parts, ebb::PartsAppendParams, 256, 1) { ebb::rope_append_parts(p); }
