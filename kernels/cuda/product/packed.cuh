// Packed weights as products read them.
//
// A chunk is a slice of 16 outputs by 128 inputs: codes, then the scales of its groups. Chunks lie
// [inputs / 128][outputs / 16]. Codes lie [4 quarters][32 lanes], and a lane (g, t) of the warp
// that has a slice reads its own in the order in which a matrix instruction's operand A (m16k16)
// has them: registers 0 and 2 are of output g, 1 and 3 of output g + 8; register r has the inputs
// 2 t and 2 t + 1 of k = 16, 8 further on for r >= 2.
//
// Codes become bf16 without conversions: bits of a code, moved to the right place of a bf16, are
// its value times a power of two, below the normal numbers too. A multiplication by the scale times
// the inverse of that power does the rest. What a scale has too much for bf16 is in the outputs'
// factors, by which sums are multiplied (f32).
//
// Chunks of experts have other inputs in these places (InTurn): lane t has the inputs 8 t to
// 8 t + 7 of a quarter, two registers' worth of each instruction in turn, so that it reads its
// inputs of a row at once, not in four parts.
//
// kGroups is how many scales an output has in a chunk: 0, 1, 2, 4 or 8; 0: the factor is all.
//
// E4M3 whose outputs have one scale each lie in rows instead (Fp8Rows), which the library
// multiplies as they are; those of experts in chunks.
#pragma once
#include "../common/ptx.cuh"

namespace ebb {

constexpr int kChunkInputs = 128, kChunkOutputs = 16;
// The registers of operand A for a quarter of a chunk, 32 inputs.
using QuarterChunk = uint32_t[2][4];

// The output of a slice's row, of so many: where gated, a slice has eight gates and the eight
// outputs that they open, which are of the second half.
__device__ __forceinline__ uint32_t output_of(uint32_t slice, uint32_t row, uint32_t outputs,
                                              bool gated) {
  return gated ? slice * 8 + row % 8 + row / 8 * (outputs / 2) : slice * kChunkOutputs + row;
}

__device__ __forceinline__ uint32_t rotate_left(uint32_t v, uint32_t bits) {
  return __funnelshift_l(v, v, bits);
}
// Both halves of a register: the low or the high half of `pair`.
__device__ __forceinline__ uint32_t low_twice(uint32_t pair) {
  return __byte_perm(pair, 0, 0x1010);
}
__device__ __forceinline__ uint32_t high_twice(uint32_t pair) {
  return __byte_perm(pair, 0, 0x3232);
}

// Scales and offsets, bf16 pairs: [groups][8][2 outputs g, g + 8].
struct ScaleAndOffset {
  static constexpr int kBytes = 4;
  uint32_t scale[2], offset[2];

  __device__ __forceinline__ void load(const uint8_t* scales, uint32_t group, uint32_t g) {
    const uint2 v = *reinterpret_cast<const uint2*>(scales + (group * 8 + g) * 8);
    scale[0] = low_twice(v.x), offset[0] = high_twice(v.x);
    scale[1] = low_twice(v.y), offset[1] = high_twice(v.y);
  }
};

// Scales alone, bf16: [groups][8][2].
struct Scale {
  static constexpr int kBytes = 2;
  uint32_t scale[2];

  __device__ __forceinline__ void load(const uint8_t* scales, uint32_t group, uint32_t g) {
    const uint32_t v = *reinterpret_cast<const uint32_t*>(scales + (group * 8 + g) * 4);
    scale[0] = low_twice(v), scale[1] = high_twice(v);
  }
};

constexpr uint32_t kNoOffset = 0x80008000;  // -0 + x is x for every x

// What formats share: CODES says how many bits codes have and turns them into bf16.
template <class CODES, class SCALES, int GROUPS, bool IN_TURN = false>
struct PackedChunk {
  using InTurn = PackedChunk<CODES, SCALES, GROUPS, true>;
  static constexpr bool kInRows = false;
  static constexpr int kInputs = kChunkInputs, kGroups = GROUPS;
  static constexpr int kCodeBytes = kChunkOutputs * kChunkInputs * CODES::kBits / 8;
  static constexpr int kSliceBytes = kCodeBytes + GROUPS * kChunkOutputs * SCALES::kBytes;
  static_assert(kSliceBytes % 16 == 0);
  // A lane's codes of a quarter.
  static constexpr int kLaneBytes = CODES::kBits * 2;

