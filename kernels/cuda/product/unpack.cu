// Packed weights to bf16, [outputs][inputs]: for products of many rows.
#include "../common/kernel.cuh"
#include "packed.cuh"

namespace ebb {

struct UnpackParams {
  const uint8_t* packed;  // chunks [inputs / 128][outputs / 16], or rows
  const float* factors;   // [outputs / 16][16], or [outputs]
  bf16* w;                // [outputs][inputs]
  uint32_t inputs;        // a multiple of 8
  uint32_t outputs;
  uint32_t gated;  // a slice has eight gates and what they open: of outputs i and outputs / 2 + i
  uint32_t reserved;
};
static_assert(sizeof(UnpackParams) == 40);

constexpr int kUnpackWarps = 8;
// A chunk's weights in pairs; rows begin in other banks.
struct alignas(16) UnpackedChunk {
  uint32_t pairs[16][68];
};

// A warp unpacks a chunk by way of shared memory, so that rows are written 256 bytes at a time.
template <class CHUNK>
__device__ __forceinline__ void unpack(const UnpackParams& p, UnpackedChunk* unpacked) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint32_t slices = (p.outputs + kChunkOutputs - 1) / kChunkOutputs,
                 slice = blockIdx.x * kUnpackWarps + warp, step = blockIdx.y;
  if (slice >= slices) return;
  const StoredSlice<CHUNK> weights(p, slice, lane);
  uint32_t (&mine)[16][68] = unpacked[warp].pairs;
  typename CHUNK::Scales scales;
  const float factor[2] = {p.factors[weights.factor(slice, g, p.outputs, p.gated)],
                           p.factors[weights.factor(slice, g + 8, p.outputs, p.gated)]};
#pragma unroll
  for (int quarter = 0; quarter < 4; quarter++) {
    QuarterChunk a;
    weights.dequantise(step, quarter, lane, scales, a);
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
      for (uint32_t r = 0; r < 4; r++) {
        const float2 pair = unpack_bf16(a[k][r]);
        mine[g + r % 2 * 8][quarter * 16 + k * 8 + r / 2 * 4 + t] =
            pack_bf16(pair.x * factor[r % 2], pair.y * factor[r % 2]);
      }
    }
  }
  __syncwarp();
  const uint32_t first = step * kChunkInputs, column = first + lane % 16 * 8;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const uint32_t row = 2 * i + lane / 16;
    const uint32_t output = output_of(slice, row, p.outputs, p.gated);
    if (output < p.outputs && column < p.inputs)
      *reinterpret_cast<uint4*>(p.w + static_cast<uint64_t>(output) * p.inputs + column) =
          *reinterpret_cast<const uint4*>(&mine[row][lane % 16 * 4]);
  }
}

}  // namespace ebb

// Grid: slices / 8, units of inputs.
#define EBB_UNPACK(FORMAT, CHUNK)                                             \
  EBB_KERNEL(unpack_##FORMAT, ebb::UnpackParams, ebb::kUnpackWarps * 32, 2) { \
    __shared__ ebb::UnpackedChunk unpacked[ebb::kUnpackWarps];                \
    ebb::unpack<ebb::CHUNK>(p, unpacked);                                     \
  }

EBB_PACKED_ALL(EBB_UNPACK)
