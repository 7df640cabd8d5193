// What decode attention over shrunk blocks (decode_mixed.cuh) does with what it has loaded
// (decode_pieces.cuh, decode_rings.cuh) before it looks at codes: 16-bit rows, and a CTA's start.
#pragma once
#include "decode_rings.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct MixedLoad : Rings<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = Rings<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::arena, Base::claimed, Base::computes, Base::fence_writes, Base::fragment_lane,
      Base::lane, Base::left, Base::merged, Base::p, Base::params, Base::prepare, Base::release,
      Base::row_offset, Base::state, Base::team, Base::wait, Base::warp;
  using Base::kComputing, Base::kFragmentLanes, Base::kSteps;

  __device__ __forceinline__ explicit MixedLoad(const MixedDecodeParams& params) : Base(params) {}

  // ---- 16-bit rows ----

  // S^T of 16 keys of 16 bit.
  __device__ __forceinline__ void score_rows(const uint2* query16, float (&s)[4]) {
    const uint32_t rows = smem_address(wait());
    float s0[4] = {}, s1[4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      uint32_t a[4], b[4];
      ldmatrix_x4(a, rows + row_offset(lane % 16, 2 * i + lane / 16));
      ldmatrix_x4(b, rows + row_offset(lane % 16, 2 * i + 2 + lane / 16));
      const uint2 q = query16[i * kFragmentLanes + fragment_lane()],
                  r = query16[(i + 1) * kFragmentLanes + fragment_lane()];
      mma_bf16(s0, a, q.x, q.y);
      mma_bf16(s1, b, r.x, r.y);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = s0[i] + s1[i];
    release();
  }

  // A probability beside 16-bit values as two bf16, what its first bits are and the rest, so that
  // it keeps 16 bits.
  __device__ __forceinline__ static float first_bits(float y) {
    return __uint_as_float(__float_as_uint(y) & 0xffff0000u);
  }

  // The probabilities of 16 keys as B operands: of one set, first bits in one column of a head and
  // the rest in the next; of two, all heads' first bits, then all heads' rest.
  struct Probs {
    uint32_t b[SETS == 1 ? 1 : 2][2];
  };
  __device__ __forceinline__ static Probs split(const float (&y)[SETS][2]) {
    Probs probs;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float first = first_bits(y[0][r]), second = first_bits(y[SETS - 1][r]);
      if (SETS == 1) {
        probs.b[0][r] = movmatrix_trans(pack_bf16(first, y[0][r] - first));
      } else {
        probs.b[0][r] = movmatrix_trans(pack_bf16(first, second));
        probs.b[SETS == 1 ? 0 : 1][r] =
            movmatrix_trans(pack_bf16(y[0][r] - first, y[SETS - 1][r] - second));
      }
    }
    return probs;
  }

  // Adds 16 tokens of 16 bit, of which `tokens` are: O^T += V^T P^T.
  __device__ __forceinline__ void add_rows(const Probs& probs, uint32_t tokens,
                                           float (&o)[kSteps][2 * SETS]) {
    uint8_t* const at = wait();
    const uint32_t rows = smem_address(at);
    if (tokens < 16) {
      // Rows past the end hold anything, also NaN: they become zero.
      for (uint32_t i = tokens * kSteps * 2 + lane; i < 16 * kSteps * 2; i += 32)
        *reinterpret_cast<uint4*>(at + row_offset(i / (kSteps * 2), i % (kSteps * 2))) =
            make_uint4(0, 0, 0, 0);
      fence_writes();
      __syncwarp();
    }
#pragma unroll
    for (int d = 0; d < kSteps; d++) {
      uint32_t a[4];
      // Matrices: tokens 0-7 of channels 0-7 and 8-15, then tokens 8-15; transposed they are the A
      // operand's.
      ldmatrix_x4_trans(a, rows + row_offset(lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; i++) sums[i] = i % 2 < SETS ? o[d][i / 2 * SETS + i % 2] : 0.f;
#pragma unroll
      for (int part = 0; part < (SETS == 1 ? 1 : 2); part++)
        mma_bf16(sums, a, probs.b[part][0], probs.b[part][1]);
#pragma unroll
      for (int i = 0; i < 2 * SETS; i++)
        o[d][i] = SETS == 1 ? sums[2 * i] + sums[2 * i + 1] : sums[i];
    }
    release();
  }

  // The power of two in a value >= 0: divided by it, it is less than 2.
  struct Power {
    float value, inverse;
  };
  __device__ __forceinline__ static Power power_in(float x) {
    const uint32_t exponent = min(max(__float_as_uint(x) >> 23, 1u), 253u);
    return {__uint_as_float(exponent << 23), __uint_as_float((254 - exponent) << 23)};
  }

  // Of a vector of fp16, elements 16 i + g and 16 i + 8 + g for i from 0 to 3.
  __device__ __forceinline__ void load_column(uint32_t (&a)[4], const uint8_t* vector) const {
    ldmatrix_x4_trans(a, smem_address(vector) + lane / 8 * 32 + lane % 2 * 16);
  }

  // A boosted channel's step is range / 15, a fifth of what its range says at 2 bit: its range
  // becomes that. Then, by rank, in the place of zeros: what `place` says of the channel, and its
  // range.
  template <class PlaceOf>
  __device__ __forceinline__ void sort_boosted(uint8_t* record, uint32_t slabs,
                                               PlaceOf place) const {
    constexpr uint32_t kFifth = 0x32663266;  // fp16
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
        by_rank[of] = place(c) | range << 16;
      }
    }
    __syncwarp();
  }

  // Counters; then the next kernel may start.
  __device__ __forceinline__ void begin() const {
    if (WAY == Way::kBulk && threadIdx.x == kComputing * 32) prefetch_tensor_map(&params.records);
    if (lane == 0 && computes()) {
      state().taken[this->mate] = state().ordinal[this->mate] = 0;
      if (this->mate == 0) {
        prepare();
        state().found = state().given = 0;
        if (Base::kPair == 2) state().exceeding = ~0u;
      }
      if (warp == 0 && this->mate == 0) {
        if (team == 0) arena() = {p.pages.arena, __float_as_uint(Base::kBase)};
        set_turn(left(), 0);
        set_turn(claimed(), 0);
        set_turn(merged(), 0);
      }
    }
    __syncthreads();
    let_next_start();
  }
};

}  // namespace ebb
