// y = x w^T of packed weights for up to 8 rows of x, on any device: as skinny.cu, a warp reading
// weights straight into registers.
#include "../common/kernel.cuh"
#include "packed.cuh"

namespace ebb {

struct SkinnyPackedParams {
  const bf16* x;          // [rows][inputs]
  const uint8_t* packed;  // chunks [inputs / 128][outputs / 16], or rows
  const float* factors;   // [outputs / 16][16], or [outputs]
  void* y;                // [rows][stride], bf16 or f32
  uint32_t rows;          // at most 8
  uint32_t inputs;        // a multiple of 8
  uint32_t outputs;
  uint32_t stride;  // of y's rows, in values
  uint32_t wide;    // y is f32
  uint32_t gated;   // a slice has eight gates and what they open: outputs i and outputs / 2 + i
};
static_assert(sizeof(SkinnyPackedParams) == 56);

constexpr int kSkinnyPackedWarps = 8;

template <class CHUNK>
__device__ __forceinline__ void skinny_packed(const SkinnyPackedParams& p, float* partial) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint32_t slice = blockIdx.x;
  const uint32_t steps = (p.inputs + kChunkInputs - 1) / kChunkInputs,
                 begin = steps * warp / kSkinnyPackedWarps,
                 end = steps * (warp + 1) / kSkinnyPackedWarps;
  const bf16* const x = p.x + static_cast<uint64_t>(g) * p.inputs;
  const bool row = g < p.rows;
  // Two inputs of this lane's row.
  auto pair = [&](uint32_t input) {
    return row && input < p.inputs ? *reinterpret_cast<const uint32_t*>(x + input) : 0u;
  };
  float c[2][4] = {};
  const StoredSlice<CHUNK> weights(p, slice, lane);
  typename CHUNK::Scales scales;
#pragma unroll 1
  for (uint32_t step = begin; step < end; step++) {
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      QuarterChunk a;
      weights.dequantise(step, quarter, lane, scales, a);
#pragma unroll
      for (uint32_t k = 0; k < 2; k++) {
        const uint32_t input = step * kChunkInputs + quarter * 32 + k * 16 + 2 * t;
        mma_bf16(c[k % 2], a[k], pair(input), pair(input + 8));
      }
    }
  }
  // Accumulator: outputs g and g + 8, rows 2t and 2t + 1.
#pragma unroll
  for (int i = 0; i < 4; i++)
    partial[(warp * 8 + 2 * t + i % 2) * 16 + g + i / 2 * 8] = c[0][i] + c[1][i];
  __syncthreads();
  const uint32_t r = threadIdx.x / 16, i = threadIdx.x % 16;
  const uint32_t output = output_of(slice, i, p.outputs, p.gated);
  if (r >= p.rows || output >= p.outputs) return;
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kSkinnyPackedWarps; w++) sum += partial[(w * 8 + r) * 16 + i];
  sum *= p.factors[weights.factor(slice, i, p.outputs, p.gated)];
  const uint64_t at = static_cast<uint64_t>(r) * p.stride + output;
  if (p.wide)
    static_cast<float*>(p.y)[at] = sum;
  else
    static_cast<bf16*>(p.y)[at] = __float2bfloat16(sum);
}

}  // namespace ebb

// Grid: slices.
#define EBB_SKINNY_PACKED(FORMAT, CHUNK)                                                          \
  EBB_KERNEL(product_skinny_##FORMAT, ebb::SkinnyPackedParams, ebb::kSkinnyPackedWarps * 32, 2) { \
    __shared__ float partial[ebb::kSkinnyPackedWarps * 8 * 16];                                   \
    ebb::skinny_packed<ebb::CHUNK>(p, partial);                                                   \
  }

EBB_PACKED_ALL(EBB_SKINNY_PACKED)
