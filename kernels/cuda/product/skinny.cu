// y = x w^T for few rows of x: every weight is read once, straight into registers, at the speed of
// memory.
//
// Y^T = W X^T with m16n8k16: 16 outputs are the m side, up to 8 rows of x the n side. The order of
// the k index is free as long as both operands agree: a lane takes 8 consecutive inputs of a row
// (16 bytes), half of them for each of two instructions, so neither operand passes through shared
// memory. The warps of a CTA split the inputs and add up in warp order; a row's result does not
// depend on the other rows.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct SkinnyParams {
  const bf16* x;     // [rows][inputs]
  const bf16* w;     // [outputs][inputs]
  void* y;           // [rows][outputs], bf16 or f32
  uint32_t rows;     // at most 8
  uint32_t inputs;   // a multiple of 32
  uint32_t outputs;  // a multiple of 16
  uint32_t wide;     // y is f32
};
static_assert(sizeof(SkinnyParams) == 40);

constexpr int kSkinnyWarps = 8;
constexpr int kSkinnyBatch = 8;  // blocks of 32 inputs whose loads are in flight together

__device__ __forceinline__ void skinny(const SkinnyParams& p, float* partial) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint32_t first_output = blockIdx.x * 16;
  const uint32_t blocks = p.inputs / 32, begin = blocks * warp / kSkinnyWarps,
                 end = blocks * (warp + 1) / kSkinnyWarps;
  const uint4* low =
      reinterpret_cast<const uint4*>(p.w + static_cast<uint64_t>(first_output + g) * p.inputs) + t;
  const uint4* high = low + static_cast<uint64_t>(p.inputs);  // 8 rows on, in units of 8 inputs
  const uint4* x = reinterpret_cast<const uint4*>(p.x + static_cast<uint64_t>(g) * p.inputs) + t;
  const bool row = g < p.rows;
  const uint64_t policy = policy_evict_first();

  float c0[4] = {0.f, 0.f, 0.f, 0.f}, c1[4] = {0.f, 0.f, 0.f, 0.f};
  const uint4 zero = make_uint4(0, 0, 0, 0);
  uint4 a[kSkinnyBatch], b[kSkinnyBatch];
  auto load_weights = [&](uint32_t block) {
#pragma unroll
    for (int i = 0; i < kSkinnyBatch; i++) {
      const bool inside = block + i < end;
      a[i] = inside ? load_streamed(low + (block + i) * 4, policy) : zero;
      b[i] = inside ? load_streamed(high + (block + i) * 4, policy) : zero;
    }
  };
  // Weights do not depend on the previous kernel: the first of them are under way while it ends.
  load_weights(begin);
  let_next_start();
  wait_for_previous();
#pragma unroll 1
  for (uint32_t block = begin; block < end; block += kSkinnyBatch) {
    uint4 v[kSkinnyBatch];
#pragma unroll
    for (int i = 0; i < kSkinnyBatch; i++)
      v[i] = block + i < end && row ? __ldcg(x + (block + i) * 4) : zero;
#pragma unroll
    for (int i = 0; i < kSkinnyBatch; i++) {
      const uint32_t first[4] = {a[i].x, b[i].x, a[i].y, b[i].y},
                     second[4] = {a[i].z, b[i].z, a[i].w, b[i].w};
      mma_bf16(c0, first, v[i].x, v[i].y);
      mma_bf16(c1, second, v[i].z, v[i].w);
    }
    load_weights(block + kSkinnyBatch);
  }
  // Accumulator: outputs g and g + 8, rows 2t and 2t + 1.
#pragma unroll
  for (int i = 0; i < 4; i++)
    partial[(warp * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = c0[i] + c1[i];
  __syncthreads();
  const uint32_t r = threadIdx.x / 16, output = threadIdx.x % 16;
  if (r >= p.rows) return;
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kSkinnyWarps; w++) sum += partial[(w * 8 + r) * 16 + output];
  const uint64_t at = static_cast<uint64_t>(r) * p.outputs + first_output + output;
  if (p.wide)
    static_cast<float*>(p.y)[at] = sum;
  else
    static_cast<bf16*>(p.y)[at] = __float2bfloat16(sum);
}

}  // namespace ebb

// Grid: outputs / 16.
EBB_KERNEL_EARLY(product_skinny, ebb::SkinnyParams, ebb::kSkinnyWarps * 32, 2) {
  __shared__ float partial[ebb::kSkinnyWarps * 8 * 16];
  ebb::skinny(p, partial);
}
