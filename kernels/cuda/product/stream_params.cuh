// What a streamed product is asked for. See stream.cuh.
#pragma once
#include "../common/ptx.cuh"
#include "../common/tensor_copy.cuh"

namespace ebb {

struct StreamParams {
  TensorMap x;  // [rows][inputs]; a copy: N rows, 64 inputs
  // [outputs][inputs]; a copy: the outputs of a tile, 128 bytes of inputs; if gated [outputs /
  // 16][2][8][inputs], a copy: slices, 2, 8, 128 bytes
  TensorMap w;
  void* y;  // [rows][outputs], bf16 or f32; if gated [rows][outputs / 2], bf16
  // [grid][outputs of a tile * N], of the tile that a run begins in; kEmpty between launches
  float* partial;
  uint32_t rows;     // at most N
  uint32_t inputs;   // a multiple of 8
  uint32_t outputs;  // a multiple of 8; rows * outputs < 2^32
  uint32_t wide;     // y is f32
  // y = activation(gates) * what they open, the activation of common/activation.cuh; 0: not gated
  uint32_t gated;
  // CTAs that share a tile, 1 to 8, the grid then being whole tiles; 0: runs of equal length
  uint32_t parts;
  uint32_t slices;  // of 16 outputs, of a tile; 1 to 8, or 12 for more than 64 rows
  uint32_t stride;  // of y's rows, in values
  // [rows][outputs], or null: what sums are added to; y is then `residual` times `weight`
  float* residual;
  const bf16* weight;  // [outputs]
  float* squares;      // [outputs / 16][N]: of `residual`, a sum for each 16 outputs
  // such sums of `inputs` values, or null: sums are divided by the root of their mean
  const float* norms;
  float eps;  // added to that
  uint32_t reserved0;
  // weights in chunks instead of `w`: [inputs / 128][outputs / 16] (packed.cuh), of gated ones
  // eight gates and what they open in turns
  const uint8_t* packed;
  // of packed weights: [outputs / 16][16] as chunks have them, or of rows [outputs]
  const float* factors;
  uint32_t reserved[6];
};
static_assert(sizeof(StreamParams) == 384);

constexpr int kStreamInputs = 64;  // of a copy of x
constexpr int kStreamSlice = 16;   // outputs of a slice, a warp's of a tile

// Bits of a partial sum that has not come: of a NaN, but not of the one that arithmetic makes.
constexpr uint32_t kEmpty = 0xffffffff;

}  // namespace ebb
