// Polar keys in decode attention over shrunk blocks (decode_mixed.cuh): products with pairs given
// by angle and radius (PolarQuant, formats/polar), made Cartesian in registers.
#pragma once
#include "decode_load.cuh"

namespace ebb {

template <int D, int STAGES, int SETS, Way WAY, bool POLAR, bool ANY>
struct PolarKeys : MixedLoad<D, STAGES, SETS, WAY, POLAR, ANY> {
  using Base = MixedLoad<D, STAGES, SETS, WAY, POLAR, ANY>;
  using Base::kBase, Base::kFragmentLanes, Base::kSteps, Base::kTiles, Base::fence_writes,
      Base::fragment_lane, Base::lane, Base::query_of, Base::release, Base::wait,
      Base::wait_for_second, Base::word;

  // and probabilities: [.][i][0] of key 16 i + g, [.][i][1] of 16 i + 8 + g; of a pair, i is the
  // i-th row tile of this warp's
  using Scores = float[SETS][Base::kOwnTiles][2];

  __device__ __forceinline__ explicit PolarKeys(const MixedDecodeParams& params) : Base(params) {}

  // Cells of two pairs, 8 h + 2 t and the one after it, of a column tile: their width, and the
  // middle of the one that kBase would be in the place of, so that a code need not be freed of it.
  // (2^-17 of a width are lost.)
  struct alignas(16) Cells {
    float width[2], origin[2];
    __device__ __forceinline__ float at(int i, float code) const {
      return fmaf(kBase + code, width[i], origin[i]);
    }
    // What byte `byte` of a word is; `base`: code_base.
    __device__ __forceinline__ float of(int i, uint32_t codes, int byte, uint32_t base) const {
      return fmaf(__uint_as_float(__byte_perm(codes, base, 0x7044 | byte << 8)), width[i],
                  origin[i]);
    }
  };
  // Of cells `share` of a range wide; `zeros`: of all pairs; ranges lie behind them.
  __device__ __forceinline__ Cells cells_of(const uint8_t* zeros, uint32_t tile, int h,
                                            float share) const {
    const uint32_t at = 8 * tile + 4 * h + lane % 4;
    const float2 zero = unpack_f16(word(zeros, at)), range = unpack_f16(word(zeros + D, at));
    constexpr float kHalf = 0.5f - kBase;
    return {{range.x * share, range.y * share},
            {fmaf(range.x, kHalf * share, zero.x), fmaf(range.y, kHalf * share, zero.y)}};
  }
  // Where word `w` of a plane lies, of lane 0.
  __device__ __forceinline__ static constexpr uint32_t offset_of(uint32_t w) {
    return w / 4 * 512 + w % 4 * 4;
  }

