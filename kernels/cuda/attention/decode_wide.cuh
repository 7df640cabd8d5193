// Blocks of units of sixteen columns (decode_mixed.cuh), a pair of warps each. They share a ring;
// each has the scores of every other row tile of a block's keys and the results of every other one
// of its channels, and probabilities pass between them through shared memory. So a code is freed of
// others once for sixteen columns, in fp16 (halves.cuh): queries times ranges and probabilities
// times ranges keep 11 bits each.
#pragma once
#include "decode_units.cuh"
#include "halves.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct WideBlocks : MixedUnits<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = MixedUnits<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::behind_of, Base::exchange, Base::fence_writes, Base::meet, Base::most_of_head,
      Base::query16_of, Base::query_of, Base::release, Base::row_offset, Base::scale_of,
      Base::settle_scores, Base::sort_boosted, Base::stage, Base::state, Base::wait,
      Base::wait_for_second, Base::word;
  using Base::kOctets, Base::kOwnSteps, Base::kOwnTiles, Base::kSteps, Base::kTiles;
  using Base::lane, Base::mate, Base::o, Base::p, Base::shared, Base::taken, Base::warp;
  using typename Base::Most, typename Base::Scores, typename Base::Sums;
  static_assert(SETS == 4 && !POLAR && Base::kPair == 2 && kOctets == 2);

  static constexpr float kSlack = 8.f;             // powers of two
  static constexpr float kSubnormal = 16777216.f;  // what a code is of the number that its bits are
  static constexpr uint32_t kSixteenth = 0x2c002c00, kFour = 0x44004400;  // fp16

  __device__ __forceinline__ explicit WideBlocks(const MixedDecodeParams& params) : Base(params) {}

  // N of a lane's words of a plane, from one whose number is a multiple of N; of lane 0 four lie
  // beside each other.
  template <int N>
  __device__ __forceinline__ void load_words(uint32_t* w, const uint4* plane, uint32_t from) const {
    const uint8_t* const at =
        reinterpret_cast<const uint8_t*>(plane + from / 4 * 32 + lane) + from % 4 * 4;
    if (N == 1) {
      w[0] = *reinterpret_cast<const uint32_t*>(at);
    } else if (N == 2) {
      const uint2 v = *reinterpret_cast<const uint2*>(at);
      w[0] = v.x, w[1] = v.y;
    } else {
      static_assert(N <= 4);
      const uint4 v = *reinterpret_cast<const uint4*>(at);
      w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
  }

  // Adds products of a row tile of a plane, of `Columns` column tiles, with each octet's B
  // operands. `third`: the plane of third bits, if there are.
  template <int Bits, int Columns>
  __device__ __forceinline__ void multiply_row(const uint4* plane, const uint4* third, uint32_t row,
                                               const uint32_t (&b)[kOctets][Columns][2],
                                               float (&acc)[kOctets][4]) const {
    // of a row
    constexpr int kWords = CodeHalves<Bits>::kWords * Columns / 2,
                  kAtOnce = kWords < 4 ? kWords : 4;
    constexpr int kPairs = kAtOnce / CodeHalves<Bits>::kWords;
    uint32_t w[kAtOnce], thirds[Columns / 4];
    if (CodeHalves<Bits>::kSplit) load_words<Columns / 4>(thirds, third, row * (Columns / 4));
#pragma unroll
    for (int step = 0; step < Columns / 2; step++) {
      uint32_t even[4], odd[4];
      if (step % kPairs == 0)
        load_words<kAtOnce>(w, plane, row * kWords + step * CodeHalves<Bits>::kWords);
      CodeHalves<Bits>::unpack(w + step % kPairs * CodeHalves<Bits>::kWords, even, odd);
      if (CodeHalves<Bits>::kSplit)
        CodeHalves<Bits>::add_third(thirds[step / 2], step % 2, even, odd);
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++) {
        mma_f16(acc[octet], even, b[octet][2 * step][0], b[octet][2 * step][1]);
        mma_f16(acc[octet], odd, b[octet][2 * step + 1][0], b[octet][2 * step + 1][1]);
      }
    }
  }

  // This warp's row tile of number `index`; those of a chunk begin with an even one.
  __device__ __forceinline__ uint32_t own_row(uint32_t index) const { return 2 * index + mate; }

  template <int Bits>
  __device__ __forceinline__ const uint4* third_plane() const {
    return CodeHalves<Bits>::kSplit ? reinterpret_cast<const uint4*>(wait_for_second()) : nullptr;
  }

  // ---- keys ----

  // Queries times a block's ranges, as B operands.
  struct Ranged {
    uint32_t b[kOctets][kSteps][2];
    // of boosted channels; at head_dim 64 the slabs' eight ranks each are the halves of one
    uint32_t slab[kOctets][2][2];
  };

  __device__ __forceinline__ const uint2* fragment(uint32_t slot, uint32_t octet, int step) const {
    return query_of(slot) + (octet * kSteps + step) * 32 + lane;
  }

  // `slabs`: of boosted channels, an eighth of all each.
  template <int Bits, bool Boosted>
  __device__ __forceinline__ void range_queries(uint8_t* record, uint32_t slot, uint32_t slabs,
                                                Ranged& r, float (&begin)[SETS]) const {
    const uint32_t zeros = smem_address(record) + lane / 8 * 16;
    float sums[kOctets][4] = {};  // queries times zeros
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      uint32_t z[4];  // the same in all rows
      ldmatrix_x4(z, zeros + 32 * i);
      const uint32_t even[4] = {z[0], z[0], z[1], z[1]}, odd[4] = {z[2], z[2], z[3], z[3]};
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++) {
        const uint2 q = *fragment(slot, octet, i), next = *fragment(slot, octet, i + 1);
        mma_f16(sums[octet], even, q.x, q.y);
        mma_f16(sums[octet], odd, next.x, next.y);
      }
    }
