// What is done to each token's row of f32 values on the way to loss gradients and back.
#include "../common/activation.cuh"
#include "../common/kernel.cuh"
#include "../common/ptx.cuh"

namespace ebb {

struct GradWidenParams {
  const bf16* from;
  float* to;
  uint64_t count;
};
static_assert(sizeof(GradWidenParams) == 24);

struct GradEmbedParams {
  const uint32_t* tokens;
  const bf16* table;  // [vocab][hidden]
  float* out;         // [tokens][hidden]
  uint64_t hidden;
};
static_assert(sizeof(GradEmbedParams) == 32);

struct GradBiasParams {
  float* x;          // [tokens][width]
  const bf16* bias;  // [width]
  uint64_t width;
};
static_assert(sizeof(GradBiasParams) == 24);

struct GradRopeParams {
  float* x;             // first head of the first token
  const float2* table;  // [tokens][dim / 2]: cosine, sine
  uint64_t stride;      // from a token to the next
  uint32_t heads, dim;
  float sign;  // 1: rotates. -1: the transpose, which takes gradients back
  uint32_t reserved;
};
static_assert(sizeof(GradRopeParams) == 40);

struct GradSwigluParams {
  float* gate_up;  // [tokens][2 * width]: gate, then up. Backwards they become their gradients
  float* act;      // [tokens][width]: silu(gate) * up. Backwards the gradient of that
  uint64_t width;
};
static_assert(sizeof(GradSwigluParams) == 24);

}  // namespace ebb

// Grid: enough for all, or fewer.
EBB_KERNEL(grad_widen, ebb::GradWidenParams, 256, 1) {
  for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < p.count; i += gridDim.x * 256ull)
    p.to[i] = __bfloat162float(p.from[i]);
}

// Grid of these: tokens.
EBB_KERNEL(grad_embed, ebb::GradEmbedParams, 256, 1) {
  const ebb::bf16* from = p.table + p.tokens[blockIdx.x] * p.hidden;
  for (uint32_t i = threadIdx.x; i < p.hidden; i += 256)
    p.out[blockIdx.x * p.hidden + i] = __bfloat162float(from[i]);
}

EBB_KERNEL(grad_bias, ebb::GradBiasParams, 256, 1) {
  for (uint32_t i = threadIdx.x; i < p.width; i += 256)
    p.x[blockIdx.x * p.width + i] += __bfloat162float(p.bias[i]);
}

EBB_KERNEL(grad_rope, ebb::GradRopeParams, 256, 1) {
  const uint32_t half = p.dim / 2;
  const float2* table = p.table + static_cast<uint64_t>(blockIdx.x) * half;
  float* x = p.x + blockIdx.x * p.stride;
  for (uint32_t i = threadIdx.x; i < p.heads * half; i += 256) {
    const float2 cs = table[i % half];
    float *low = x + i / half * p.dim + i % half, *high = low + half;
    const float a = *low, b = *high, sine = p.sign * cs.y;
    *low = a * cs.x - b * sine;
    *high = b * cs.x + a * sine;
  }
}

EBB_KERNEL(grad_swiglu, ebb::GradSwigluParams, 256, 1) {
  const float* gate = p.gate_up + blockIdx.x * 2 * p.width;
  for (uint32_t i = threadIdx.x; i < p.width; i += 256)
    p.act[blockIdx.x * p.width + i] = gate[i] * ebb::sigmoid(gate[i]) * gate[p.width + i];
}

EBB_KERNEL(grad_swiglu_back, ebb::GradSwigluParams, 256, 1) {
  float* gate = p.gate_up + blockIdx.x * 2 * p.width;
  for (uint32_t i = threadIdx.x; i < p.width; i += 256) {
    const float x = gate[i], up = gate[p.width + i], grad = p.act[blockIdx.x * p.width + i],
                s = ebb::sigmoid(x);
    gate[i] = grad * up * s * (1.f + x * (1.f - s));
    gate[p.width + i] = grad * x * s;
  }
}