  // Products with 128 keys that are pairs (i, i + D/2) by angle and radius (PolarQuant,
  // formats/polar), made Cartesian in registers, and in `middles` what is left out of all of them:
  // a pair whose keys lie to one side of zero is taken from the middle of its cells, for a key far
  // from zero has an error in fp16 that scores would show.
  __device__ __forceinline__ void attend_polar(uint32_t slot, uint32_t format, Scores& x,
                                               float (&middles)[SETS]) {
    const uint8_t* const record = wait();
    uint8_t* const radii = wait_for_second();
    const bool has_grid = EBB_IS(format, HasAngleGrid);
    const uint32_t has_2_bits = EBB_IS(format, HasRadiusBits<2>);
    const uint8_t* const of_radii = record + (has_grid ? 0 : 2 * D);
    const uint8_t* const angles = of_radii + 2 * D;
    float left_out[4] = {};
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int i = 0; i < kTiles; i++) x[set][i][0] = x[set][i][1] = 0.f;
    }
    // By column tile, half and t: cells, and their middles, x and y of either pair. They are loaded
    // where they are needed, not kept: registers are short. Behind the radii is room.
    Cells* const angle_cells = reinterpret_cast<Cells*>(radii + 32 * D);
    Cells* const radius_cells = angle_cells + 4 * kSteps;
    float4* const centers = reinterpret_cast<float4*>(radius_cells + 4 * kSteps);
    static_assert(32 * D + 3 * 4 * kSteps * 16 <= Base::kLargest);
    const uint32_t base = this->code_base();
#pragma unroll 1
    for (uint32_t tile = 0; tile < kSteps / 2; tile++) {
      uint32_t c[2][4];  // the same in all rows
#pragma unroll
      for (int h = 0; h < 2; h++) {
        constexpr float kTurn = 2.f * 3.14159265358979f;
        const Cells radius = cells_of(of_radii, tile, h, has_2_bits ? 1.f / 4.f : 1.f / 16.f);
        Cells angle = cells_of(record, tile, h, 1.f / 16.f);
        if (has_grid)
          angle = {{kTurn / 16.f, kTurn / 16.f},
                   {(0.5f - kBase) * (kTurn / 16.f), (0.5f - kBase) * (kTurn / 16.f)}};
        float2 center[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float length =
              angle.width[i] < kTurn / 32.f ? radius.at(i, has_2_bits ? 1.5f : 7.5f) : 0.f;
          const float2 unit = cos_sin(angle.at(i, 7.5f));
          center[i] = make_float2(length * unit.x, length * unit.y);
        }
        c[0][2 * h] = c[0][2 * h + 1] = pack_f16(center[0].x, center[1].x);
        c[1][2 * h] = c[1][2 * h + 1] = pack_f16(center[0].y, center[1].y);
        const float2 cx = unpack_f16(c[0][2 * h]), cy = unpack_f16(c[1][2 * h]);
        if (lane < 4) {
          const uint32_t at = (2 * tile + h) * 4 + lane;
          angle_cells[at] = angle;
          radius_cells[at] = radius;
          centers[at] = make_float4(cx.x, cy.x, cx.y, cy.y);
        }
      }
      const uint2* const query = query_of(slot) + tile * kFragmentLanes + fragment_lane();
      const uint2 q0 = query[0], q1 = query[kSteps / 2 * kFragmentLanes];
      mma_f16(left_out, c[0], q0.x, q0.y);
      mma_f16(left_out, c[1], q1.x, q1.y);
      __syncwarp();
      // Words of fragments i * kSteps / 2 + tile: of angles, and of radii, where two fragments of 2
      // bits share one.
      const uint8_t* const of_angle = angles + 16 * lane + 4 * tile;
      const uint8_t* const of_radius = radii + 16 * lane + 4 * (tile >> has_2_bits);
      const uint32_t upper = has_2_bits * (tile & 1) * 4, lower = upper + 4 - 2 * has_2_bits,
                     mask = has_2_bits ? 0x03030303 : 0x0f0f0f0f;
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
        constexpr uint32_t kHalf = kSteps / 2;
        const uint32_t angle_word = word(of_angle + offset_of(i * kHalf), 0);
        const uint32_t radius_word =
            word(of_radius + (has_2_bits ? offset_of(i * kHalf / 2) : offset_of(i * kHalf)), 0);
        asm volatile("" ::: "memory");  // Nothing that is loaded behind it is kept.
        uint32_t a[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const uint32_t at = (2 * tile + h) * 4 + lane % 4;
          const Cells angle = angle_cells[at], radius = radius_cells[at];
          const float4 center = centers[at];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const uint32_t angle_codes = angle_word >> 4 * r & 0x0f0f0f0f,
                           radius_codes = radius_word >> (r == 0 ? upper : lower) & mask;
            const float2 unit0 = cos_sin(angle.of(0, angle_codes, h, base)),
                         unit1 = cos_sin(angle.of(1, angle_codes, h + 2, base));
            const float length0 = radius.of(0, radius_codes, h, base),
                        length1 = radius.of(1, radius_codes, h + 2, base);
            a[0][2 * h + r] =
                pack_f16(fmaf(length0, unit0.x, -center.x), fmaf(length1, unit1.x, -center.z));
            a[1][2 * h + r] =
                pack_f16(fmaf(length0, unit0.y, -center.y), fmaf(length1, unit1.y, -center.w));
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
    fence_writes();
    release();
    release();
  }
};

}  // namespace ebb
