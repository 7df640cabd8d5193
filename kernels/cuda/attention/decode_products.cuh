// Products with codes (decode_mixed.cuh), in bytes (bytes.cuh): a code is a byte as it is; the
// other operand, queries times ranges or probabilities times ranges, is a 16-bit integer, two bytes
// in two columns of B. So four heads fill the eight columns, a set, and integers are exact: a code
// costs half the instructions that it does as an fp16.
#pragma once
#include "bytes.cuh"
#include "decode_units.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct CodeProducts : MixedUnits<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = MixedUnits<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::fence_writes, Base::load_column, Base::most_of_head, Base::own_of, Base::power_in,
      Base::query_of, Base::release, Base::scale_of, Base::sort_boosted, Base::wait,
      Base::wait_for_second, Base::word;
  using Base::fragment_lane, Base::lane, Base::o;
  using Base::kFragmentLanes, Base::kSteps, Base::kTiles, Base::kVectors;
  using typename Base::Power, typename Base::Scores, typename Base::Sums;

  __device__ __forceinline__ explicit CodeProducts(const MixedDecodeParams& params)
      : Base(params) {}

  // Two integers of 16 bits, elements g and g + 8 of a head of this lane's, as B operand: high
  // bytes in one column of the head, low ones in the next.
  __device__ __forceinline__ static uint32_t column_pair(uint32_t upper, uint32_t lower,
                                                         uint32_t flip) {
    return movmatrix_trans(__byte_perm(upper, lower, 0x4051) ^ flip);
  }

  // What products with high and low bytes (`column_pair`) come to, in a half of the rows.
  __device__ __forceinline__ static float joined(const int (&acc)[4], int half) {
    return static_cast<float>(acc[2 * half] * 256 + acc[2 * half + 1]);
  }

  // Products of a row tile of a plane, of `Columns` column tiles, with each set's B operands, a
  // word a column tile. `third`: the plane of third bits, if there are.
  template <int Bits, int Columns, class Multiply>
  __device__ __forceinline__ void multiply_row(const uint4* plane, const uint4* third, int row,
                                               const uint32_t (&b)[SETS][Columns],
                                               int (&acc)[SETS][4], Multiply multiply) const {
    constexpr int kPairs = CodeBytes<Bits>::kPairs;
#pragma unroll
    for (int step = 0; step < Columns / 2; step++) {
      const int pair = row * (Columns / 2) + step;
      const uint4 v = plane[pair / kPairs * 32 + lane];
      uint32_t a[4];
      CodeBytes<Bits>::unpack(v, pair % kPairs, a);
      if (CodeBytes<Bits>::kSplit)
        CodeBytes<Bits>::add_third(third[pair / 8 * 32 + lane], pair % 8, a);
#pragma unroll
      for (int set = 0; set < SETS; set++)
        multiply(acc[set], a, b[set][2 * step], b[set][2 * step + 1]);
    }
  }

  template <int Bits>
  __device__ __forceinline__ const uint4* third_plane() const {
    return CodeBytes<Bits>::kSplit ? reinterpret_cast<const uint4*>(wait_for_second()) : nullptr;
  }

  // The compiler would have more rows of codes loaded ahead than two sets leave registers for: a
  // warp-wide barrier holds loads behind it.
  __device__ __forceinline__ static void hold_loads(int row) {
    if (SETS == 2 && row % 2 == 0) __syncwarp();
  }

  // ---- keys ----

  // What formats share is compiled once where that costs little, and the chunks of a record are a
  // loop: warps that are in different formats share one instruction cache. Results of all row tiles
  // are in registers, so they move on from chunk to chunk.

  // Queries times a block's ranges, as B operands, and what a score is of the products.
  struct Ranged {
    uint32_t b[SETS][kSteps];
    uint32_t slab[SETS][2];
    float factor[SETS], begin[SETS];  // base 2: score = factor * product / greatest code + begin
  };

  static constexpr uint32_t kSigned = 0x80800000;
  // 1.5 * 2^23: in the low bits of a sum lies an integer; its low byte is to be signed
  static constexpr float kMagic = 12582912.f + 128.f;

  // `slabs`: of boosted channels, an eighth of all each.
  __device__ __forceinline__ void range_queries(uint8_t* record, uint32_t slot, uint32_t slabs,
                                                Ranged& r) const {
    const uint32_t g = lane / 4, t = lane % 4;
    float sums[4] = {};  // queries times zeros
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      uint32_t z[4];  // the same in all rows
      ldmatrix_x4(z, smem_address(record) + 32 * i + lane / 16 * 16);
      const uint2 q = query_of(slot)[i * kFragmentLanes + fragment_lane()];
      mma_f16(sums, z, q.x, q.y);
    }
    // Where a lane of head t has them.
    if (slabs > 0)
      sort_boosted(record, slabs, [](uint32_t c) {
        return c / 64 * 512 + c % 8 * 64 + c / 16 % 4 * 4 + c / 8 % 2 * 2;
      });
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      uint32_t x[kSteps], most = 0;
#pragma unroll
      for (uint32_t i = 0; i < kVectors; i++) {
        const uint4 own = reinterpret_cast<const uint4*>(own_of(slot, set))[i * 32 + lane];
        uint32_t a[4];
        load_column(a, record + 2 * D + 128 * i);
        x[4 * i] = mul_f16x2(own.x, a[0]), x[4 * i + 1] = mul_f16x2(own.y, a[1]);
        x[4 * i + 2] = mul_f16x2(own.z, a[2]), x[4 * i + 3] = mul_f16x2(own.w, a[3]);
#pragma unroll
        for (int k = 0; k < 4; k++) most = max_abs_f16x2(most, x[4 * i + k]);
      }
      most = max_abs_f16x2(most, __byte_perm(most, 0, 0x1032));
