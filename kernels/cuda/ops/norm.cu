// A norm fused with the residual sum: residual += scale * delta; out = norm(residual).
#include "../common/kernel.cuh"
#include "norm_form.cuh"

namespace ebb {

struct NormParams {
  const bf16* delta;         // [rows][hidden], or null
  const bf16* delta_bias;    // [hidden], or null: added to delta
  float* residual;           // [rows][hidden]
  const bf16* weight;        // [hidden]
  const bf16* bias;          // [hidden], or null
  bf16* out;                 // [outputs][hidden]
  const uint32_t* selected;  // row of each output, or null for all rows
  NormForm form;
  uint32_t hidden;  // a multiple of 8
  uint32_t reserved;
};
static_assert(sizeof(NormParams) == 80);

// One CTA a row; a thread keeps its Vectors x 8 values in registers between the two passes.
template <int Vectors>
__device__ __forceinline__ void norm(const NormParams& p) {
  __shared__ float scratch[kNormThreads / 32];
  let_next_start();
  const HeldWeights<Vectors> weights(p.weight, p.hidden);
  wait_for_previous();
  const uint64_t row = p.selected ? p.selected[blockIdx.x] : blockIdx.x, first = row * p.hidden;
  float x[Vectors][8];
  load_stream(p.form, p.hidden, p.residual + first, p.delta ? p.delta + first : nullptr,
              p.delta_bias, x, [&](uint32_t i, const float (&sum)[8]) {
                if (p.delta) store8(p.residual + first + i, sum);
              });
  bf16* const out = p.out + static_cast<uint64_t>(blockIdx.x) * p.hidden;
  norm_row(p.form, p.hidden, weights, p.bias, x, scratch,
           [&](uint32_t i, const float (&normed)[8]) { store8(out + i, normed); });
}

}  // namespace ebb

// Grid: outputs. The suffix is the largest hidden size. A selected row must be selected once only
// if there is a delta.
EBB_KERNEL_EARLY(norm_2048, ebb::NormParams, 256, 1) { ebb::norm<1>(p); }
EBB_KERNEL_EARLY(norm_4096, ebb::NormParams, 256, 1) { ebb::norm<2>(p); }
EBB_KERNEL_EARLY(norm_8192, ebb::NormParams, 256, 1) { ebb::norm<4>(p); }
EBB_KERNEL_EARLY(norm_16384, ebb::NormParams, 256, 1) { ebb::norm<8>(p); }
