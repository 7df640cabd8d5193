// What a streamed product multiplies by.
#pragma once
#include "packed.cuh"
#include "stream_params.cuh"

namespace ebb {

// Weights of bf16, [outputs][inputs], which the tensor cores read from shared memory.
struct PlainWeights {
  static constexpr int kInputs = kStreamInputs, kSliceBytes = kStreamSlice * 128;
  static constexpr bool kPacked = false, kInRows = true;
};

// Packed weights.
template <class CHUNK>
struct PackedWeights {
  using Chunk = CHUNK;
  static constexpr int kInputs = Chunk::kInputs, kSliceBytes = Chunk::kSliceBytes;
  static constexpr bool kPacked = true, kInRows = Chunk::kInRows;
};

}  // namespace ebb
