// What norms of the residual stream, and of what is added to it, have in common.
#pragma once
#include "../common/eight.cuh"
#include "../common/reduce.cuh"

namespace ebb {

// How a model's norms are computed.
struct NormForm {
  float eps;          // added to the mean of squares, or the variance
  float from;         // what weights count from: 0 or 1
  float delta_scale;  // what is added to the residual stream is multiplied by it
  uint32_t layer;     // LayerNorm: the mean is subtracted first
};
static_assert(sizeof(NormForm) == 16);

constexpr int kNormThreads = 256;

// The first of a thread's 8 values in a row, of its vector `v`.
__device__ __forceinline__ uint32_t norm_place(int v) {
  return (v * kNormThreads + threadIdx.x) * 8;
}

// 8 values of a tensor that no kernel writes.
__device__ __forceinline__ void load_weights8(const bf16* from, float (&x)[8]) {
  unpack8(__ldg(reinterpret_cast<const uint4*>(from)), x);
}

// What is added to the residual stream, with a bias if there is one.
__device__ __forceinline__ void load_delta8(const bf16* from, const bf16* bias, float (&x)[8]) {
  load8(from, x);
  if (!bias) return;
  float b[8];
  load_weights8(bias, b);
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] += b[k];
}

// What a row's values are to be multiplied with; their mean is subtracted from them first, if it
// must be. A thread has Vectors x 8 values, zero beyond the row.
template <int Vectors>
__device__ __forceinline__ float inverse_root(const NormForm& form, uint32_t hidden,
                                              float (&x)[Vectors][8], float* scratch) {
  if (form.layer) {
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < Vectors; v++) {
#pragma unroll
      for (int k = 0; k < 8; k++) sum += x[v][k];
    }
    const float mean = cta_sum<kNormThreads / 32>(sum, scratch) / hidden;
#pragma unroll
    for (int v = 0; v < Vectors; v++) {
      if (norm_place(v) >= hidden) continue;
#pragma unroll
      for (int k = 0; k < 8; k++) x[v][k] -= mean;
    }
  }
  float square = 0.f;
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
#pragma unroll
    for (int k = 0; k < 8; k++) square += x[v][k] * x[v][k];
  }
  return rsqrtf(cta_sum<kNormThreads / 32>(square, scratch) / hidden + form.eps);
}

// x * inverse * weight + bias; without a bias where that is null.
__device__ __forceinline__ void scale8(const NormForm& form, float inverse,
                                       const float (&weight)[8], const bf16* bias, float (&x)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] = x[k] * inverse * (form.from + weight[k]);
  if (!bias) return;
  float b[8];
  load_weights8(bias, b);
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] += b[k];
}

// x += d, times what the model multiplies it by.
__device__ __forceinline__ void add_scaled8(const NormForm& form, const float (&d)[8],
                                            float (&x)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] = fmaf(d[k], form.delta_scale, x[k]);
}

// A norm's weights for a thread's vectors. No kernel writes them: they are loaded before it is
// waited for the kernel before.
template <int Vectors>
struct HeldWeights {
  uint4 of[Vectors];

  __device__ __forceinline__ HeldWeights(const bf16* weight, uint32_t hidden) {
#pragma unroll
    for (int v = 0; v < Vectors; v++) {
      const uint32_t i = norm_place(v);
      if (i < hidden) of[v] = __ldg(reinterpret_cast<const uint4*>(weight + i));
    }
  }
};

// A thread's vectors of a row of the residual stream, `delta` added if it is not null. then(i, x):
// what else becomes of the eight values from i on.
template <int Vectors, class THEN>
__device__ __forceinline__ void load_stream(const NormForm& form, uint32_t hidden,
                                            const float* residual, const bf16* delta,
                                            const bf16* delta_bias, float (&x)[Vectors][8],
                                            THEN then) {
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
#pragma unroll
    for (int k = 0; k < 8; k++) x[v][k] = 0.f;
    if (i >= hidden) continue;
    load8(residual + i, x[v]);
    if (delta) {
      float d[8];
      load_delta8(delta + i, delta_bias ? delta_bias + i : nullptr, d);
      add_scaled8(form, d, x[v]);
    }
    then(i, x[v]);
  }
}

// Norms a row, of which a thread has Vectors x 8 values, zero beyond it. put(i, x): where the eight
// values from i on go.
template <int Vectors, class PUT>
__device__ __forceinline__ void norm_row(const NormForm& form, uint32_t hidden,
                                         const HeldWeights<Vectors>& weights, const bf16* bias,
                                         float (&x)[Vectors][8], float* scratch, PUT put) {
  const float inverse = inverse_root(form, hidden, x, scratch);
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = norm_place(v);
    if (i >= hidden) continue;
    float w[8];
    unpack8(weights.of[v], w);
    scale8(form, inverse, w, bias ? bias + i : nullptr, x[v]);
    put(i, x[v]);
  }
}

}  // namespace ebb
