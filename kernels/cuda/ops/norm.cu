// RMSNorm fused with the residual sum: residual += delta; out = residual / rms(residual) * weight.
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct NormParams {
  const bf16* delta;         // [rows][hidden], or null
  float* residual;           // [rows][hidden]
  const bf16* weight;        // [hidden]
  bf16* out;                 // [outputs][hidden]
  const uint32_t* selected;  // row of each output, or null for all rows
  uint32_t hidden;           // a multiple of 8
  float eps;
};
static_assert(sizeof(NormParams) == 48);

// One CTA a row; a thread keeps its Vectors x 8 values in registers between the two passes.
template <int Vectors>
__device__ __forceinline__ void norm(const NormParams& p) {
  constexpr int kThreads = 256;
  __shared__ float scratch[kThreads / 32];
  let_next_start();
  uint4 weight[Vectors];  // no kernel writes weights
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = (v * kThreads + threadIdx.x) * 8;
    if (i < p.hidden) weight[v] = __ldg(reinterpret_cast<const uint4*>(p.weight + i));
  }
  wait_for_previous();
  const uint64_t row = p.selected ? p.selected[blockIdx.x] : blockIdx.x;
  float* residual = p.residual + row * p.hidden;
  float x[Vectors][8];
  float square = 0.f;
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = (v * kThreads + threadIdx.x) * 8;
    if (i >= p.hidden) continue;
    *reinterpret_cast<float4*>(&x[v][0]) = *reinterpret_cast<const float4*>(residual + i);
    *reinterpret_cast<float4*>(&x[v][4]) = *reinterpret_cast<const float4*>(residual + i + 4);
    if (p.delta) {
      const uint4 d = *reinterpret_cast<const uint4*>(p.delta + row * p.hidden + i);
      const uint32_t words[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float2 f = unpack_bf16(words[k]);
        x[v][2 * k] += f.x;
        x[v][2 * k + 1] += f.y;
      }
      *reinterpret_cast<float4*>(residual + i) = *reinterpret_cast<const float4*>(&x[v][0]);
      *reinterpret_cast<float4*>(residual + i + 4) = *reinterpret_cast<const float4*>(&x[v][4]);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) square += x[v][k] * x[v][k];
  }
  const float inverse = rsqrtf(cta_sum<kThreads / 32>(square, scratch) / p.hidden + p.eps);
#pragma unroll
  for (int v = 0; v < Vectors; v++) {
    const uint32_t i = (v * kThreads + threadIdx.x) * 8;
    if (i >= p.hidden) continue;
    const uint32_t words[4] = {weight[v].x, weight[v].y, weight[v].z, weight[v].w};
    uint32_t out[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 f = unpack_bf16(words[k]);
      out[k] = pack_bf16(x[v][2 * k] * inverse * f.x, x[v][2 * k + 1] * inverse * f.y);
    }
    *reinterpret_cast<uint4*>(p.out + static_cast<uint64_t>(blockIdx.x) * p.hidden + i) =
        make_uint4(out[0], out[1], out[2], out[3]);
  }
}

}  // namespace ebb

// Grid: outputs. The suffix is the largest hidden size. A selected row must be selected once only
// if there is a delta.
EBB_KERNEL_EARLY(norm_2048, ebb::NormParams, 256, 1) { ebb::norm<1>(p); }
EBB_KERNEL_EARLY(norm_4096, ebb::NormParams, 256, 1) { ebb::norm<2>(p); }
EBB_KERNEL_EARLY(norm_8192, ebb::NormParams, 256, 1) { ebb::norm<4>(p); }
EBB_KERNEL_EARLY(norm_16384, ebb::NormParams, 256, 1) { ebb::norm<8>(p); }
