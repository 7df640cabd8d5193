// What products of eight-bit floats read: rows of x quantised as they come, and weights out of
// their chunks.
#include "../common/kernel.cuh"
#include "../common/reduce.cuh"
#include "packed.cuh"

namespace ebb {

struct Fp8RowsParams {
  const bf16* x;    // [rows][inputs]
  uint8_t* y;       // [rows][inputs], E4M3
  float* scales;    // [rows]: x = y * scale
  uint32_t inputs;  // a multiple of 16
  uint32_t reserved;
};
static_assert(sizeof(Fp8RowsParams) == 32);

constexpr int kFp8Threads = 256;
constexpr float kFp8Most = 448.f;

// A CTA quantises a row, its greatest magnitude to 448.
__device__ __forceinline__ void quantise_row(const Fp8RowsParams& p, float* shared) {
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * p.inputs;
  const uint4* const x = reinterpret_cast<const uint4*>(p.x + first);
  uint2* const y = reinterpret_cast<uint2*>(p.y + first);
  float most = 0.f;
  for (uint32_t i = threadIdx.x; i < p.inputs / 8; i += kFp8Threads) {
    const uint4 v = x[i];
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 pair = unpack_bf16(pairs[k]);
      most = fmaxf(most, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
  }
  most = cta_max<kFp8Threads / 32>(most, shared);
  const float scale = most / kFp8Most, inverse = most > 0.f ? kFp8Most / most : 0.f;
  if (threadIdx.x == 0) p.scales[blockIdx.x] = scale;
  for (uint32_t i = threadIdx.x; i < p.inputs / 8; i += kFp8Threads) {
    const uint4 v = x[i];
    const float2 a = unpack_bf16(v.x), b = unpack_bf16(v.y), c = unpack_bf16(v.z),
                 d = unpack_bf16(v.w);
    y[i] = make_uint2(pack_e4m3(a.x * inverse, a.y * inverse, b.x * inverse, b.y * inverse),
                      pack_e4m3(c.x * inverse, c.y * inverse, d.x * inverse, d.y * inverse));
  }
}

struct Fp8WeightsParams {
  const uint8_t* packed;  // chunks [inputs / 128][outputs / 16], of outputs' own scales
  const float* factors;   // [outputs / 16][16]
  uint8_t* w;             // [outputs][inputs]
  float* scales;          // [outputs]
  uint32_t inputs;        // a multiple of 16
  uint32_t outputs;
  uint32_t gated;  // as in unpack.cu
  uint32_t reserved;
};
static_assert(sizeof(Fp8WeightsParams) == 48);

constexpr int kFp8Warps = kFp8Threads / 32;
// A chunk's codes; rows begin in other banks.
struct alignas(16) Fp8Chunk16 {
  uint8_t rows[16][144];
};

__device__ __forceinline__ void unchunk(const Fp8WeightsParams& p, Fp8Chunk16* chunks) {
  using Chunk = Fp8Chunk<0>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const uint32_t slices = (p.outputs + kChunkOutputs - 1) / kChunkOutputs,
                 slice = blockIdx.x * kFp8Warps + warp, step = blockIdx.y;
  if (slice >= slices) return;
  const uint8_t* const chunk =
      p.packed + (static_cast<uint64_t>(step) * slices + slice) * Chunk::kSliceBytes;
  Fp8Chunk16& mine = chunks[warp];
#pragma unroll
  for (uint32_t quarter = 0; quarter < 4; quarter++) {
    const uint4 v = *reinterpret_cast<const uint4*>(chunk + (quarter * 32 + lane) * 16);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t word = 0; word < 4; word++) {
      const uint32_t column = quarter * 32 + word / 2 * 16 + word % 2 * 8 + 2 * t;
      // Bytes 0 and 2 are of output g, 1 and 3 of g + 8.
      *reinterpret_cast<uint16_t*>(&mine.rows[g][column]) =
          static_cast<uint16_t>(__byte_perm(words[word], 0, 0x4420));
      *reinterpret_cast<uint16_t*>(&mine.rows[g + 8][column]) =
          static_cast<uint16_t>(__byte_perm(words[word], 0, 0x4431));
    }
  }
  __syncwarp();
  const uint32_t column = lane % 8 * 16;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t row = 4 * i + lane / 8;
    const uint32_t output = output_of(slice, row, p.outputs, p.gated);
    if (output >= p.outputs) continue;
    const uint32_t input = step * kChunkInputs + column;
    if (input < p.inputs)
      *reinterpret_cast<uint4*>(p.w + static_cast<uint64_t>(output) * p.inputs + input) =
          *reinterpret_cast<const uint4*>(&mine.rows[row][column]);
    if (step == 0 && column == 0) p.scales[output] = p.factors[slice * 16 + row];
  }
}

}  // namespace ebb

// Grid: rows.
EBB_KERNEL(fp8_rows, ebb::Fp8RowsParams, ebb::kFp8Threads, 4) {
  __shared__ float shared[ebb::kFp8Warps];
  ebb::quantise_row(p, shared);
}
// Grid: slices / 8, units of inputs.
EBB_KERNEL(fp8_weights, ebb::Fp8WeightsParams, ebb::kFp8Threads, 2) {
  __shared__ ebb::Fp8Chunk16 chunks[ebb::kFp8Warps];
  ebb::unchunk(p, chunks);
}
