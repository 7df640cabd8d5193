// Keys with a zero and a range per token: groups are rows of the plane.
#pragma once
#include "cuda/formats/plane.cuh"

namespace ebb {

struct ByTokenEncoder {
  static constexpr bool kKeysOnly = true;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    uint16_t* const partials = reinterpret_cast<uint16_t*>(scratch + 256 * HeadDim);
    if (!find_ranges<HeadDim, false>(scratch, partials, s, layout.levels, failure)) return false;
    Codes q;
    quantise<HeadDim, Keys, true>(scratch, s, layout.levels, q);
    write_page<HeadDim, Keys, true>(dst, layout, scratch, s, q);
    return true;
  }
};
template <int Bits>
struct ByTokenFormat : DenseFormat<Bits> {
  using Encoder = ByTokenEncoder;
  using Dequantiser = PlaneDequantiser<true>;
};

}  // namespace ebb
