// Decode attention over pages of any format: every block of a sequence in the format that it has shrunk to (decode_pieces.cuh has units
// and pieces, decode_rings.cuh brings them).
//
// S^T = K Q^T and O^T = V^T P^T on tensor cores. Products with codes are products of bytes (bytes.cuh): a code is a byte as it is; the
// other operand, queries times ranges or probabilities times ranges, is a 16-bit integer, two bytes in two columns of B. So four heads
// fill the eight columns, a set, and integers are exact: a code costs half the instructions that it does as an fp16. Zeros never meet
// codes: with keys they are products of their own, with values a sum per lane.
//
// A lane (g, t) has head t of each set: of keys 16 i + g and + 8, and of channels 16 i + g and + 8 of the result. The parts of a unit
// merge in the order of its slots, and a second kernel merges the units of a sequence in theirs (decode_bulk.cuh). So a result depends
// on the sequence's own length and formats alone.
#pragma once
#include "../common/registers.cuh"
#include "bytes.cuh"
#include "decode_units.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR>
struct MixedDecode : MixedUnits<D, STAGES, SETS, WAY, POLAR> {
  using Base = MixedUnits<D, STAGES, SETS, WAY, POLAR>;
  using Base::kFragmentLanes, Base::kSteps, Base::kTiles, Base::kUnits, Base::kVectors, Base::kWarps;
  using Base::computes, Base::fragment_lane, Base::lane, Base::o, Base::p, Base::team, Base::warp;
  using Base::attend_polar, Base::begin, Base::behind_of, Base::bring_queries, Base::brought, Base::fence_writes, Base::fill, Base::finish, Base::gives, Base::give, Base::most_of_head, Base::own_of, Base::place_of_queries, Base::power_in,
      Base::produce, Base::query16_of, Base::query_of, Base::release, Base::reset, Base::scale_of, Base::shift_of, Base::stage, Base::state, Base::wait, Base::wait_for_second, Base::word;
  using typename Base::Most, typename Base::Place, typename Base::Power, typename Base::Scores, typename Base::Sums;

  static constexpr float kSlack = 8.f;            // powers of two
  static constexpr uint32_t kFifth = 0x32663266;  // fp16

  __device__ __forceinline__ explicit MixedDecode(const MixedDecodeParams& params) : Base(params) {}

  // Of a vector of fp16, elements 16 i + g and 16 i + 8 + g for i from 0 to 3.
  __device__ __forceinline__ void load_column(uint32_t (&a)[4], const uint8_t* vector) const { ldmatrix_x4_trans(a, smem_address(vector) + lane / 8 * 32 + lane % 2 * 16); }

  // Two integers of 16 bits, elements g and g + 8 of a head of this lane's, as B operand: high bytes in one column of the head, low ones
  // in the next.
  __device__ __forceinline__ static uint32_t column_pair(uint32_t upper, uint32_t lower, uint32_t flip) {
    return movmatrix_trans(__byte_perm(upper, lower, 0x4051) ^ flip);
  }

  // What products with high and low bytes (`column_pair`) come to, in a half of the rows.
  __device__ __forceinline__ static float joined(const int (&acc)[4], int half) { return static_cast<float>(acc[2 * half] * 256 + acc[2 * half + 1]); }

  // Products of a row tile of a plane, of `Columns` column tiles, with each set's B operands, a word a column tile. `third`: the plane of
  // third bits, if there are.
  template <int Bits, int Columns, class Multiply>
  __device__ __forceinline__ void multiply_row(const uint4* plane, const uint4* third, int row, const uint32_t (&b)[SETS][Columns], int (&acc)[SETS][4], Multiply multiply) const {
    constexpr int kPairs = CodeBytes<Bits>::kPairs;
#pragma unroll
    for (int step = 0; step < Columns / 2; step++) {
      const int pair = row * (Columns / 2) + step;
      const uint4 v = plane[pair / kPairs * 32 + lane];
      uint32_t a[4];
      CodeBytes<Bits>::unpack(v, pair % kPairs, a);
      if (Bits == 3) CodeBytes<Bits>::add_third(third[pair / 8 * 32 + lane], pair % 8, a);
#pragma unroll
      for (int set = 0; set < SETS; set++) multiply(acc[set], a, b[set][2 * step], b[set][2 * step + 1]);
    }
  }