  // What a lane keeps from quarter to quarter.
  struct Scales {
    SCALES of_group;
    __device__ __forceinline__ Scales() {
      if constexpr (GROUPS == 0) CODES::set_unit(of_group);
    }
  };

  // The weights of a quarter, without the outputs' factors. Quarters are asked for in turn, in
  // unrolled code.
  static __device__ __forceinline__ void dequantise(const uint8_t* chunk, int quarter,
                                                    uint32_t lane, Scales& scales,
                                                    QuarterChunk& a) {
    dequantise(chunk, chunk + kCodeBytes, quarter, lane, scales, a);
  }
  // The same of codes and scales that lie apart, and may begin with the middle of a chunk.
  static __device__ __forceinline__ void dequantise(const uint8_t* all_codes,
                                                    const uint8_t* all_scales, int quarter,
                                                    uint32_t lane, Scales& scales,
                                                    QuarterChunk& a) {
    const uint8_t* const codes = all_codes + (quarter * 32 + lane) * kLaneBytes;
    uint32_t words[CODES::kBits / 2];
    if constexpr (CODES::kBits == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(codes);
      words[0] = v.x, words[1] = v.y;
    } else {
      const uint4 v = *reinterpret_cast<const uint4*>(codes);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
    if constexpr (CODES::kByQuarter) CODES::spread(words, a);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if constexpr (GROUPS > 0) {
        constexpr int kEach = 8 / GROUPS;  // times 16 inputs
        const int at = quarter * 2 + k;
        if constexpr (IN_TURN && kEach == 1) {
          // A lane's eight inputs are of one group.
          if (k == 0) scales.of_group.load(all_scales, at + lane % 4 / 2, lane / 4);
        } else {
          if (at % kEach == 0) scales.of_group.load(all_scales, at / kEach, lane / 4);
        }
      }
      if constexpr (CODES::kByQuarter)
        CODES::scale(scales.of_group, a[k]);
      else if constexpr (CODES::kBits == 4)
        CODES::dequantise(words[k], scales.of_group, a[k]);
      else
        CODES::dequantise(words[2 * k], words[2 * k + 1], scales.of_group, a[k]);
    }
  }
};

// A slice of chunks in memory.
template <class CHUNK>
struct StoredSlice {
  const uint8_t* chunk;
  uint64_t step_bytes;

  // Of `packed`, `inputs`, `outputs` and whether it is `gated`.
  template <class PARAMS>
  __device__ __forceinline__ StoredSlice(const PARAMS& p, uint32_t slice, uint32_t)
      : chunk(p.packed + static_cast<uint64_t>(slice) * CHUNK::kSliceBytes),
        step_bytes(static_cast<uint64_t>((p.outputs + kChunkOutputs - 1) / kChunkOutputs) *
                   CHUNK::kSliceBytes) {}
  __device__ __forceinline__ void dequantise(uint32_t step, int quarter, uint32_t lane,
                                             typename CHUNK::Scales& scales,
                                             QuarterChunk& a) const {
    CHUNK::dequantise(chunk + step * step_bytes, quarter, lane, scales, a);
  }
  // The place of a row's factor.
  static __device__ __forceinline__ uint32_t factor(uint32_t slice, uint32_t row, uint32_t, bool) {
    return slice * kChunkOutputs + row;
  }
};

// Integers of four bits, times 2^-130: a word has the nibbles i and i + 4 for register i, rotated
// left by 3.
struct Int4Codes {
  static constexpr int kBits = 4;
  static constexpr bool kByQuarter = false;
  static __device__ __forceinline__ void dequantise(uint32_t word, const ScaleAndOffset& s,
                                                    uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      a[i] = fma_bf16x2(rotate_left(word, (32 - 4 * i) % 32) & 0x00780078, s.scale[i % 2],
                        s.offset[i % 2]);
  }
};

// E2M1, times 2^-126: bits 6 to 8 and the sign of each half of a register. Four such patterns, each
// rotated its own way, do not tile the bits of a word, so two words share their fourth registers:
// a word has register 0 as it is, 1 rotated right by 4, 2 by 10. What is left of both words'
// bits, of the second one's two further left, are the fourth registers, rotated right by 6 and 12.
// That is half of the instructions that nibbles one beside the other take.
struct Fp4Codes {
  static constexpr int kBits = 4;
  static constexpr bool kByQuarter = true;  // words of a quarter are read together
  static constexpr uint32_t kPattern = 0x81c081c0, kLeftOfFirst = 0x06030603;

