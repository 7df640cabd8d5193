// The highest bits of 16-bit codes, and what they are worth by PM-KVQ's Direct and Modified Right
// Shift.
#pragma once
#include "cuda/formats/plane.cuh"

namespace ebb {

enum class ShiftStrategy { kDirect, kModified };

// Both strategies keep the same bits.
template <bool ByToken>
struct ShiftedEncoder {
  static constexpr bool kKeysOnly = ByToken;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    uint16_t* const partials = reinterpret_cast<uint16_t*>(scratch + 256 * HeadDim);
    constexpr bool kByChannel = Keys && !ByToken;
    if (!find_ranges<HeadDim, kByChannel>(scratch, partials, s, 65535.f, failure)) return false;
    Codes q;
    quantise<HeadDim, Keys, ByToken, true>(scratch, s, 65535.f, q);
    // Four codes at once: 8 bits to 4, and to 2.
    const bool twice = layout.bits == 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        q[i][h] = q[i][h] >> 4 & 0x0f0f0f0fu;
        if (twice) q[i][h] = q[i][h] >> 2 & 0x03030303u;
      }
    }
    write_page<HeadDim, Keys, ByToken>(dst, layout, scratch, s, q);
    return true;
  }
};

// Zeros lie half a step above the group's, less half a step of 16 bits.
template <bool ByToken>
struct ModifiedDequantiser {
  static constexpr bool kKeysOnly = ByToken;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static void read(const RecordBytes& src, const Layout& layout,
                                              uint8_t* staged, PageShared& s) {
    constexpr uint32_t kGroups = ByToken ? 128 : Fragments<HeadDim, Keys>::kColumns;
    Codes q;
    read_page<HeadDim, Keys, ByToken>(src, layout, staged, s, q);
    find_steps<HeadDim, Keys, ByToken>(layout, s);
    const float lift = layout.bits == 2 ? 0.5f - 0.5f / (1 << 14) : 0.5f - 0.5f / (1 << 12);
    const uint32_t c = threadIdx.x;
    if (c < kGroups) s.zero[c] = __fadd_rn(s.zero[c], __fmul_rn(s.scale[c], lift));
    __syncthreads();
    dequantise<HeadDim, Keys, ByToken>(q, s, staged);
    __syncthreads();
  }
};

template <int Bits, ShiftStrategy Strategy, bool ByToken>
struct ShiftedFormat : DenseFormat<Bits> {
  static constexpr bool kIsDirect = Strategy == ShiftStrategy::kDirect;
  static constexpr Layout kLayout = {
      Bits, kIsDirect ? static_cast<float>((1 << Bits) - 1) : 65535.f / (1 << (16 - Bits))};
  using Encoder = ShiftedEncoder<ByToken>;
  using Dequantiser =
      std::conditional_t<kIsDirect, PlaneDequantiser<ByToken>, ModifiedDequantiser<ByToken>>;
};

}  // namespace ebb
