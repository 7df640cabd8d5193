// Kitty's keys with the boosted channels of another ranking.
#pragma once
#include "cuda/formats/plane.cuh"

namespace ebb {

struct RerankedEncoder {
  static constexpr bool kKeysOnly = true;
  static constexpr uint32_t kByVariance = 0, kAtRandom = 1, kBySixteenBit = 2;

  template <int HeadDim, bool Keys>
  __device__ __forceinline__ static bool write(const RecordBytes& dst, const Layout& layout,
                                               uint8_t* scratch, PageShared& s, uint64_t& failure) {
    Codes q;
    if (!quantise_to_8<HeadDim, Keys>(scratch, s, q, failure)) return false;
#pragma unroll
    for (int i = 0; i < 8; i++)
      for (int h = 0; h < 2; h++) q[i][h] = shift_8_to_4(q[i][h]);
    const uint32_t boosted = layout.slabs * (HeadDim / 8);
    if (layout.variant == kByVariance) {
      rank_by_variance<HeadDim>(q, boosted, s);
    } else if (layout.variant == kBySixteenBit) {
      rank_rows<HeadDim>(scratch, 0, boosted, s);
    } else {
      rank_at_random<HeadDim>(boosted, s);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint32_t kept = rank_mask<HeadDim>(s.rank, i, h, 0, boosted);
        q[i][h] = (q[i][h] & kept) | (shift_4_to_2(q[i][h]) & ~kept);
      }
    }
    write_page<HeadDim, Keys>(dst, layout, scratch, s, q);
    return true;
  }
};
template <int Slabs, uint32_t Variant>
struct RerankedFormat : BoostedFormat<Slabs> {
  static constexpr Layout kLayout = {2, 3.f, Slabs, 0, 0, false, Variant};
  using Encoder = RerankedEncoder;
};

}  // namespace ebb
