// What becomes of the sums of a streamed product, eight rows by 16 outputs at a time.
#pragma once
#include "../common/activation.cuh"
#include "stream_params.cuh"

namespace ebb {

// A block: sixteen outputs (slice), of eight rows (octet). A lane (g, t) holds of outputs g, g, g +
// 8, g + 8 the rows 2 t, 2 t + 1, 2 t, 2 t + 1, as a matrix instruction leaves them.
struct StreamBlock {
  uint32_t slice, octet;

  __device__ __forceinline__ uint32_t output() const { return slice * kStreamSlice; }
  __device__ __forceinline__ uint32_t row() const { return octet * 8; }
};

// What a lane's sums are added to, and the weights of its two outputs; zeros beyond the edges.
struct StreamResidual {
  float x[4], weight[2];

  __device__ __forceinline__ void load(const StreamParams& p, const StreamBlock& block) {
    const uint32_t lane = threadIdx.x % 32, first = block.output() + lane / 4,
                   row = block.row() + 2 * (lane % 4);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t output = first + i / 2 * 8;
      x[i] = row + i % 2 < p.rows && output < p.outputs
                 ? p.residual[(row + i % 2) * p.outputs + output]
                 : 0.f;
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++)
      weight[half] =
          first + 8 * half < p.outputs ? __bfloat162float(p.weight[first + 8 * half]) : 0.f;
  }
};

// Stores two bf16 of each lane (g, t), those of outputs g of the rows 2 t and 2 t + 1, transposed,
// so that four lanes write 16 bytes of a row: outputs `output` ... `output` + 7 of `width`.
__device__ __forceinline__ void store_transposed(const StreamParams& p, const StreamBlock& block,
                                                 uint32_t pair, uint32_t output, uint32_t width) {
  const uint32_t lane = threadIdx.x % 32, row = block.row() + lane / 4,
                 at = output + 2 * (lane % 4), turned = movmatrix_trans(pair);
  if (row < p.rows && at < width)
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(p.y) + (row * p.stride + at)) = turned;
}

// Adds them to the residual stream, stores that, what comes of it for the product behind the norm,
// and the sums of its squares, in `squares` of [slices of all outputs][rows_max].
__device__ __forceinline__ void add_to_residual(const StreamParams& p, const StreamBlock& block,
                                                const float (&sums)[4],
                                                const StreamResidual& residual, uint32_t rows_max) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, first = block.output(),
                 row = block.row() + 2 * (lane % 4);
  float x[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    x[i] = residual.x[i] + __bfloat162float(__float2bfloat16(sums[i]));
    const uint32_t output = first + g + i / 2 * 8;
    if (row + i % 2 < p.rows && output < p.outputs)
      p.residual[(row + i % 2) * p.outputs + output] = x[i];
  }
#pragma unroll
  for (uint32_t half = 0; half < 2; half++) {
    const float weight = residual.weight[half];
    store_transposed(p, block, pack_bf16(x[2 * half] * weight, x[2 * half + 1] * weight),
                     first + 8 * half, p.outputs);
  }
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    float square = x[r] * x[r] + x[2 + r] * x[2 + r];
#pragma unroll
    for (int k = 4; k < 32; k *= 2) square += __shfl_xor_sync(~0u, square, k);
    if (g == 0) p.squares[block.slice * rows_max + row + r] = square;
  }
}

// Stores them as they are, or gated.
__device__ __forceinline__ void store(const StreamParams& p, const StreamBlock& block,
                                      const float (&sums)[4]) {
  if (block.row() >= p.rows) return;
  const uint32_t first = block.output();
  if (p.gated) {
    store_transposed(
        p, block, gated_pair(p.gated, make_float2(sums[0], sums[1]), make_float2(sums[2], sums[3])),
        first / 2, p.outputs / 2);
  } else if (p.wide) {  // eight lanes write 32 bytes of a row
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t row = block.row() + 2 * (lane % 4) + i % 2,
                     output = first + lane / 4 + i / 2 * 8;
      if (row < p.rows && output < p.outputs)
        static_cast<float*>(p.y)[row * p.stride + output] = sums[i];
    }
  } else {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++)
      store_transposed(p, block, pack_bf16(sums[2 * half], sums[2 * half + 1]), first + 8 * half,
                       p.outputs);
  }
}

}  // namespace ebb
