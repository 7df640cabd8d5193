// Shrinks of 16-bit pages to static formats, which no page shrinks through: polar and per-token
// keys, groups of 32, and the papers' ablations. The bytes are those of the CPU's codecs
// (formats/), to the bit. A CTA a record, as in transcode.cu, beside which this runs: it makes the
// records that the other leaves out.
#include "grouped.cuh"
#include "page.cuh"
#include "polar.cuh"
#include "shrink.cuh"

namespace ebb {

// 4-bit keys down to kitty's, by the ranking of the format.
template <int HeadDim>
__device__ __forceinline__ void lower_reranked(uint32_t format, PageShared& s, Codes& q) {
  const uint32_t boosted = slabs_of(format) * (HeadDim / 8);
  if (format == kKitty25Variance || format == kKitty12Variance) {
    rank_by_variance<HeadDim>(q, boosted, s);
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
}

// 8-bit codes down to a shifted format's.
__device__ __forceinline__ void shift_page(uint32_t format, Codes& q) {
  const bool rounding = format >= kInt4RoundingShift, twice = plane_bits(format) == 2;
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      q[i][h] = rounding ? shift_rounding<4>(q[i][h]) : shift_plainly<4>(q[i][h]);
      if (twice) q[i][h] = rounding ? shift_rounding<2>(q[i][h]) : shift_plainly<2>(q[i][h]);
    }
  }
}

// Writes the rows that are staged in `scratch`. False if they have no codes; then thread 0 has the
// failure, and what was written means nothing.
template <int HeadDim, bool Keys>
__device__ __forceinline__ bool encode_rows(const RecordBytes& dst, uint32_t format,
                                            uint8_t* scratch, PageShared& s, uint64_t& failure) {
  void* const partials = scratch + 256 * HeadDim;
  if (is_grouped(format)) return write_grouped<HeadDim, Keys>(dst, format, scratch, s, failure);
  Codes q;
  if constexpr (Keys) {
    if (is_polar(format)) {
      if (!find_cells<HeadDim>(scratch, static_cast<float*>(partials), s, format, failure))
        return false;
      write_polar<HeadDim>(dst, format, scratch, s);
      return true;
    }
    if (is_by_token(format)) {
      const float levels = levels_of(format);
      if (!find_ranges<HeadDim, false>(scratch, static_cast<uint16_t*>(partials), s, levels,
                                       failure))
        return false;
      quantise<HeadDim, true, true>(scratch, s, levels, q);
      write_page<HeadDim, true, true>(dst, format, scratch, s, q);
      return true;
    }
  }
  if (!find_ranges<HeadDim, Keys>(scratch, static_cast<uint16_t*>(partials), s, 255.f, failure))
    return false;
  quantise<HeadDim, Keys>(scratch, s, 255.f, q);
  if (is_shifted(format)) {
    shift_page(format, q);
  } else if constexpr (Keys) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      for (int h = 0; h < 2; h++) q[i][h] = shift_8_to_4(q[i][h]);
    lower_reranked<HeadDim>(format, s, q);
  }
  write_page<HeadDim, Keys>(dst, format, scratch, s, q);
  return true;
}

template <int HeadDim, bool Keys>
__device__ __forceinline__ void encode(const ShrinkParams& p, const ShrinkRecord<HeadDim>& shrink,
                                       uint8_t* shared, PageShared& s) {
  if (!is_encoded(shrink.to.format) || shrink.from.format != kF16) return;
  stage_rows<HeadDim>(shared,
                      [&](uint32_t token, uint32_t byte) { return shrink.row(token, byte); });
  uint64_t failure;
  if (!encode_rows<HeadDim, Keys>(shrink.dst, shrink.to.format, shared, s, failure) &&
      threadIdx.x == 0)
    report(p, failure);
}

template <int HeadDim>
__device__ __forceinline__ void encode_record(const ShrinkParams& p, uint8_t* shared) {
  __shared__ PageShared s;
  with_record<HeadDim>(p, [&](const ShrinkRecord<HeadDim>& shrink, auto keys) {
    encode<HeadDim, decltype(keys)::value>(p, shrink, shared, s);
  });
}

}  // namespace ebb

EBB_KERNEL(encode_pages_d64, ebb::ShrinkParams, 128, 4) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::encode_record<64>(p, shared);
}
EBB_KERNEL(encode_pages_d128, ebb::ShrinkParams, 256, 2) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::encode_record<128>(p, shared);
}