  template <int Bits>
  __device__ __forceinline__ const uint4* third_plane() const {
    return Bits == 3 ? reinterpret_cast<const uint4*>(wait_for_second()) : nullptr;
  }

  // The compiler would have more rows of codes loaded ahead than two sets leave registers for: a warp-wide barrier holds loads behind it.
  __device__ __forceinline__ static void hold_loads(int row) {
    if (SETS == 2 && row % 2 == 0) __syncwarp();
  }

  // ---- keys ----

  // What formats share is compiled once where that costs little, and the chunks of a record are a loop: warps that are in different formats
  // share one instruction cache. Results of all row tiles are in registers, so they move on from chunk to chunk.

  // Queries times a block's ranges, as B operands, and what a score is of the products.
  struct Ranged {
    uint32_t b[SETS][kSteps];
    uint32_t slab[SETS][2];
    float factor[SETS], begin[SETS];  // base 2: score = factor * product / greatest code + begin
  };

  static constexpr uint32_t kSigned = 0x80800000;
  static constexpr float kMagic = 12582912.f + 128.f;  // 1.5 * 2^23: in the low bits of a sum lies an integer; its low byte is to be signed

  // `slabs`: of boosted channels, an eighth of all each.
  __device__ __forceinline__ void range_queries(uint8_t* record, uint32_t slot, uint32_t slabs, Ranged& r) const {
    const uint32_t g = lane / 4, t = lane % 4;
    float sums[4] = {};  // queries times zeros
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      uint32_t z[4];  // the same in all rows
      ldmatrix_x4(z, smem_address(record) + 32 * i + lane / 16 * 16);
      const uint2 q = query_of(slot)[i * kFragmentLanes + fragment_lane()];
      mma_f16(sums, z, q.x, q.y);
    }
    if (slabs > 0) {
      // A boosted channel's step is range / 15, a fifth of what its range says at 2 bit. Then, by rank: where its query lies,
      // and its range.
      uint16_t* const ranges = reinterpret_cast<uint16_t*>(record + 2 * D);
      uint32_t* const by_rank = reinterpret_cast<uint32_t*>(record);
      const uint8_t* const rank = record + 36 * D;
      __syncwarp();
#pragma unroll
      for (uint32_t c = lane; c < D; c += 32) {
        const uint32_t of = rank[c];
        if (of < slabs * D / 8) {
          const uint32_t range = mul_f16x2(ranges[c], kFifth) & 0xffff;
          ranges[c] = static_cast<uint16_t>(range);
          by_rank[of] = (c / 64 * 512 + c % 8 * 64 + c / 16 % 4 * 4 + c / 8 % 2 * 2) | range << 16;
        }
      }
      __syncwarp();
    }
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
          const uint32_t first = word(record, n * (D / 8) + g), second = D == 128 ? word(record, n * (D / 8) + 8 + g) : 0u;
          const uint32_t q0 = *reinterpret_cast<const uint16_t*>(own + (first & 0xffff)), q1 = *reinterpret_cast<const uint16_t*>(own + (second & 0xffff));
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

