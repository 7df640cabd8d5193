// The sum of two branches of a layer, each normalised by weights of its own: what a shared expert
// has put out, and what the chosen ones have.
#include "../common/kernel.cuh"
#include "norm_form.cuh"

namespace ebb {

struct JoinParams {
  bf16* branch;            // [rows][hidden], then the sum
  const bf16* other;       // [rows][hidden]
  const bf16* weights[2];  // [hidden] each, in that order
  NormForm form;
  uint32_t hidden;  // a multiple of 8
  uint32_t reserved;
};
static_assert(sizeof(JoinParams) == 56);

// One CTA a row.
template <int Vectors>
__device__ __forceinline__ void join_branches(const JoinParams& p) {
  __shared__ float scratch[2][kNormThreads / 32];
  let_next_start();
  wait_for_previous();
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * p.hidden;
  float x[2][Vectors][8], inverse[2];
#pragma unroll
  for (int which = 0; which < 2; which++) {
    const bf16* const from = which == 0 ? p.branch : p.other;
#pragma unroll
    for (int v = 0; v < Vectors; v++) {
      const uint32_t i = norm_place(v);
#pragma unroll
      for (int k = 0; k < 8; k++) x[which][v][k] = 0.f;
      if (i < p.hidden) load8(from + first + i, x[which][v]);
    }
    inverse[which] = inverse_root(p.form, p.hidden, x[which], scratch[which]);
  }
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
    if (i >= p.hidden) continue;
#pragma unroll
    for (int which = 0; which < 2; which++) {
      float weight[8];
      load_weights8(p.weights[which] + i, weight);
      scale8(p.form, inverse[which], weight, nullptr, x[which][v]);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) x[0][v][k] += x[1][v][k];
    store8(p.branch + first + i, x[0][v]);
  }
}

}  // namespace ebb

// Grid: rows. The suffix is the largest hidden size.
EBB_KERNEL_EARLY(join_branches_4096, ebb::JoinParams, 256, 1) { ebb::join_branches<2>(p); }
EBB_KERNEL_EARLY(join_branches_16384, ebb::JoinParams, 256, 1) { ebb::join_branches<8>(p); }