#pragma unroll
      for (int k = 4; k < 32; k <<= 1) most = max_abs_f16x2(most, __shfl_xor_sync(~0u, most, k));
      const Power power = power_in(unpack_f16(most).x);
      const float to = power.inverse * 8192.f;
      auto integer = [&](float v) { return __float_as_uint(fmaf(v, to, kMagic)); };
#pragma unroll
      for (int i = 0; i < kSteps; i++) {
        const float2 v = unpack_f16(x[i]);
        r.b[set][i] = column_pair(integer(v.x), integer(v.y), kSigned);
      }
      if (slabs > 0) {
        const uint8_t* const own = own_of(slot, set) + t * 16;
#pragma unroll
        for (uint32_t n = 0; n < 2; n++) {
          r.slab[set][n] = 0;
          if (n >= slabs) continue;
          // Of D / 8 ranks; at head_dim 64 there are only the first eight.
          const uint32_t first = word(record, n * (D / 8) + g),
                         second = D == 128 ? word(record, n * (D / 8) + 8 + g) : 0u;
          const uint32_t q0 = *reinterpret_cast<const uint16_t*>(own + (first & 0xffff)),
                         q1 = *reinterpret_cast<const uint16_t*>(own + (second & 0xffff));
          const float2 v = unpack_f16(mul_f16x2(q0 | q1 << 16, __byte_perm(first, second, 0x7632)));
          r.slab[set][n] = column_pair(integer(v.x), integer(v.y), kSigned);
        }
      }
      const float scale = scale_of(slot, set);
      r.factor[set] = scale * power.value * (1.f / 8192.f);
      r.begin[set] = scale * sums[set];
    }
    if (slabs > 0) {
      fence_writes();
      __syncwarp();
    }
  }

  // The A operand of the boosted channels' high bits, four times what they are in the slabs, of row
  // tile `row` of a block. Where there is one slab, what lies in the place of another meets zeros.
  __device__ __forceinline__ void slab_operand(const uint8_t* slabs, int row,
                                               uint32_t (&a)[4]) const {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      if (D == 128) {
        const uint32_t w = word(slabs + n * 4 * D, 4 * lane + row / 2),
                       x = row % 2 == 0 ? w << 2 : w >> 2;
        a[2 * n] = x & 0x0c0c0c0c, a[2 * n + 1] = x & 0x30303030;
      } else {
        // Eight columns: in the place of column halves are two row tiles.
        const uint32_t w = word(slabs + n * 4 * D, 2 * lane + row / 4),
                       x = (row / 2 % 2 == 0 ? w << 2 : w >> 2) >> (row % 2 * 8);
        a[2 * n] = x & 0x000c000c, a[2 * n + 1] = x & 0x00300030;
      }
    }
  }

  __device__ __forceinline__ static void clear(Scores& x) {
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int i = 0; i < kTiles; i++) x[set][i][0] = x[set][i][1] = 0.f;
    }
  }

  // Products with 128 keys; those of lower row halves are `kLower` times too large.
  template <int Bits, bool Boosted>
  __device__ __forceinline__ void multiply_keys(uint8_t* record, const Ranged& r, Scores& x) {
    constexpr int kChunks = Base::template chunks_at<Bits>();
    constexpr int kRows = kTiles / kChunks;  // row tiles of a chunk
    // of what moves on before there is anything; a condition there costs registers that are short
    if (kChunks > 1) clear(x);
#pragma unroll 1
    for (int k = 0; k < kChunks; k++) {
      if (k > 0) record = wait();
      const uint4* const plane = reinterpret_cast<const uint4*>(record + (k == 0 ? 4 * D : 0));
      const uint4* const third = third_plane<Bits>();
      // What there is moves on: the last are this chunk's.
#pragma unroll
      for (int set = 0; set < SETS; set++) {
#pragma unroll
        for (int i = 0; i < kTiles - kRows; i++)
          x[set][i][0] = x[set][i + kRows][0], x[set][i][1] = x[set][i + kRows][1];
      }
#pragma unroll
      for (int row = 0; row < kRows; row++) {
        hold_loads(row);
        int acc[SETS][4] = {};
        multiply_row<Bits, kSteps>(plane, third, row, r.b, acc,
                                   [](int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) { mma_u8s8(c, a, b0, b1); });
        if (Boosted) {
          uint32_t a[4];
          slab_operand(record + 37 * D, row, a);
#pragma unroll
          for (int set = 0; set < SETS; set++)
            mma_u8s8(acc[set], a, r.slab[set][0], r.slab[set][1]);
        }
#pragma unroll
        for (int set = 0; set < SETS; set++) {
          float (&to)[2] = x[set][kTiles - kRows + row];
          to[0] = joined(acc[set], 0);
          to[1] = joined(acc[set], 1);
        }
      }
      release();
      if (CodeBytes<Bits>::kSplit) release();
    }
  }

  template <int Bits, bool Boosted>
  __device__ __forceinline__ void attend_codes(uint32_t slot, uint32_t slabs, Scores& x,
                                               float (&factor)[SETS], float& lower,
                                               float (&begin)[SETS]) {
    Ranged r;
    uint8_t* const record = wait();
    range_queries(record, slot, slabs, r);
    multiply_keys<Bits, Boosted>(record, r, x);
#pragma unroll
    for (int set = 0; set < SETS; set++)
      factor[set] = r.factor[set] * (1.f / CodeBytes<Bits>::kLevels), begin[set] = r.begin[set];
    lower = 1.f / CodeBytes<Bits>::kLower;
  }

  // ---- values ----

  // Probabilities times a block's ranges, as B operands.
  struct Weights {
    uint32_t b[SETS][kTiles];
    float back[SETS];  // a value = product * back / greatest code
  };

  __device__ __forceinline__ void range_weights(const uint8_t* record, Scores& x, Weights& w) {
    float most[SETS] = {};
    Sums sum = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t zero[4], range[4];
      load_column(zero, record + 128 * h);
      load_column(range, record + 256 + 128 * h);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 z = unpack_f16(zero[i]), s = unpack_f16(range[i]);
#pragma unroll
        for (int set = 0; set < SETS; set++) {
          float (&y)[2] = x[set][4 * h + i];
          sum.l[set] += y[0] + y[1];
          sum.zeros[set] = fmaf(y[0], z.x, fmaf(y[1], z.y, sum.zeros[set]));
          y[0] *= s.x;
          y[1] *= s.y;
          most[set] = fmaxf(most[set], fmaxf(y[0], y[1]));
        }
      }
    }
    this->add_sums(sum);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      // So that the most is below 2^16 - 1.
      const uint32_t exponent = max(__float_as_uint(most_of_head(most[set])) >> 23, 40u);
      constexpr float kRoom = 32768.f * (1.f - 1.f / 4096.f);
      const float to = __uint_as_float((254 - exponent) << 23) * kRoom;
      w.back[set] = __uint_as_float(exponent << 23) * (1.f / kRoom);