  // The codes of a quarter, without scales.
  static __device__ __forceinline__ void spread(const uint32_t (&words)[2], QuarterChunk& a) {
    const uint32_t left = merge_bits<kLeftOfFirst>(words[0], rotate_left(words[1], 2));
#pragma unroll
    for (int k = 0; k < 2; k++) {
      a[k][0] = words[k] & kPattern;
      a[k][1] = rotate_left(words[k], 4) & kPattern;
      a[k][2] = rotate_left(words[k], 10) & kPattern;
      a[k][3] = rotate_left(left, k == 0 ? 6 : 12) & kPattern;
    }
  }
  static __device__ __forceinline__ void scale(const Scale& s, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = fma_bf16x2(a[i], s.scale[i % 2], kNoOffset);
  }
};

// Integers of eight bits, times 2^-133: bytes 0 and 2 of the first word are of register 0, bytes 1
// and 3 of register 1; the second word has registers 2 and 3.
struct Int8Codes {
  static constexpr int kBits = 8;
  static constexpr bool kByQuarter = false;
  static __device__ __forceinline__ void set_unit(ScaleAndOffset& s) {
    // 2^127, and -128 * 2^-6: the factor has the rest.
    s.scale[0] = s.scale[1] = 0x7f007f00;
    s.offset[0] = s.offset[1] = 0xc000c000;
  }
  static __device__ __forceinline__ void dequantise(uint32_t first, uint32_t second,
                                                    const ScaleAndOffset& s, uint32_t (&a)[4]) {
    a[0] = fma_bf16x2(__byte_perm(first, 0, 0x4240), s.scale[0], s.offset[0]);
    a[1] = fma_bf16x2(__byte_perm(first, 0, 0x4341), s.scale[1], s.offset[1]);
    a[2] = fma_bf16x2(__byte_perm(second, 0, 0x4240), s.scale[0], s.offset[0]);
    a[3] = fma_bf16x2(__byte_perm(second, 0, 0x4341), s.scale[1], s.offset[1]);
  }
};

// E4M3, times 2^-120: bits 4 to 10 and the sign of each half of a register. A word has the first of
// two registers as it is; of the second's bits the sign and the lower four are rotated right by 4,
// the others by 12.
struct Fp8Codes {
  static constexpr int kBits = 8;
  static constexpr bool kByQuarter = false;
  static __device__ __forceinline__ void set_unit(Scale& s) {
    s.scale[0] = s.scale[1] = 0x7b807b80;  // 2^120
  }
  static __device__ __forceinline__ uint32_t second_of(uint32_t v) {
    return (rotate_left(v, 4) & 0x80f080f0) | (rotate_left(v, 12) & 0x07000700);
  }
  static __device__ __forceinline__ void dequantise(uint32_t first, uint32_t second, const Scale& s,
                                                    uint32_t (&a)[4]) {
    a[0] = fma_bf16x2(first & 0x87f087f0, s.scale[0], kNoOffset);
    a[1] = fma_bf16x2(second_of(first), s.scale[1], kNoOffset);
    a[2] = fma_bf16x2(second & 0x87f087f0, s.scale[0], kNoOffset);
    a[3] = fma_bf16x2(second_of(second), s.scale[1], kNoOffset);
  }
};

// Rows of E4M3, [outputs][inputs], zeros up to a multiple of 16 inputs. Within sixteens the inputs
// 2 t, 2 t + 8, 2 t + 1, 2 t + 9 lie beside each other (and so do those of rows that the library
// multiplies them by): a word of an output is then its two registers of operand A.
struct Fp8Rows {
  // Experts have chunks in their place.
  using InTurn = PackedChunk<Fp8Codes, Scale, 0, true>;
  static constexpr bool kInRows = true;
  static constexpr int kInputs = kChunkInputs, kSliceBytes = kChunkOutputs * kChunkInputs;

