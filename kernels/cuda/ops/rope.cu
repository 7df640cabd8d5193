// Q, K and V after their projection: bias, per-head norm, RoPE, Hadamard rotation (heads.cuh), and
// the append of K and V to the pages.
#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "heads.cuh"

namespace ebb {

struct RopeTableParams {
  const uint32_t* positions;  // [rows]
  const float* inv_freq;      // [half]
  float2* table;              // [rows][half]: cosine, sine
  uint32_t half;              // head_dim / 2
  float scale;                // of both
};
static_assert(sizeof(RopeTableParams) == 32);

struct RopeAppendParams {
  PageTable pages;
  HeadParams heads;
  const uint32_t* positions;     // [rows]
  const uint32_t* first_blocks;  // [rows]: of the row's sequence
  const uint32_t* row_count;     // rows past it are padding
  bf16* q;                       // [rows][q_heads * head_dim]
  uint32_t layer;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t reserved;
};
static_assert(sizeof(RopeAppendParams) == 136);

// One warp a (row, head).
template <int D>
__device__ __forceinline__ void rope_append(const RopeAppendParams& p) {
  const uint32_t row = blockIdx.x, heads = p.q_heads + 2 * p.kv_heads;
  const uint32_t head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  let_next_start();
  const bool is_q = head < p.q_heads, is_v = head >= p.q_heads + p.kv_heads,
             any = row < *p.row_count && head < heads;
  // Where the row goes follows from what the step uploaded.
  bf16* to = nullptr;
  if (is_q) {
    to = p.q + (static_cast<uint64_t>(row) * p.q_heads + head) * D;
  } else if (any) {
    // Record (layer, side, KV head): K heads, then V heads, follow each other as they do in `qkv`.
    constexpr uint32_t kRecord = kSubBlockTokens * D * 2;
    const uint32_t position = p.positions[row];
    const RecordPlace place =
        record_place(p.pages, p.layer * 2 * p.kv_heads + head - p.q_heads, kRecord);
    const uint32_t frame =
        sub_block_frame(p.pages, p.first_blocks[row], position / kSubBlockTokens, place.slot);
    to = reinterpret_cast<bf16*>(
        frame_address(p.pages, frame, place.offset + position % kSubBlockTokens * (D * 2)));
  }
  wait_for_previous();
  if (!any) return;
  Head<D> x;
  typename Head<D>::Angles angles;
  x.load(p.heads, row, head, heads, lane);
  angles.load(p.heads, row, lane);
  const bf16* norm = is_v ? nullptr : is_q ? p.heads.q_norm : p.heads.k_norm;
  x.finish(p.heads, head, norm, is_v ? nullptr : &angles, lane, to);
}

}  // namespace ebb

// Grid: rows. Once a step: every layer rotates by the same angles.
EBB_KERNEL(rope_table, ebb::RopeTableParams, 128, 1) {
  for (uint32_t i = threadIdx.x; i < p.half; i += blockDim.x) {
    const float angle = static_cast<float>(p.positions[blockIdx.x]) * p.inv_freq[i];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    p.table[static_cast<uint64_t>(blockIdx.x) * p.half + i] =
        make_float2(cosine * p.scale, sine * p.scale);
  }
}

// Grid: (rows, heads / 8).
EBB_KERNEL_EARLY(rope_append_d128, ebb::RopeAppendParams, 256, 1) { ebb::rope_append<128>(p); }
EBB_KERNEL_EARLY(rope_append_d64, ebb::RopeAppendParams, 256, 1) { ebb::rope_append<64>(p); }
