// Polar keys in decode attention over shrunk blocks (decode_mixed.cuh): products with pairs given by angle and radius (PolarQuant,
// formats/polar), made Cartesian in registers.
#pragma once
#include "decode_load.cuh"

namespace ebb {

template <int D, int STAGES, int SETS>
struct PolarKeys : MixedLoad<D, STAGES, SETS> {
  using Base = MixedLoad<D, STAGES, SETS>;
  using Base::kSteps, Base::kTiles, Base::lane, Base::query_of, Base::release, Base::wait, Base::wait_for_second, Base::word;

  using Scores = float[SETS][kTiles][2];  // and probabilities: [.][i][0] of key 16 i + g, [.][i][1] of 16 i + 8 + g

  __device__ __forceinline__ PolarKeys(const MixedDecodeParams& params, uint8_t* shared) : Base(params, shared) {}

  // Cells of a lane's four pairs of a column tile, 8 h + 2 t + e by 2 h + e: the middle of the first, and their width.
  struct Cells {
    float middle[4], width[4];
  };
  // `zeros`: of all pairs; ranges lie behind them.
  __device__ __forceinline__ Cells cells_of(const uint8_t* zeros, uint32_t tile, float share) const {
    Cells cells;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t at = 8 * tile + 4 * h + lane % 4;
      const float2 zero = unpack_f16(word(zeros, at)), range = unpack_f16(word(zeros + D, at));
      cells.width[2 * h] = range.x * share, cells.width[2 * h + 1] = range.y * share;
      cells.middle[2 * h] = fmaf(range.x, 0.5f * share, zero.x), cells.middle[2 * h + 1] = fmaf(range.y, 0.5f * share, zero.y);
    }
    return cells;
  }
  // What byte `byte` of a word is of cells.
  __device__ __forceinline__ static float in_cells(const Cells& cells, uint32_t codes, int byte) {
    const float code = __uint_as_float(__byte_perm(codes, 0x4b000000, 0x7440 + byte)) - 8388608.f;
    const int i = byte % 2 * 2 + byte / 2;
    return fmaf(code, cells.width[i], cells.middle[i]);
  }
  // A lane's word of fragment `f` of a plane.
  __device__ __forceinline__ uint32_t word_of(const uint8_t* plane, uint32_t w) const { return word(plane, (w / 4 * 32 + lane) * 4 + w % 4); }

  // Products with 128 keys that are pairs (i, i + D/2) by angle and radius (PolarQuant, formats/polar), made Cartesian in registers, and
  // in `middles` what is left out of all of them: a pair whose keys lie to one side of zero is taken from the middle of its cells, for a key
  // far from zero has an error in fp16 that scores would show.
  __device__ __forceinline__ void attend_polar(uint32_t slot, uint32_t format, Scores& x, float (&middles)[SETS]) {
    const uint8_t* const record = wait();
    uint8_t* const radii = wait_for_second();
    const bool has_grid = format == kPolar44Grid;
    const uint32_t has_2_bits = format == kPolar42;
    const uint8_t* const of_radii = record + (has_grid ? 0 : 2 * D);
    const uint8_t* const angles = of_radii + 2 * D;
    float left_out[4] = {};
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int i = 0; i < kTiles; i++) x[set][i][0] = x[set][i][1] = 0.f;
    }
    // Middles of cells, by column tile and half: x and y of a lane's pairs. Behind the radii is room.
    float4* const centers = reinterpret_cast<float4*>(radii + 32 * D);
    static_assert(32 * D + 4 * D <= Base::kLargest);
    auto angle_cells = [&](uint32_t tile) {
      constexpr float kPi = 3.14159265358979f;
      Cells cells = cells_of(record, tile, 1.f / 16.f);
      if (!has_grid) return cells;
#pragma unroll
      for (int i = 0; i < 4; i++) cells.width[i] = kPi / 8.f, cells.middle[i] = kPi / 16.f;
      return cells;
    };
    auto radius_cells = [&](uint32_t tile) { return cells_of(of_radii, tile, has_2_bits ? 1.f / 4.f : 1.f / 16.f); };