#pragma unroll
    for (int set = 0; set < SETS; set++) begin[set] = scale_of(slot, set) * sums[set / 2][set % 2];
    if (Boosted) {
      meet();  // Both have read the zeros.
      // In a lane's fragment of the column g.
      if (mate == 0)
        sort_boosted(record, slabs, [](uint32_t c) {
          return c / 16 * 256 + c % 8 / 2 * 8 + c / 8 % 2 * 4 + c % 2 * 2;
        });
      meet();
#pragma unroll
      for (uint32_t i = 0; i < D / 32; i++) {
        // Ranks in columns 2t, 2t + 1 of a slab's half, or of the slab if it has but eight.
        const bool is = i / (D / 64) < slabs;
        const uint2 by_rank =
            is ? reinterpret_cast<const uint2*>(record)[i * 4 + lane % 4] : make_uint2(0, 0);
        const uint32_t range = mul_f16x2(__byte_perm(by_rank.x, by_rank.y, 0x7632), kFour);
#pragma unroll
        for (uint32_t octet = 0; octet < kOctets; octet++) {
          const uint8_t* const query =
              reinterpret_cast<const uint8_t*>(query_of(slot) + octet * kSteps * 32) +
              lane / 4 * 32;
          const uint32_t q0 = *reinterpret_cast<const uint16_t*>(query + (by_rank.x & 0xffff)),
                         q1 = *reinterpret_cast<const uint16_t*>(query + (by_rank.y & 0xffff));
          r.slab[octet][i / 2][i % 2] = mul_f16x2(q0 | q1 << 16, range);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      uint32_t range[4];
      ldmatrix_x4(range, zeros + 2 * D + 32 * i);
      if (CodeHalves<Bits>::kOdd == 16)
        range[2] = mul_f16x2(range[2], kSixteenth), range[3] = mul_f16x2(range[3], kSixteenth);
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++) {
        const uint2 q = *fragment(slot, octet, i), next = *fragment(slot, octet, i + 1);
        r.b[octet][i][0] = mul_f16x2(q.x, range[0]), r.b[octet][i][1] = mul_f16x2(q.y, range[1]);
        r.b[octet][i + 1][0] = mul_f16x2(next.x, range[2]),
                       r.b[octet][i + 1][1] = mul_f16x2(next.y, range[3]);
      }
    }
    if (Boosted) {
      fence_writes();
      __syncwarp();
    }
  }

  // Adds products with the boosted channels' high bits of this warp's row tile of number `row`; a
  // slab that there is not meets zeros.
  __device__ __forceinline__ void multiply_slabs(const uint8_t* slabs, int row, const Ranged& r,
                                                 float (&acc)[kOctets][4]) const {
    uint32_t a[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      if (D == 128) {
        const uint32_t x = word(slabs + n * 4 * D, 4 * lane + row) >> 4 * mate;
        a[n][0] = x & 0x00030003, a[n][1] = x & 0x000c000c;
        a[n][2] = x >> 8 & 0x00030003, a[n][3] = x >> 8 & 0x000c000c;
      } else {
        // In the place of column halves are two row tiles.
        const uint32_t x = word(slabs + n * 4 * D, 2 * lane + row / 2) >> (row % 2 * 4 + 8 * mate);
        a[0][2 * n] = x & 0x00030003, a[0][2 * n + 1] = x & 0x000c000c;
      }
    }
#pragma unroll
    for (uint32_t octet = 0; octet < kOctets; octet++) {
#pragma unroll
      for (int n = 0; n < D / 64; n++)
        mma_f16(acc[octet], a[n], r.slab[octet][n][0], r.slab[octet][n][1]);
    }
  }

  // Products with this warp's keys of a block, of which it has half in each chunk. Chunks are a
  // loop, as in `CodeProducts`.
  template <int Bits, bool Boosted>
  __device__ __forceinline__ void attend_codes(uint32_t slot, uint32_t slabs, Scores& x,
                                               float (&factor)[SETS], float& lower,
                                               float (&begin)[SETS]) {
    constexpr int kChunks = Base::template chunks_at<Bits>();
    constexpr int kRows = kOwnTiles / kChunks;  // this warp's row tiles of a chunk
    Ranged r;
    uint8_t* record = wait();
    range_queries<Bits, Boosted>(record, slot, slabs, r, begin);
    if (kChunks > 1) {  // what moves on before there is anything
#pragma unroll
      for (int set = 0; set < SETS; set++)
        for (int i = 0; i < kOwnTiles; i++) x[set][i][0] = x[set][i][1] = 0.f;
    }
#pragma unroll 1
    for (int k = 0; k < kChunks; k++) {
      if (k > 0) record = wait();
      const uint4* const plane = reinterpret_cast<const uint4*>(record + (k == 0 ? 4 * D : 0));
      const uint4* const third = third_plane<Bits>();
#pragma unroll
      for (int i = 0; i < kOwnTiles - kRows; i++) {
#pragma unroll
        for (int set = 0; set < SETS; set++)
          x[set][i][0] = x[set][i + kRows][0], x[set][i][1] = x[set][i + kRows][1];
      }
#pragma unroll
      for (int row = 0; row < kRows; row++) {
        __syncwarp();  // The compiler would have more loaded ahead than there are registers for.
        float acc[kOctets][4] = {};
        multiply_row<Bits, kSteps>(plane, third, own_row(row), r.b, acc);
        if (Boosted) multiply_slabs(record + 37 * D, row, r, acc);
#pragma unroll
        for (int set = 0; set < SETS; set++) {
          x[set][kOwnTiles - kRows + row][0] = acc[set / 2][set % 2];
          x[set][kOwnTiles - kRows + row][1] = acc[set / 2][2 + set % 2];
        }
      }
      release();
      if (CodeHalves<Bits>::kSplit) release();
    }
#pragma unroll
    for (int set = 0; set < SETS; set++)
      factor[set] = scale_of(slot, set) * (kSubnormal / CodeHalves<Bits>::kLevels);
    lower = 1.f / CodeHalves<Bits>::kLower;
  }

  // S^T of 16 keys of 16 bit.
  __device__ __forceinline__ void score_rows(uint32_t slot, const uint8_t* record,
                                             float (&s)[kOctets][4]) const {
    const uint32_t rows = smem_address(record);
#pragma unroll
    for (uint32_t octet = 0; octet < kOctets; octet++)
      for (int i = 0; i < 4; i++) s[octet][i] = 0.f;
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
      uint32_t a[4];
      ldmatrix_x4(a, rows + row_offset(lane % 16, 2 * i + lane / 16));
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++) {
        const uint2 q = query16_of(slot)[(octet * kSteps + i) * 32 + lane];
        mma_bf16(s[octet], a, q.x, q.y);
      }
    }
  }

  // Products with this warp's keys, and what scores are of them: of upper row halves factor *
  // product + begin, of lower ones with `lower` times the factor.
  __device__ __forceinline__ void attend_keys(uint32_t slot, uint32_t format, Scores& x,
                                              float (&factor)[SETS], float& lower,
                                              float (&begin)[SETS]) {
    if (EBB_IS(format, ReadAs<Reader::kRows>)) {
#pragma unroll
      for (int i = 0; i < kOwnTiles; i++) {
        // Of two tiles one is this warp's.
        if (mate == 1) wait(), release();
        float s[kOctets][4];
        score_rows(slot, wait(), s);
        release();
        if (mate == 0) wait(), release();
#pragma unroll
        for (int set = 0; set < SETS; set++)
          x[set][i][0] = s[set / 2][set % 2], x[set][i][1] = s[set / 2][2 + set % 2];
      }
#pragma unroll
      for (int set = 0; set < SETS; set++) factor[set] = p.scale_log2, begin[set] = 0.f;
      lower = 1.f;
      return;
    }
#define EBB_KEYS(BITS)                                           \
  if (EBB_IS(format, ReadAsCodes<BITS>))                         \
    attend_codes<BITS, false>(slot, 0, x, factor, lower, begin); \
  else
    EBB_CODE_BITS_DOWN(EBB_KEYS)
#undef EBB_KEYS
    if (EBB_IS(format, ReadAs<Reader::kBoosted>))
      attend_codes<2, true>(slot, EBB_IS(format, ReadAsBoosted<2>) ? 2 : 1, x, factor, lower,
                            begin);
    else
      EBB_NO_SUCH_FORMAT();
  }

  // ---- scores ----

  // What exponents are relative to moves to kSlack above `top`, the most of each head, where that
  // is more; what it is now.
  __device__ __forceinline__ Most raise(const float (&top)[SETS]) {
    Most m = this->most();
    Sums sum = this->sums();
    float e[SETS];
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float y = top[set] > m.of[set] ? top[set] + kSlack : m.of[set];
      e[set] = ex2(m.of[set] - y);
      m.of[set] = y;
      sum.l[set] *= e[set];
      sum.zeros[set] *= e[set];
    }
    __syncwarp();  // All have read what is set.
    this->set_most(m);
    this->set_sums(sum);
    __syncwarp();