  // The A operand of the boosted channels' high bits, four times what they are in the slabs, of row tile `row` of a block. Where there
  // is one slab, what lies in the place of another meets zeros.
  __device__ __forceinline__ void slab_operand(const uint8_t* slabs, int row, uint32_t (&a)[4]) const {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      if (D == 128) {
        const uint32_t w = word(slabs + n * 4 * D, 4 * lane + row / 2), x = row % 2 == 0 ? w << 2 : w >> 2;
        a[2 * n] = x & 0x0c0c0c0c, a[2 * n + 1] = x & 0x30303030;
      } else {
        // Eight columns: in the place of column halves are two row tiles.
        const uint32_t w = word(slabs + n * 4 * D, 2 * lane + row / 4), x = (row / 2 % 2 == 0 ? w << 2 : w >> 2) >> (row % 2 * 8);
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
    if (kChunks > 1) clear(x);  // of what moves on before there is anything; a condition there costs registers that are short
#pragma unroll 1
    for (int k = 0; k < kChunks; k++) {
      if (k > 0) record = wait();
      const uint4* const plane = reinterpret_cast<const uint4*>(record + (k == 0 ? 4 * D : 0));
      const uint4* const third = third_plane<Bits>();
      // What there is moves on: the last are this chunk's.
#pragma unroll
      for (int set = 0; set < SETS; set++) {
#pragma unroll
        for (int i = 0; i < kTiles - kRows; i++) x[set][i][0] = x[set][i + kRows][0], x[set][i][1] = x[set][i + kRows][1];
      }
#pragma unroll
      for (int row = 0; row < kRows; row++) {
        hold_loads(row);
        int acc[SETS][4] = {};
        multiply_row<Bits, kSteps>(plane, third, row, r.b, acc, [](int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_u8s8(c, a, b0, b1); });
        if (Boosted) {
          uint32_t a[4];
          slab_operand(record + 37 * D, row, a);
#pragma unroll
          for (int set = 0; set < SETS; set++) mma_u8s8(acc[set], a, r.slab[set][0], r.slab[set][1]);
        }
#pragma unroll
        for (int set = 0; set < SETS; set++) {
          float (&to)[2] = x[set][kTiles - kRows + row];
          to[0] = joined(acc[set], 0);
          to[1] = joined(acc[set], 1);
        }
      }
      release();
      if (Bits == 3) release();
    }
  }

  // ---- scores ----

  // Turns products into probabilities: a score is product * factor (of upper and of lower row halves) + begin, base 2.
  __device__ __forceinline__ void weigh(Scores& x, const float (&upper)[SETS], float lower, const float (&begin)[SETS]) {
    float top[SETS];
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      float top0 = x[set][0][0], top1 = x[set][0][1];
#pragma unroll
      for (int i = 1; i < kTiles; i++) {
        top0 = fmaxf(top0, x[set][i][0]);
        top1 = fmaxf(top1, x[set][i][1]);
      }
      top[set] = fmaf(fmaxf(top0, top1 * lower), upper[set], begin[set]);
    }
    const Most m = rescale(top);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float from = begin[set] - m.of[set], second = upper[set] * lower;
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        x[set][i][0] = ex2(fmaf(x[set][i][0], upper[set], from));
        x[set][i][1] = ex2(fmaf(x[set][i][1], second, from));
      }
    }
  }

  template <int Bits, bool Boosted>
  __device__ __forceinline__ void attend_codes(uint32_t slot, uint32_t slabs, Scores& x, float (&factor)[SETS], float& lower, float (&begin)[SETS]) {
    Ranged r;
    uint8_t* const record = wait();
    range_queries(record, slot, slabs, r);
    multiply_keys<Bits, Boosted>(record, r, x);
#pragma unroll
    for (int set = 0; set < SETS; set++) factor[set] = r.factor[set] * (1.f / CodeBytes<Bits>::kLevels), begin[set] = r.begin[set];
    lower = 1.f / CodeBytes<Bits>::kLower;
  }

  // Products with a block's keys in `x`, and what scores are of them: of upper row halves factor * product + begin, of lower ones with
  // `lower` times the factor.
  __device__ __forceinline__ void attend_keys(uint32_t slot, uint32_t format, Scores& x, float (&factor)[SETS], float& lower, float (&begin)[SETS]) {
    if (format == kF16) {
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        float s[4];
        this->score_rows(query16_of(slot), s);
#pragma unroll
        for (int set = 0; set < SETS; set++) x[set][i][0] = s[set], x[set][i][1] = s[2 + set];
      }
#pragma unroll
      for (int set = 0; set < SETS; set++) factor[set] = p.scale_log2, begin[set] = 0.f;
      lower = 1.f;
      return;
    }
    if (POLAR && is_polar(format)) {
      attend_polar(slot, format, x, begin);
#pragma unroll
      for (int set = 0; set < SETS; set++) factor[set] = scale_of(slot, set), begin[set] *= factor[set];
      lower = 1.f;
      return;
    }
    // Each with its own copy of what comes before the products, which the compiler weaves into them.
    if (format == kInt8)
      attend_codes<8, false>(slot, 0, x, factor, lower, begin);
    else if (format == kInt4)
      attend_codes<4, false>(slot, 0, x, factor, lower, begin);
    else if (format == kInt3)
      attend_codes<3, false>(slot, 0, x, factor, lower, begin);
    else if (format == kInt2)
      attend_codes<2, false>(slot, 0, x, factor, lower, begin);
    else
      attend_codes<2, true>(slot, format == kKitty25 ? 2 : 1, x, factor, lower, begin);
  }

  // Moves what exponents are relative to, if y of any lane is more, to kSlack above the most, so that it rarely moves; what it is now.
  __device__ __forceinline__ Most rescale(float (&y)[SETS]) {
    Most m = this->most();
    if (!__any_sync(~0u, y[0] > m.of[0] || y[SETS - 1] > m.of[SETS - 1])) return m;
    float e[SETS];
    Sums sum = this->sums();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      y[set] = most_of_head(y[set]);
      y[set] = y[set] > m.of[set] ? y[set] + kSlack : m.of[set];
      e[set] = ex2(m.of[set] - y[set]);
      m.of[set] = y[set];
      sum.l[set] *= e[set];
      sum.zeros[set] *= e[set];
    }
    __syncwarp();  // All have read what is set.
    this->set_most(m);
    this->set_sums(sum);
