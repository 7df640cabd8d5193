// Records whose first tokens are bf16 rows, token by token, in front of all else.
#pragma once
#include "pool.cuh"
#include "quantise.cuh"

namespace ebb {

// The first `Tokens` staged rows to a record, and back.
template <int HeadDim, uint32_t Tokens>
__device__ __forceinline__ void write_sink(const RecordBytes& dst, const uint8_t* staged) {
  constexpr uint32_t kChunks = HeadDim / 8;
  if constexpr (Tokens > 0)
    for (uint32_t v = threadIdx.x; v < Tokens * kChunks; v += 2 * HeadDim)
      *reinterpret_cast<uint4*>(dst.at(16 * v)) = *reinterpret_cast<const uint4*>(
          staged + staged_offset<HeadDim>(v / kChunks, v % kChunks));
}
template <int HeadDim, uint32_t Tokens>
__device__ __forceinline__ void read_sink(const RecordBytes& src, uint8_t* staged) {
  constexpr uint32_t kChunks = HeadDim / 8;
  if constexpr (Tokens > 0)
    for (uint32_t v = threadIdx.x; v < Tokens * kChunks; v += 2 * HeadDim)
      *reinterpret_cast<uint4*>(staged + staged_offset<HeadDim>(v / kChunks, v % kChunks)) =
          *reinterpret_cast<const uint4*>(src.at(16 * v));
}

// One value of the staged rows, to nearest.
template <int HeadDim>
__device__ __forceinline__ void stage_value(uint8_t* staged, uint32_t token, uint32_t channel,
                                            float x) {
  *reinterpret_cast<uint16_t*>(staged + staged_offset<HeadDim>(token, channel / 8) +
                               channel % 8 * 2) = static_cast<uint16_t>(pack_bf16(x, 0.f));
}

}  // namespace ebb