#pragma unroll
    for (int d = 0; d < kOwnSteps; d++)
      for (int i = 0; i < 2 * SETS; i++) o[d][i] *= e[i % SETS];
    return m;
  }
  __device__ __forceinline__ bool exceeds(const float (&top)[SETS]) const {
    const Most m = this->most();
    bool more = false;
#pragma unroll
    for (int set = 0; set < SETS; set++) more = more || top[set] > m.of[set];
    return __any_sync(~0u, more);
  }

  // The same for both warps, if there is more than that in any lane of either. `block`: a number
  // that no other block of the ring has had.
  __device__ __forceinline__ Most agree(float (&top)[SETS], uint32_t block) {
    const uint32_t exceeding = smem_address(&state().exceeding);
    if (exceeds(top) && lane == 0) set_turn(exceeding, block);
    meet();
    if (load_turn(exceeding) != block) return this->most();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      top[set] = most_of_head(top[set]);
      if (lane < 4) exchange()[mate * 4 * SETS + 4 * set + lane].x = top[set];
    }
    meet();
#pragma unroll
    for (int set = 0; set < SETS; set++)
      top[set] = fmaxf(top[set], exchange()[(1 - mate) * 4 * SETS + 4 * set + lane % 4].x);
    return raise(top);
  }

  // Turns products into probabilities: a score is product * factor (of upper and of lower row
  // halves) + begin, base 2.
  __device__ __forceinline__ void weigh(Scores& x, const float (&upper)[SETS], float lower,
                                        const float (&begin)[SETS], uint32_t block) {
    float top[SETS];
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      float top0 = x[set][0][0], top1 = x[set][0][1];
#pragma unroll
      for (int i = 1; i < kOwnTiles; i++) {
        top0 = fmaxf(top0, x[set][i][0]);
        top1 = fmaxf(top1, x[set][i][1]);
      }
      top[set] = fmaf(fmaxf(top0, top1 * lower), upper[set], begin[set]);
    }
    const Most m = agree(top, block);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const float from = begin[set] - m.of[set], second = upper[set] * lower;
