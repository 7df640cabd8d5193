// Norms after a part of a layer: residual += delta / rms(delta) * post; then
// out = residual / rms(residual) * weight, or the residual itself.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct PostNormParams {
  const bf16* delta;   // [rows][hidden], or null: nothing is added
  const bf16* post;    // [hidden], or null: delta is added as it is
  float* residual;     // [rows][hidden]
  const bf16* weight;  // [hidden], or null: out is the residual, rounded
  bf16* out;           // [rows][hidden]
  uint32_t hidden;     // a multiple of 8
  float eps;
};
static_assert(sizeof(PostNormParams) == 48);

__device__ __forceinline__ void load8(const bf16* from, float (&x)[8]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 f = unpack_bf16(w[k]);
    x[2 * k] = f.x;
    x[2 * k + 1] = f.y;
  }
}

// 1 / rms(x) over the CTA's row; a thread has Vectors x 8 values, zero beyond the row.
template <int Vectors>
__device__ __forceinline__ float inverse_rms(const PostNormParams& p, const float (&x)[Vectors][8],
                                             float* scratch) {
  float square = 0.f;
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
#pragma unroll
    for (int k = 0; k < 8; k++) square += x[v][k] * x[v][k];
  }
  return rsqrtf(cta_sum<8>(square, scratch) / p.hidden + p.eps);
}

// One CTA a row.
template <int Vectors>
__device__ __forceinline__ void post_norm(const PostNormParams& p) {
  constexpr int kThreads = 256;
  __shared__ float scratch[2][kThreads / 32];
  let_next_start();
  wait_for_previous();
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * p.hidden;
  float x[Vectors][8];
  float d[Vectors][8];
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = (v * kThreads + threadIdx.x) * 8;
#pragma unroll
    for (int k = 0; k < 8; k++) x[v][k] = d[v][k] = 0.f;
    if (i >= p.hidden) continue;
    *reinterpret_cast<float4*>(&x[v][0]) = *reinterpret_cast<const float4*>(p.residual + first + i);
    *reinterpret_cast<float4*>(&x[v][4]) =
        *reinterpret_cast<const float4*>(p.residual + first + i + 4);
    if (p.delta) load8(p.delta + first + i, d[v]);
  }
  if (p.delta) {
    const float inverse = p.post ? inverse_rms(p, d, scratch[0]) : 1.f;
#pragma unroll
    for (int v = 0; v < Vectors; v++) {
      const uint32_t i = (v * kThreads + threadIdx.x) * 8;
      if (i >= p.hidden) continue;
      float post[8];
#pragma unroll
      for (int k = 0; k < 8; k++) post[k] = 1.f;
      if (p.post) load8(p.post + i, post);
#pragma unroll
      for (int k = 0; k < 8; k++) x[v][k] += d[v][k] * inverse * post[k];
      *reinterpret_cast<float4*>(p.residual + first + i) = *reinterpret_cast<float4*>(&x[v][0]);
      *reinterpret_cast<float4*>(p.residual + first + i + 4) = *reinterpret_cast<float4*>(&x[v][4]);
    }
  }
  const float inverse = p.weight ? inverse_rms(p, x, scratch[1]) : 1.f;
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = (v * kThreads + threadIdx.x) * 8;
    if (i >= p.hidden) continue;
    float weight[8];
#pragma unroll
    for (int k = 0; k < 8; k++) weight[k] = 1.f;
    if (p.weight) load8(p.weight + i, weight);
    uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      out[k] = pack_bf16(x[v][2 * k] * inverse * weight[2 * k],
                         x[v][2 * k + 1] * inverse * weight[2 * k + 1]);
    }
    *reinterpret_cast<uint4*>(p.out + first + i) = make_uint4(out[0], out[1], out[2], out[3]);
  }
}

}  // namespace ebb

// Grid: rows. The suffix is the largest hidden size.
EBB_KERNEL_EARLY(post_norm_4096, ebb::PostNormParams, 256, 1) { ebb::post_norm<2>(p); }
EBB_KERNEL_EARLY(post_norm_16384, ebb::PostNormParams, 256, 1) { ebb::post_norm<8>(p); }
