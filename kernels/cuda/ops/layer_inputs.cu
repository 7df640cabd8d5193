// What layers get of each token beside the residual stream, and what they multiply that by: Gemma
// 4's per-layer embeddings and layer scalars.
#include "../common/activation.cuh"
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"

namespace ebb {

struct LayerInputsParams {
  const uint32_t* tokens;   // [rows], an id, or the top bit and a sample of the step before
  const uint32_t* sampled;  // tokens of those samples
  const bf16* table;        // [vocab][layers * width]
  const bf16* norm;         // [width]
  bf16* inputs;             // [rows][layers * width]: projections of embeddings, then inputs
  uint32_t layers;
  uint32_t width;
  float projection_multiplier;
  float embedding_multiplier;
  float eps;
  float norm_from;  // what weights of norms count from
};
static_assert(sizeof(LayerInputsParams) == 64);

struct OpenInputParams {
  bf16* gates;         // [rows][width], then the opened input
  const bf16* inputs;  // [rows][stride]
  uint32_t width;
  uint32_t stride;
  uint32_t first;  // of a layer's inputs in a row
  uint32_t activation;
};
static_assert(sizeof(OpenInputParams) == 32);

struct ScaleParams {
  float* residual;
  const bf16* scale;  // one number
  uint64_t count;
};
static_assert(sizeof(ScaleParams) == 24);

}  // namespace ebb

// A warp a layer. Grid: (rows, layers / 8).
EBB_KERNEL(layer_inputs, ebb::LayerInputsParams, 256, 1) {
  const uint32_t row = blockIdx.x, layer = blockIdx.y * 8 + threadIdx.x / 32,
                 lane = threadIdx.x % 32;
  if (layer >= p.layers) return;
  uint32_t token = p.tokens[row];
  if (token >> 31) token = p.sampled[token & ~(1u << 31)];
  const uint64_t stride = static_cast<uint64_t>(p.layers) * p.width;
  const ebb::bf16* const embedding = p.table + token * stride + layer * p.width;
  ebb::bf16* const x = p.inputs + row * stride + layer * p.width;
  float square = 0.f;
  for (uint32_t c = lane; c < p.width; c += 32) {
    const float value = __bfloat162float(x[c]) * p.projection_multiplier;
    square = fmaf(value, value, square);
  }
  const float inverse =
      p.projection_multiplier * rsqrtf(ebb::warp_sum(square) / static_cast<float>(p.width) + p.eps);
  constexpr float kHalfRoot = 0.70710678f;
  for (uint32_t c = lane; c < p.width; c += 32) {
    const float normed =
        __bfloat162float(x[c]) * inverse * (p.norm_from + __bfloat162float(p.norm[c]));
    x[c] = __float2bfloat16(fmaf(__bfloat162float(embedding[c]), p.embedding_multiplier, normed) *
                            kHalfRoot);
  }
}

// Grid: rows.
EBB_KERNEL(open_layer_input, ebb::OpenInputParams, 256, 1) {
  ebb::bf16* const gates = p.gates + static_cast<uint64_t>(blockIdx.x) * p.width;
  const ebb::bf16* const input = p.inputs + static_cast<uint64_t>(blockIdx.x) * p.stride + p.first;
  for (uint32_t c = threadIdx.x; c < p.width; c += 256) {
    const float gate = ebb::activate(p.activation, __bfloat162float(gates[c]));
    gates[c] = __float2bfloat16(gate * __bfloat162float(input[c]));
  }
}

// Grid: any number of CTAs.
EBB_KERNEL(scale_residual, ebb::ScaleParams, 256, 1) {
  const float scale = __bfloat162float(*p.scale);
  const uint64_t step = static_cast<uint64_t>(gridDim.x) * 256;
  for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < p.count; i += step)
    p.residual[i] *= scale;
}
