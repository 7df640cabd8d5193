// A page on its way down the ladder (formats/ladder/page.rs).
#pragma once
#include "clip.cuh"
#include "formats.cuh"
#include "page.cuh"

namespace ebb {

// Brings the codes of a page of format `from` (a level below 16 bit) down to `to`'s; 2-bit ones are
// clipped if `clipped`. `scratch` is shared memory that the page no longer needs. `ByRow`: of keys
// per token, whose levels are all of one width and not clipped.
template <int HeadDim, bool Keys, bool ByRow = false>
__device__ __forceinline__ void lower_page(uint32_t from, uint32_t to, bool clipped,
                                           uint8_t* scratch, SharedOf<HeadDim>& s, Codes& q) {
  using F = Fragments<HeadDim, Keys>;
  if (from == to) return;
  if (from == (ByRow ? kInt8t : kInt8)) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      for (int h = 0; h < 2; h++) q[i][h] = shift_8_to_4(q[i][h]);
    if (to == (ByRow ? kInt4t : kInt4)) return;
  }
  if constexpr (ByRow) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      for (int h = 0; h < 2; h++) q[i][h] = shift_4_to_2(q[i][h]);
    return;
  }
  const uint32_t old = layout_of(from).slabs * (HeadDim / 8),
                 boosted = layout_of(to).slabs * (HeadDim / 8);
  const bool ranked = Keys && (old > 0 || boosted > 0);
  if constexpr (Keys) {
    if (old > 0) {
      if (threadIdx.x < HeadDim)
        s.rank[threadIdx.x] = static_cast<uint8_t>(
            s.old_rank[threadIdx.x] < boosted ? s.old_rank[threadIdx.x] : boosted);
      __syncthreads();
    } else if (boosted > 0) {
      rank_channels<HeadDim>(q, boosted, s);
    }
  }
  if (clipped) {
    auto narrowed = [&](uint32_t c) {
      return !ranked || ((old == 0 || s.old_rank[c] < old) && s.rank[c] >= boosted);
    };
    choose_windows<HeadDim, Keys>(q, scratch, s, narrowed);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint32_t column = F::column(i, h);
      const uint32_t two = clipped ? clip_4_to_2(q[i][h], s.sums[column], s.sums[column + 1])
                                   : shift_4_to_2(q[i][h]);
      uint32_t narrowed = ~0u;
      if constexpr (Keys) {
        // Those that have 4 bits now and are not to keep them.
        if (ranked) {
          const uint32_t wide = old == 0 ? ~0u : rank_mask<HeadDim>(s.old_rank, i, h, 0, old);
          narrowed = wide & ~rank_mask<HeadDim>(s.rank, i, h, 0, boosted);
        }
      }
      q[i][h] = (two & narrowed) | (q[i][h] & ~narrowed);
    }
  }
}

}  // namespace ebb
