// The activations of MLPs and of other gates.
#pragma once
#include "ptx.cuh"

namespace ebb {

// Which: `Activation::code` of the host.
constexpr uint32_t kSilu = 1, kGeluTanh = 2, kRelu2 = 3;

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

__device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }

// x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 + e^(-2 u)).
__device__ __forceinline__ float gelu_tanh(float x) {
  return x / (1.f + __expf(-1.5957691f * x * fmaf(0.044715f * x, x, 1.f)));
}

// x itself above 20, as in src/cpu.
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

__device__ __forceinline__ float relu2(float x) { return x < 0.f ? 0.f : x * x; }

__device__ __forceinline__ float activate(uint32_t activation, float x) {
  return activation == kGeluTanh ? gelu_tanh(x) : activation == kRelu2 ? relu2(x) : silu(x);
}

// activation(gate) * up of two values, which are rounded to bf16 before, as they are where they
// pass through memory.
__device__ __forceinline__ uint32_t gated_pair(uint32_t activation, float2 gate, float2 up) {
  const float2 g = unpack_bf16(pack_bf16(gate.x, gate.y)), u = unpack_bf16(pack_bf16(up.x, up.y));
  return pack_bf16(activate(activation, g.x) * u.x, activate(activation, g.y) * u.y);
}

}  // namespace ebb