#pragma unroll
      for (int i = 0; i < kOwnTiles; i++) {
        x[set][i][0] = ex2(fmaf(x[set][i][0], upper[set], from));
        x[set][i][1] = ex2(fmaf(x[set][i][1], second, from));
      }
    }
  }

  // ---- values ----

  // Probabilities, of row tile after row tile of keys, in each tile of octets and of row halves:
  // eight keys of eight columns.
  __device__ __forceinline__ uint8_t* probs() const {
    return shared + Base::kProbOffset + warp * Base::kProbs;
  }
  __device__ __forceinline__ void set_probs(int index, uint32_t octet, int half,
                                            uint32_t pair) const {
    reinterpret_cast<uint32_t*>(probs() + (own_row(index) * kOctets + octet) * 256 +
                                half * 128)[lane] = pair;
  }
  // As B operands.
  __device__ __forceinline__ void load_probs(int tile, uint32_t (&b)[kOctets][2]) const {
    uint32_t x[4];
    ldmatrix_x4_trans(x, smem_address(probs()) + tile * 512 + lane * 16);
    b[0][0] = x[0], b[0][1] = x[1], b[1][0] = x[2], b[1][1] = x[3];
  }

  // Of a vector of 128 fp16, elements 16 (2 i + which) + g and 8 further for i from 0 to 3.
  __device__ __forceinline__ void load_own(uint32_t (&a)[4], const uint8_t* vector,
                                           uint32_t which) const {
    ldmatrix_x4_trans(a, smem_address(vector) + lane / 8 * 64 + which * 32 + lane % 2 * 16);
  }

  // Leaves this warp's probabilities times a block's ranges. `odd`: kOdd of the values' codes. A
  // value is the product, times what is returned, over the greatest code.
  __device__ __forceinline__ float range_weights(const uint8_t* record, uint32_t odd,
                                                 const Scores& x) {
    uint32_t zero[4], range[4], others[4], most = 0;
    load_own(zero, record, mate);
    load_own(range, record + 256, mate);
    load_own(others, record + 256, 1 - mate);
#pragma unroll
    for (int i = 0; i < 4; i++) most = max_abs_f16x2(max_abs_f16x2(most, range[i]), others[i]);
    // Ranges are multiplied by a power of two, so that the greatest, be it subnormal, is from 2^14
    // to 2^15: probabilities are at most 1.
    most = __reduce_max_sync(~0u, max(most & 0xffff, most >> 16));
    constexpr uint32_t kLeast = 127 - 24;  // of fp16, as an exponent of a float
    const uint32_t exponent = max(__float_as_uint(unpack_f16(most).x) >> 23, kLeast);
    const float scale =
        __uint_as_float((2 * 127 + 14 - exponent - (odd == 16 && mate == 1 ? 4 : 0)) << 23);
    Sums sum = {};
#pragma unroll
    for (int i = 0; i < kOwnTiles; i++) {
      const float2 z = unpack_f16(zero[i]), r = unpack_f16(range[i]),
                   s = make_float2(r.x * scale, r.y * scale);
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++) {
        const float (&y0)[2] = x[2 * octet][i], (&y1)[2] = x[2 * octet + 1][i];
        set_probs(i, octet, 0, pack_f16(y0[0] * s.x, y1[0] * s.x));
        set_probs(i, octet, 1, pack_f16(y0[1] * s.y, y1[1] * s.y));
      }
#pragma unroll
      for (int set = 0; set < SETS; set++) {
        const float (&y)[2] = x[set][i];
        sum.l[set] += y[0] + y[1];
        sum.zeros[set] = fmaf(y[0], z.x, fmaf(y[1], z.y, sum.zeros[set]));
      }
    }
    this->add_sums(sum);
    return __uint_as_float((exponent - 14) << 23) * kSubnormal;
  }

  // Adds this warp's channels of a block's values times probabilities.
  template <int Bits>
  __device__ __forceinline__ void multiply_values(const uint8_t* record, float back) {
    constexpr int kChunks = Base::template chunks_at<Bits>();
    constexpr int kRows = kOwnSteps / kChunks;  // this warp's row tiles of a chunk
    const float upper = back * (1.f / CodeHalves<Bits>::kLevels),
                lower = upper * (1.f / CodeHalves<Bits>::kLower);
    uint32_t b[kOctets][kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      uint32_t its[kOctets][2];
      load_probs(tile, its);
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++)
        b[octet][tile][0] = its[octet][0], b[octet][tile][1] = its[octet][1];
    }