#pragma unroll 1
    for (uint32_t tile = 0; tile < kSteps / 2; tile++) {
      const Cells angle = angle_cells(tile), radius = radius_cells(tile);
      float2 center[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        constexpr float kHalfTurn = 3.14159265358979f / 16.f;
        const float length = angle.width[i] < kHalfTurn ? fmaf(has_2_bits ? 1.5f : 7.5f, radius.width[i], radius.middle[i]) : 0.f;
        const float2 unit = cos_sin(fmaf(7.5f, angle.width[i], angle.middle[i]));
        center[i] = make_float2(length * unit.x, length * unit.y);
      }
      uint32_t c[2][4];  // the same in all rows
#pragma unroll
      for (int h = 0; h < 2; h++) {
        c[0][2 * h] = c[0][2 * h + 1] = pack_f16(center[2 * h].x, center[2 * h + 1].x);
        c[1][2 * h] = c[1][2 * h + 1] = pack_f16(center[2 * h].y, center[2 * h + 1].y);
        const float2 cx = unpack_f16(c[0][2 * h]), cy = unpack_f16(c[1][2 * h]);
        if (lane < 4) centers[(2 * tile + h) * 4 + lane] = make_float4(cx.x, cy.x, cx.y, cy.y);
      }
      const uint2 q0 = query_of(slot)[tile * 32 + lane], q1 = query_of(slot)[(kSteps / 2 + tile) * 32 + lane];
      mma_f16(left_out, c[0], q0.x, q0.y);
      mma_f16(left_out, c[1], q1.x, q1.y);
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t tile = 0; tile < kSteps / 2; tile++) {
      const Cells angle = angle_cells(tile), radius = radius_cells(tile);
      const uint2 q0 = query_of(slot)[tile * 32 + lane], q1 = query_of(slot)[(kSteps / 2 + tile) * 32 + lane];
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        const uint32_t f = i * (kSteps / 2) + tile;
        const uint32_t angle_word = word_of(angles, f);
        uint32_t radius_word = word_of(radii, f >> has_2_bits) >> (f & has_2_bits) * 4;
        if (has_2_bits) radius_word = (radius_word & 0x03030303) | (radius_word & 0x0c0c0c0c) << 2;
        asm volatile("" ::: "memory");  // Centers are loaded here, not kept: registers are short.
        uint32_t a[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t angle_codes = angle_word >> 4 * r & 0x0f0f0f0f, radius_codes = radius_word >> 4 * r & 0x0f0f0f0f;
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const float2 unit0 = cos_sin(in_cells(angle, angle_codes, h)), unit1 = cos_sin(in_cells(angle, angle_codes, h + 2));
            const float length0 = in_cells(radius, radius_codes, h), length1 = in_cells(radius, radius_codes, h + 2);
            const float4 center = centers[(2 * tile + h) * 4 + lane % 4];
            a[0][2 * h + r] = pack_f16(fmaf(length0, unit0.x, -center.x), fmaf(length1, unit1.x, -center.z));
            a[1][2 * h + r] = pack_f16(fmaf(length0, unit0.y, -center.y), fmaf(length1, unit1.y, -center.w));
          }
        }
        float s[4] = {};
#pragma unroll
        for (int set = 0; set < SETS; set++) s[set] = x[set][i][0], s[2 + set] = x[set][i][1];
        mma_f16(s, a[0], q0.x, q0.y);
        mma_f16(s, a[1], q1.x, q1.y);
#pragma unroll
        for (int set = 0; set < SETS; set++) x[set][i][0] = s[set], x[set][i][1] = s[2 + set];
      }
    }
#pragma unroll
    for (int set = 0; set < SETS; set++) middles[set] = left_out[set];
    fence_async_proxy();  // What this warp wrote is overwritten by the copy engine.
    release();
    release();
  }
};

}  // namespace ebb