#pragma unroll
    for (int d = 0; d < kSteps; d++)
      for (int i = 0; i < 2 * SETS; i++) o[d][i] *= e[i % SETS];
    return m;
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
      for (int i = 0; i < kTiles; i++) w.b[set][i] = column_pair(__float_as_uint(fmaf(x[set][i][0], to, 8388608.f)), __float_as_uint(fmaf(x[set][i][1], to, 8388608.f)), 0);
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
    constexpr float kUpper = 1.f / CodeBytes<Bits>::kLevels, kLower = kUpper / CodeBytes<Bits>::kLower;
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
          multiply_row<Bits, kTiles>(plane, third, row, w.b, acc, [](int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_u8u8(c, a, b0, b1); });
#pragma unroll
          for (int set = 0; set < SETS; set++) {
            sum[row][set] = fmaf(joined(acc[set], 0), w.back[set] * kUpper, o[row][set]);
            sum[row][SETS + set] = fmaf(joined(acc[set], 1), w.back[set] * kLower, o[row][SETS + set]);
          }
        }
        // What there is moves on: the first are the next part's, and after the last one all are where they were.
#pragma unroll
        for (int d = 0; d < kSteps; d++) {
#pragma unroll
          for (int i = 0; i < 2 * SETS; i++) o[d][i] = d + kRows < kSteps ? o[(d + kRows) % kSteps][i] : sum[(d + kRows) % kSteps][i];
        }
        plane += kPlane;
        if (Bits == 3) third += kPlane / 2;
      }
      release();
      if (Bits == 3) release();
    }
  }

  // The probabilities of 16 keys as B operand, and their sums as they are rounded.
  __device__ __forceinline__ static void add_rounded(const float (&y)[SETS][2], uint32_t (&b)[2], Sums& sum) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint32_t both = pack_bf16(y[0][r], y[SETS - 1][r]);
      const float2 rounded = unpack_bf16(both);
      sum.l[0] += rounded.x;
      if (SETS == 2) sum.l[SETS - 1] += rounded.y;
      b[r] = movmatrix_trans(both);
    }
  }

  // ---- a block ----

  // `to_end`: tokens from the tile's first to the sequence's end, of which each row but the last sees fewer.
  __device__ __forceinline__ void attend_tile(uint32_t slot, uint32_t to_end) {
    const int g = lane / 4;
    float s[4], y[SETS][2], top[SETS];
    this->score_rows(query16_of(slot), s);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const int seen = static_cast<int>(to_end) - behind_of(slot)[4 * set + lane % 4];
      y[set][0] = g < seen ? s[set] * p.scale_log2 : -INFINITY;
      y[set][1] = g + 8 < seen ? s[2 + set] * p.scale_log2 : -INFINITY;
      top[set] = fmaxf(y[set][0], y[set][1]);
    }
    const Most m = rescale(top);