#pragma unroll 1
    for (int k = 0; k < kChunks; k++) {
      if (k > 0) record = wait();
      const uint4* const plane = reinterpret_cast<const uint4*>(record + (k == 0 ? 512 : 0));
      const uint4* const third = third_plane<Bits>();
      float sum[kRows][2 * SETS];
#pragma unroll
      for (int row = 0; row < kRows; row++) {
        if (row % 2 == 0) __syncwarp();  // as with keys
        float acc[kOctets][4] = {};
        multiply_row<Bits, kTiles>(plane, third, own_row(row), b, acc);
#pragma unroll
        for (int i = 0; i < 2 * SETS; i++)
          sum[row][i] =
              fmaf(acc[i % SETS / 2][i / SETS * 2 + i % 2], i < SETS ? upper : lower, o[row][i]);
      }
      // What there is moves on: the first are the next chunk's, and after the last one all are
      // where they were.
#pragma unroll
      for (int d = 0; d < kOwnSteps; d++) {
#pragma unroll
        for (int i = 0; i < 2 * SETS; i++)
          o[d][i] = d + kRows < kOwnSteps ? o[(d + kRows) % kOwnSteps][i]
                                          : sum[(d + kRows) % kOwnSteps][i];
      }
      release();
      if (CodeHalves<Bits>::kSplit) release();
    }
  }

  // The probabilities of 16 keys by sixteen columns beside 16-bit values, in halves of the rows,
  // two columns a lane: their first bits, or the rest.
  __device__ __forceinline__ static uint32_t part_of_pair(const float (&y)[SETS][2], uint32_t octet,
                                                          int half, int part) {
    const float a = y[2 * octet][half], b = y[2 * octet + 1][half], first_a = Base::first_bits(a),
                first_b = Base::first_bits(b);
    return part == 0 ? pack_bf16(first_a, first_b) : pack_bf16(a - first_a, b - first_b);
  }
  __device__ __forceinline__ static void add_to_sums(const float (&y)[SETS][2], Sums& sum) {
#pragma unroll
    for (int set = 0; set < SETS; set++) sum.l[set] += y[set][0] + y[set][1];
  }

  // Adds this warp's channels of 16 tokens of 16 bit, of which `tokens` are: O^T += V^T P^T.
  // Probabilities are B operands, first bits and the rest.
  __device__ __forceinline__ void add_rows(const uint32_t (&b)[2][kOctets][2], uint32_t tokens) {
    uint8_t* const at = wait();
    const uint32_t rows = smem_address(at);
    if (tokens < 16) {
      // Rows past the end hold anything, also NaN: they become zero.
      if (mate == 0) {
        for (uint32_t i = tokens * kSteps * 2 + lane; i < 16 * kSteps * 2; i += 32)
          *reinterpret_cast<uint4*>(at + row_offset(i / (kSteps * 2), i % (kSteps * 2))) =
              make_uint4(0, 0, 0, 0);
        fence_writes();
      }
      meet();
    }
#pragma unroll
    for (int d = 0; d < kOwnSteps; d++) {
      uint32_t a[4];
      // Matrices: tokens 0-7 of channels 0-7 and 8-15, then tokens 8-15; transposed they are the A
      // operand's.
      ldmatrix_x4_trans(a,
                        rows + row_offset(lane / 16 * 8 + lane % 8, 2 * own_row(d) + lane / 8 % 2));
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++) {
        float sums[4];
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] = o[d][i / 2 * SETS + 2 * octet + i % 2];
#pragma unroll
        for (int part = 0; part < 2; part++)
          mma_bf16(sums, a, b[part][octet][0], b[part][octet][1]);
#pragma unroll
        for (int i = 0; i < 4; i++) o[d][i / 2 * SETS + 2 * octet + i % 2] = sums[i];
      }
    }
    release();
  }

  // ---- a block ----

  // `to_end`: tokens from the tile's first to the sequence's end, of which each row but the last
  // sees fewer. `hidden`: first tokens that the last row does not see; of those each other row
  // sees more. Both warps have all of its keys.
  __device__ __forceinline__ void attend_tile(uint32_t slot, uint32_t to_end, uint32_t hidden) {
    const int g = lane / 4;
    float s[kOctets][4], y[SETS][2], top[SETS];
    score_rows(slot, wait(), s);
    release();
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      const int behind = behind_of(slot)[4 * set + lane % 4],
                seen = static_cast<int>(to_end) - behind, first = static_cast<int>(hidden) - behind;
      const float s0 = s[set / 2][set % 2], s1 = s[set / 2][2 + set % 2];
      y[set][0] = g < seen && (!ANY || g >= first) ? this->score_of(s0) : -INFINITY;
      y[set][1] = g + 8 < seen && (!ANY || g + 8 >= first) ? this->score_of(s1) : -INFINITY;
      top[set] = fmaxf(y[set][0], y[set][1]);
    }
    if (exceeds(top)) {
#pragma unroll
      for (int set = 0; set < SETS; set++) top[set] = most_of_head(top[set]);
      raise(top);
    }
    const Most m = this->most();
