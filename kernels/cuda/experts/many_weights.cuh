// What the kernel for many rows an expert (many.cuh) has in a stage of its ring: of each format,
// how weights are copied there and become operand A, and how x becomes operand B.
#pragma once
#include "product.cuh"

namespace ebb {

constexpr uint32_t kManyThreads = 256;
constexpr uint32_t kManyOutputs = 256;  // of a unit, gates and what they open
constexpr uint32_t kManySlices = kManyOutputs / 16;
constexpr uint32_t kManyInputs = 64;  // of a stage
constexpr uint32_t kManyRowBytes = kManyInputs * sizeof(bf16);
// A stage has weights, then rows of x.

// Where 16 bytes of a row of 128 lie: a piece of eight rows in a row (ldmatrix) as well as four
// pieces of two rows (loads of 16 bytes, eight lanes at a time) lie in all banks.
__device__ __forceinline__ uint32_t many_at(uint32_t row, uint32_t piece) {
  return row * kManyRowBytes + (piece ^ ((row & 1) << 2 | (row >> 1 & 3))) * 16;
}

// 0, which the compiler does not know.
__device__ __forceinline__ uint32_t hidden_zero(const ExpertsParams& p) { return p.inputs >> 31; }

// Waits for this thread's copies of the next stage, of a ring of so many (2 to 4).
__device__ __forceinline__ void wait_for_stage(uint32_t stages) {
  if (stages == 2)
    cp_async_wait<0>();
  else if (stages == 3)
    cp_async_wait<1>();
  else
    cp_async_wait<2>();
}

// Of 64 inputs of rows: a lane has eight of its row in turn, two instructions' worth.
__device__ __forceinline__ uint4 piece_in_turn(const uint8_t* matrix, uint32_t row,
                                               uint32_t block) {
  const uint32_t lane = threadIdx.x % 32;
  return *reinterpret_cast<const uint4*>(matrix + many_at(row + lane / 4, block * 4 + lane % 4));
}

struct ManyPlain : PlainExperts {
  static constexpr uint32_t kBytes = kManyOutputs * kManyRowBytes;

  // The rows that a thread copies: every 32nd output of a slab, from the thread's first on.
  struct Source {
    static constexpr uint32_t kEach = kManyThreads / 8, kCopies = kManyOutputs / kEach;

    uint64_t first;  // of all experts' outputs
    uint32_t left;   // how many there are from it on
    uint32_t apart;  // outputs from one copy to the next

    __device__ __forceinline__ void begin(const ExpertsParams& p, uint32_t expert, uint32_t slab) {
      const uint32_t row = threadIdx.x / 8, each = p.gated ? p.outputs / 2 : p.outputs;
      const uint32_t output =
          p.gated ? slab * (kManyOutputs / 2) + row / 16 * 8 + row % 8 : slab * kManyOutputs + row;
      apart = p.gated ? kEach / 2 : kEach;
      left = output < each ? each - output : 0;
      const uint32_t experts = p.gated && row % 16 >= 8 ? p.experts : 0;  // gates before the opened
      first = static_cast<uint64_t>(experts + expert) * each + output;
    }
    __device__ __forceinline__ void copy(const ExpertsParams& p, uint32_t step,
                                         uint32_t stage) const {
      const uint32_t piece = threadIdx.x % 8, input = step * kManyInputs + piece * 8;
      const uint32_t to = stage + many_at(threadIdx.x / 8, piece);
      const bf16* const weights = reinterpret_cast<const bf16*>(p.weights);
#pragma unroll
      for (uint32_t i = 0; i < kCopies; i++) {
        const bool has = i * apart < left && input < p.inputs;
        const uint64_t at = has ? (first + i * apart) * p.inputs + input : 0;
        cp_async16_zfill(to + i * kEach * kManyRowBytes, weights + at, has ? 16 : 0);
      }
    }
  };

  static __device__ __forceinline__ void fragments(const ExpertsParams& p, const uint8_t* stage,
                                                   uint32_t slice, uint32_t block,
                                                   QuarterChunk& a) {
    const uint4 low = piece_in_turn(stage, slice * 16, block),
                high = piece_in_turn(stage, slice * 16 + 8, block);
    // The compiler would keep what was loaded and move it into place for every instruction anew
    // (505 moves for 128 products).
    const uint32_t zero = hidden_zero(p);
    a[0][0] = low.x ^ zero, a[0][1] = high.x ^ zero, a[0][2] = low.y ^ zero,
    a[0][3] = high.y ^ zero;
    a[1][0] = low.z ^ zero, a[1][1] = high.z ^ zero, a[1][2] = low.w ^ zero,
    a[1][3] = high.w ^ zero;
  }
};

// A stage has half of each of 16 chunks: two quarters' codes and their scales.
template <class CHUNK>
struct ManyPacked : PackedExperts<CHUNK> {
  static constexpr uint32_t kCodes = CHUNK::kCodeBytes / 2,
                            kAllScales = CHUNK::kSliceBytes - CHUNK::kCodeBytes,
                            // A scale for all of a chunk is in both halves.
      kScales = CHUNK::kGroups == 1 ? kAllScales : kAllScales / 2, kHalf = kCodes + kScales;
  static constexpr uint32_t kBytes = kManySlices * kHalf;
  static_assert(kHalf % 16 == 0);

  struct Source {
    const uint8_t* first;  // slice of the first chunks
    uint32_t left;         // slices that there are from it on

    __device__ __forceinline__ void begin(const ExpertsParams& p, uint32_t expert, uint32_t slab) {
      first =
          p.weights + expert * p.packed_each + slab * (kManySlices * uint64_t{CHUNK::kSliceBytes});
      left = (p.outputs + 15) / 16 - slab * kManySlices;
    }
    __device__ __forceinline__ void copy(const ExpertsParams& p, uint32_t step,
                                         uint32_t stage) const {
      constexpr uint32_t kPieces = kHalf / 16, kAll = kManySlices * kPieces;
      const uint64_t chunks = static_cast<uint64_t>((p.outputs + 15) / 16) * CHUNK::kSliceBytes;
      const uint8_t* const from = first + step / 2 * chunks;
      const uint32_t codes = step % 2 * kCodes,
                     scales = CHUNK::kCodeBytes + (CHUNK::kGroups == 1 ? 0 : step % 2 * kScales);
#pragma unroll
      for (uint32_t i = 0; i < kAll; i += kManyThreads) {
        const uint32_t at = i + threadIdx.x, slice = at / kPieces, byte = at % kPieces * 16;
        if (i + kManyThreads > kAll && at >= kAll) break;
        const uint32_t in_chunk = byte < kCodes ? codes + byte : scales + (byte - kCodes);
        const bool has = slice < left;
        cp_async16_zfill(stage + at * 16, from + (has ? slice * CHUNK::kSliceBytes + in_chunk : 0),
                         has ? 16 : 0);
      }
    }
  };

  static __device__ __forceinline__ void fragments(const ExpertsParams& p, const uint8_t* stage,
                                                   uint32_t slice, uint32_t block,
                                                   QuarterChunk& a) {
    const uint8_t *const codes = stage + slice * kHalf, *const scales = codes + kCodes;
    const uint32_t lane = threadIdx.x % 32;
    typename CHUNK::Scales of_block;
    // A half's only scales are loaded for each block: to keep them there are too few registers.
    if constexpr (CHUNK::kGroups <= 2)
      CHUNK::dequantise(codes + block * (kCodes / 2), scales + block * hidden_zero(p), 0, lane,
                        of_block, a);
    else
      CHUNK::dequantise(codes, scales, block, lane, of_block, a);
  }
};

}  // namespace ebb