  struct Scales {
    Scale unit;
    __device__ __forceinline__ Scales() { Fp8Codes::set_unit(unit); }
  };
  static __device__ __forceinline__ uint32_t low_bytes(uint32_t v) {
    return (v << 4 & 0x07f007f0) | (v << 8 & 0x80008000);
  }
  static __device__ __forceinline__ uint32_t high_bytes(uint32_t v) {
    return (v >> 4 & 0x07f007f0) | (v & 0x80008000);
  }
  // Of outputs g and g + 8, a word each.
  static __device__ __forceinline__ void dequantise(uint32_t first, uint32_t second,
                                                    const Scales& s, uint32_t (&a)[4]) {
    a[0] = fma_bf16x2(low_bytes(first), s.unit.scale[0], kNoOffset);
    a[1] = fma_bf16x2(low_bytes(second), s.unit.scale[0], kNoOffset);
    a[2] = fma_bf16x2(high_bytes(first), s.unit.scale[0], kNoOffset);
    a[3] = fma_bf16x2(high_bytes(second), s.unit.scale[0], kNoOffset);
  }
  // A quarter of a slice's 16 rows of 128 bytes in shared memory, as the copy engine swizzles them.
  static __device__ __forceinline__ void dequantise(const uint8_t* rows, int quarter, uint32_t lane,
                                                    const Scales& s, QuarterChunk& a) {
    const uint32_t row = lane % 16, piece = quarter * 2 + lane / 16;
    uint32_t words[4];
    ldmatrix_x4(words, smem_address(rows) + row * 128 + (piece ^ row % 8) * 16);
    dequantise(words[0], words[1], s, a[0]);
    dequantise(words[2], words[3], s, a[1]);
  }
};

// A slice of rows in memory.
template <>
struct StoredSlice<Fp8Rows> {
  const uint8_t* rows[2];  // of outputs g and g + 8 of the slice; null beyond the last
  uint32_t width;

  template <class PARAMS>
  __device__ __forceinline__ StoredSlice(const PARAMS& p, uint32_t slice, uint32_t lane)
      : width((p.inputs + 15) / 16 * 16) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t output = output_of(slice, lane / 4 + 8 * i, p.outputs, p.gated);
      rows[i] = output < p.outputs ? p.packed + static_cast<uint64_t>(output) * width : nullptr;
    }
  }
  __device__ __forceinline__ void dequantise(uint32_t step, int quarter, uint32_t lane,
                                             const Fp8Rows::Scales& scales, QuarterChunk& a) const {
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
      const uint32_t at = step * kChunkInputs + quarter * 32 + k * 16 + 4 * (lane % 4);
      uint32_t words[2];
#pragma unroll
      for (uint32_t i = 0; i < 2; i++)
        words[i] = rows[i] && at < width ? *reinterpret_cast<const uint32_t*>(rows[i] + at) : 0u;
      Fp8Rows::dequantise(words[0], words[1], scales, a[k]);
    }
  }
  static __device__ __forceinline__ uint32_t factor(uint32_t slice, uint32_t row, uint32_t outputs,
                                                    bool gated) {
    return output_of(slice, row, outputs, gated);
  }
};

template <int GROUPS>
using Int4Chunk = PackedChunk<Int4Codes, ScaleAndOffset, GROUPS>;
template <int GROUPS>
using Fp4Chunk = PackedChunk<Fp4Codes, Scale, GROUPS>;
template <int GROUPS>
using Int8Chunk = PackedChunk<Int8Codes, ScaleAndOffset, GROUPS>;
template <int GROUPS>
using Fp8Chunk = PackedChunk<Fp8Codes, Scale, GROUPS>;

// Every format, as EACH(name, chunk): the name ends with the scales of an output in a chunk.
#define EBB_PACKED_INT4(EACH) \
  EACH(int4_1, Int4Chunk<1>)  \
  EACH(int4_2, Int4Chunk<2>) EACH(int4_4, Int4Chunk<4>) EACH(int4_8, Int4Chunk<8>)
#define EBB_PACKED_FP4(EACH) EACH(fp4_4, Fp4Chunk<4>) EACH(fp4_8, Fp4Chunk<8>)
#define EBB_PACKED_INT8(EACH) \
  EACH(int8_0, Int8Chunk<0>)  \
  EACH(int8_1, Int8Chunk<1>) EACH(int8_4, Int8Chunk<4>) EACH(int8_8, Int8Chunk<8>)
#define EBB_PACKED_FP8(EACH) EACH(fp8_0, Fp8Rows) EACH(fp8_1, Fp8Chunk<1>)
#define EBB_PACKED_ALL(EACH) \
  EBB_PACKED_INT4(EACH) EBB_PACKED_FP4(EACH) EBB_PACKED_INT8(EACH) EBB_PACKED_FP8(EACH)

}  // namespace ebb