#pragma unroll
    for (int set = 0; set < SETS; set++)
      for (int r = 0; r < 2; r++) y[set][r] = ex2(y[set][r] - m.of[set]);
    uint32_t b[2][kOctets][2];
#pragma unroll
    for (int part = 0; part < 2; part++) {
#pragma unroll
      for (uint32_t octet = 0; octet < kOctets; octet++)
        for (int r = 0; r < 2; r++)
          b[part][octet][r] = movmatrix_trans(part_of_pair(y, octet, r, part));
    }
    if (mate == 0) {
      Sums sum = {};
      add_to_sums(y, sum);
      this->add_sums(sum);
    }
    add_rows(b, min(to_end, 16u));
  }

  __device__ __forceinline__ void attend_block(uint32_t slot, uint32_t key_format) {
    const uint32_t block = taken;
    Scores x;
    float factor[SETS], lower, begin[SETS];
    attend_keys(slot, key_format, x, factor, lower, begin);
    if (ANY) {
      // What is known of the block is known with its values, too: it is not kept.
      wait();
      settle_scores(slot, Base::hidden_of_block(state().info[stage()]), x, factor, lower, begin);
    }
    weigh(x, factor, lower, begin, block);
    const uint8_t* const record = wait();
    const uint32_t format = state().info[stage()] >> 20 & 15;
    if (EBB_IS(format, ReadAs<Reader::kRows>)) {
      // There is room for the probabilities of half of the tiles, in two parts.
      Sums sum = {};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (half == 1) meet();
#pragma unroll
        for (int i = 0; i < kOwnTiles / 2; i++) {
          float y[SETS][2];
#pragma unroll
          for (int set = 0; set < SETS; set++)
            y[set][0] = x[set][half * kOwnTiles / 2 + i][0],
            y[set][1] = x[set][half * kOwnTiles / 2 + i][1];
          add_to_sums(y, sum);
#pragma unroll
          for (int part = 0; part < 2; part++) {
#pragma unroll
            for (uint32_t octet = 0; octet < kOctets; octet++)
              for (int r = 0; r < 2; r++)
                set_probs(part * kOwnTiles / 2 + i, octet, r, part_of_pair(y, octet, r, part));
          }
        }
        meet();
#pragma unroll 1
        for (int tile = 0; tile < kTiles / 2; tile++) {
          uint32_t b[2][kOctets][2];
          load_probs(tile, b[0]);
          load_probs(kTiles / 2 + tile, b[1]);
          add_rows(b, 16);
        }
      }
      this->add_sums(sum);
      return;
    }
#define EBB_IS_ODD(BITS) (EBB_IS(format, ReadAsCodes<BITS>) && CodeHalves<BITS>::kOdd == 16) ||
    const float back = range_weights(record, EBB_CODE_BITS_UP(EBB_IS_ODD) false ? 16 : 1, x);
#undef EBB_IS_ODD
    meet();
#define EBB_VALUES(BITS)                 \
  if (EBB_IS(format, ReadAsCodes<BITS>)) \
    multiply_values<BITS>(record, back); \
  else
    EBB_CODE_BITS_UP(EBB_VALUES)
#undef EBB_VALUES
    EBB_NO_SUCH_FORMAT();
  }
};

}  // namespace ebb
