// 8-bit codes brought down by plain right shifts, or by those that round half up and cut off.
#pragma once
#include "cuda/formats/plane.cuh"

namespace ebb {

// Four codes of 2 Bits at once.
template <int Bits>
__device__ __forceinline__ uint32_t shift_plainly(uint32_t q) {
  return q >> Bits & ((1u << Bits) - 1) * 0x01010101u;
}
template <int Bits>
__device__ __forceinline__ uint32_t shift_rounding(uint32_t q) {
  auto shifted = [](uint32_t two) {
    const uint32_t x =
        (two + (1u << (Bits - 1)) * 0x00010001u) >> Bits & ((2u << Bits) - 1) * 0x00010001u;
    return x - (x >> Bits & 0x00010001u);
  };
  return shifted(q & 0x00ff00ffu) | shifted(q >> 8 & 0x00ff00ffu) << 8;
}

struct ShiftedEncoder {
  static constexpr bool kKeysOnly = false;
  static constexpr uint32_t kPlain = 0, kRounding = 1;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    const bool rounding = layout.variant == kRounding, twice = layout.bits == 2;
    Codes q;
    if (!quantise_to_8<HeadDim, Keys>(scratch, s, q, failure)) return false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        q[i][h] = rounding ? shift_rounding<4>(q[i][h]) : shift_plainly<4>(q[i][h]);
        if (twice) q[i][h] = rounding ? shift_rounding<2>(q[i][h]) : shift_plainly<2>(q[i][h]);
      }
    }
    write_page<HeadDim, Keys>(dst, layout, scratch, s, q);
    return true;
  }
};
// A group's range is as many steps of these codes as follow from the 255 of 8 bit.
template <int Bits, uint32_t Variant>
struct ShiftedFormat : DenseFormat<Bits> {
  static constexpr Layout kLayout = {
      Bits, 255.f / static_cast<float>(1 << (8 - Bits)), 0, 0, 0, false, Variant};
  using Encoder = ShiftedEncoder;
};

}  // namespace ebb
