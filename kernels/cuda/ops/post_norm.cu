// Norms after a part of a layer: residual += scale * norm(delta), or delta as it is; then out =
// norm(residual), or the residual itself, or nothing.
#include "../common/kernel.cuh"
#include "norm_form.cuh"

namespace ebb {

struct PostNormParams {
  const bf16* delta;       // [rows][hidden], or null: nothing is added
  const bf16* delta_bias;  // [hidden], or null: added to delta
  const bf16* post;        // [hidden], or null: delta is added as it is
  const bf16* post_bias;   // [hidden], or null
  float* residual;         // [rows][hidden]
  const bf16* weight;      // [hidden], or null: out is the residual, rounded
  const bf16* bias;        // [hidden], or null
  bf16* out;               // [rows][hidden], or null
  NormForm form;
  uint32_t hidden;  // a multiple of 8
  uint32_t reserved;
};
static_assert(sizeof(PostNormParams) == 88);

// One CTA a row.
template <int Vectors>
__device__ __forceinline__ void post_norm(const PostNormParams& p) {
  __shared__ float scratch[kNormThreads / 32];
  let_next_start();
  wait_for_previous();
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * p.hidden;
  float x[Vectors][8];
  float d[Vectors][8];
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
#pragma unroll
    for (int k = 0; k < 8; k++) x[v][k] = d[v][k] = 0.f;
    if (i >= p.hidden) continue;
    load8(p.residual + first + i, x[v]);
    if (p.delta) load_delta8(p.delta + first + i, p.delta_bias ? p.delta_bias + i : nullptr, d[v]);
  }
  if (p.delta) {
    const float inverse = p.post ? inverse_root(p.form, p.hidden, d, scratch) : 1.f;
#pragma unroll
    for (int v = 0; v < Vectors; v++) {
      const uint32_t i = norm_place(v);
      if (i >= p.hidden) continue;
      if (p.post) {
        float post[8];
        load_weights8(p.post + i, post);
        scale8(p.form, inverse, post, p.post_bias ? p.post_bias + i : nullptr, d[v]);
      }
      add_scaled8(p.form, d[v], x[v]);
      store8(p.residual + first + i, x[v]);
    }
  }
  if (!p.out) return;
  const float inverse = p.weight ? inverse_root(p.form, p.hidden, x, scratch) : 1.f;
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
    if (i >= p.hidden) continue;
    if (p.weight) {
      float weight[8];
      load_weights8(p.weight + i, weight);
      scale8(p.form, inverse, weight, p.bias ? p.bias + i : nullptr, x[v]);
    }
    store8(p.out + first + i, x[v]);
  }
}

}  // namespace ebb

// Grid: rows. The suffix is the largest hidden size.
EBB_KERNEL_EARLY(post_norm_4096, ebb::PostNormParams, 256, 1) { ebb::post_norm<2>(p); }
EBB_KERNEL_EARLY(post_norm_16384, ebb::PostNormParams, 256, 1) { ebb::post_norm<8>(p); }
