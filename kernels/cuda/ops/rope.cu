// Q, K and V after their projection: bias, per-head norm, RoPE, factors, Hadamard rotation
// (heads.cuh), and the append of K and V to the pages, where every channel of a head of 64 or 128
// rotates. rope_any.cu has other heads.
#include "../common/kernel.cuh"
#include "rope.cuh"

namespace ebb {

struct RopeTableParams {
  const uint32_t* positions;  // [rows]
  const float* inv_freq;      // [half]
  float2* table;              // [rows][half]: cosine, sine
  uint32_t half;              // pairs of a head that rotate
  float scale;                // of both
};
static_assert(sizeof(RopeTableParams) == 32);

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
    to = row_in_page(p, row, head, D);
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