#pragma unroll
    for (int set = 0; set < SETS; set++)
      for (int r = 0; r < 2; r++) y[set][r] = ex2(y[set][r] - m.of[set]);
    uint32_t b[2];
    Sums sum = {};
    add_rounded(y, b, sum);
    this->add_sums(sum);
    this->add_rows(b[0], b[1], min(to_end, 16u), o);
  }

  __device__ __forceinline__ void attend_block(uint32_t slot, uint32_t key_format) {
    Scores x;
    float factor[SETS], lower, begin[SETS];
    attend_keys(slot, key_format, x, factor, lower, begin);
    weigh(x, factor, lower, begin);
    const uint8_t* const record = wait();
    const uint32_t format = state().info[stage()] >> 20 & 15;
    if (format == kF16) {
      Sums sum = {};
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        float y[SETS][2];
#pragma unroll
        for (int set = 0; set < SETS; set++) y[set][0] = x[set][i][0], y[set][1] = x[set][i][1];
        uint32_t b[2];
        add_rounded(y, b, sum);
        this->add_rows(b[0], b[1], 16, o);
      }
      this->add_sums(sum);
      return;
    }
    Weights w;
    range_weights(record, x, w);
    if (format == kInt2)
      multiply_values<2>(record, w);
    else if (format == kInt3)
      multiply_values<3>(record, w);
    else if (format == kInt4)
      multiply_values<4>(record, w);
    else
      multiply_values<8>(record, w);
  }

  __device__ __forceinline__ void consume() {
    const Place place = warp < kUnits ? place_of_queries(warp) : Place{0, 0};
    wait_for_previous();
    // Before the warp waits for the first pieces to be found.
    if (warp < kUnits) bring_queries(warp, place);
    fill();
    named_barrier_sync(1 + team, kWarps * 32);
    reset();
#pragma unroll 1
    for (;;) {
      lane = computed_here(lane);
      wait();
      const uint32_t what = state().info[stage()], ordinal = state().ordinal;
      if ((what & 0xffff) != ordinal) {
        if (!finish(ordinal, (warp + kWarps - *shift_of(ordinal)) % kWarps)) return;
        reset();
        if (lane == 0) state().ordinal = ordinal + 1;
        __syncwarp();
        wait_for_value(brought(ordinal + 1), ordinal + 1);
        continue;
      }
      const uint32_t slot = ordinal % kUnits, format = what >> 16 & 15;
      if (format == kTile16)
        attend_tile(slot, what >> 24 & 31);
      else
        attend_block(slot, format);
    }
  }

  // Each kind of warp finds out anew what it is, of which there is no need to keep anything.
  __device__ __forceinline__ static void run(const MixedDecodeParams& params) {
    MixedDecode(params).begin();
    if (computes()) {
      if (WAY == Way::kBulk) registers_grow<Base::kComputingRegisters>();
      MixedDecode(params).consume();
      return;
    }
    if (WAY == Way::kBulk) registers_shrink<Base::kOtherRegisters>();
    if (gives())
      MixedDecode(params).give();
    else
      MixedDecode(params).produce();
  }
};

}  // namespace ebb

// Of head_dim D, for up to 4 * SETS pairs of a row and a query head. For a device without the copy engine, to which the host gives no
// kernel that uses it, there is nothing to compile of one.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define EBB_DECODE_MIXED_BULK(NAME, D, SETS, POLAR) \
  extern "C" __global__ void NAME(const __grid_constant__ ebb::MixedDecodeParams p) { __trap(); }
#else
#define EBB_DECODE_MIXED_BULK(NAME, D, SETS, POLAR)                                              \
  EBB_KERNEL_OF_REGISTERS(NAME, ebb::MixedDecodeParams,                                          \
                          (ebb::MixedDecode<D, 2, SETS, ebb::Way::kBulk, POLAR>::kThreads),      \
                          (ebb::MixedDecode<D, 2, SETS, ebb::Way::kBulk, POLAR>::kRegisters)) {  \
    ebb::MixedDecode<D, 2, SETS, ebb::Way::kBulk, POLAR>::run(p);                                \
  }
#endif
#define EBB_DECODE_MIXED_RING(NAME, D, SETS)                                                     \
  EBB_KERNEL_EARLY(NAME, ebb::MixedDecodeParams,                                                 \
                   (ebb::MixedDecode<D, 2, SETS, ebb::Way::kRing, true>::kThreads),              \
                   (ebb::MixedDecode<D, 2, SETS, ebb::Way::kRing, true>::kCtas)) {               \
    ebb::MixedDecode<D, 2, SETS, ebb::Way::kRing, true>::run(p);                                 \
  }
