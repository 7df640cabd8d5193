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
  uint4 weight[Vectors];  // no kernel writes weights
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
    if (i < p.hidden) weight[v] = __ldg(reinterpret_cast<const uint4*>(p.weight + i));
  }
  wait_for_previous();
  const uint64_t row = p.selected ? p.selected[blockIdx.x] : blockIdx.x;
  float* residual = p.residual + row * p.hidden;
  float x[Vectors][8];
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
#pragma unroll
    for (int k = 0; k < 8; k++) x[v][k] = 0.f;
    if (i >= p.hidden) continue;
    load8(residual + i, x[v]);
    if (p.delta) {
      float d[8];
      load_delta8(p.delta + row * p.hidden + i, p.delta_bias ? p.delta_bias + i : nullptr, d);
#pragma unroll
      for (int k = 0; k < 8; k++) x[v][k] = fmaf(d[k], p.form.delta_scale, x[v][k]);
      store8(residual + i, x[v]);
    }
  }
  const float inverse = inverse_root(p.form, p.hidden, x, scratch);
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
    if (i >= p.hidden) continue;
    float w[8];
    unpack8(weight[v], w);
    scale8(p.form, inverse, w, p.bias ? p.bias + i : nullptr, x[v]);
    store8(p.out + static_cast<uint64_t>(blockIdx.x) * p.hidden + i, x[v]);
  }
}

}  // namespace ebb

// Grid: outputs. The suffix is the largest hidden size. A selected row must be selected once only
// if there is a delta.
EBB_KERNEL_EARLY(norm_2048, ebb::NormParams, 256, 1) { ebb::norm<1>(p); }
EBB_KERNEL_EARLY(norm_4096, ebb::NormParams, 256, 1) { ebb::norm<2>(p); }
EBB_KERNEL_EARLY(norm_8192, ebb::NormParams, 256, 1) { ebb::norm<4>(p); }
EBB_KERNEL_EARLY(norm_16384, ebb::NormParams, 256, 1) { ebb::norm<8>(p); }