#pragma unroll
      for (int i = 0; i < kTiles; i++)
        w.b[set][i] = column_pair(__float_as_uint(fmaf(x[set][i][0], to, 8388608.f)),
                                  __float_as_uint(fmaf(x[set][i][1], to, 8388608.f)), 0);
    }
  }

  // Adds a block's values times probabilities.
  template <int Bits>
  __device__ __forceinline__ void multiply_values(const uint8_t* record, const Weights& w) {
    constexpr int kChunks = Base::template chunks_at<Bits>();
    // Of two sets there would not be registers for all eight row tiles of a chunk at once.
    constexpr int kParts = SETS == 2 && kSteps / kChunks == 8 ? 2 : 1;  // of a chunk
    constexpr int kRows = kSteps / kChunks / kParts;                    // row tiles of a part
    constexpr int kPlane = kRows * kTiles / 2 / CodeBytes<Bits>::kPairs * 32;  // vectors of it
    constexpr float kUpper = 1.f / CodeBytes<Bits>::kLevels,
                    kLower = kUpper / CodeBytes<Bits>::kLower;
#pragma unroll 1
    for (int k = 0; k < kChunks; k++) {
      if (k > 0) record = wait();
      const uint4* plane = reinterpret_cast<const uint4*>(record + (k == 0 ? 512 : 0));
      const uint4* third = third_plane<Bits>();
#pragma unroll 1
      for (int part = 0; part < kParts; part++) {
        float sum[kRows][2 * SETS];
#pragma unroll
        for (int row = 0; row < kRows; row++) {
          hold_loads(row);
          int acc[SETS][4] = {};
          multiply_row<Bits, kTiles>(plane, third, row, w.b, acc,
                                     [](int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) { mma_u8u8(c, a, b0, b1); });
#pragma unroll
          for (int set = 0; set < SETS; set++) {
            sum[row][set] = fmaf(joined(acc[set], 0), w.back[set] * kUpper, o[row][set]);
            sum[row][SETS + set] =
                fmaf(joined(acc[set], 1), w.back[set] * kLower, o[row][SETS + set]);
          }
        }
        // What there is moves on: the first are the next part's, and after the last one all are
        // where they were.
#pragma unroll
        for (int d = 0; d < kSteps; d++) {
#pragma unroll
          for (int i = 0; i < 2 * SETS; i++)
            o[d][i] =
                d + kRows < kSteps ? o[(d + kRows) % kSteps][i] : sum[(d + kRows) % kSteps][i];
        }
        plane += kPlane;
        if (CodeBytes<Bits>::kSplit) third += kPlane / 2;
      }
      release();
      if (CodeBytes<Bits>::kSplit) release();
    }
  }
};

}  // namespace ebb
