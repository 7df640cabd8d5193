// Shrinks: every record of a block read in its present format and written in its next one, to new
// frames. The bytes are those of the CPU's codecs (formats/), to the bit.
//
// A CTA a record. Low-bit records never pass shared memory, except for kitty's slabs; 16-bit rows
// are staged there, for the minima and maxima, and so that a matrix load hands them out in the
// plane's order.
#include "formats.cuh"
#include "lower.cuh"
#include "plane.cuh"
#include "shrink.cuh"

namespace ebb {

// A page to a format of other codes, which this kernel writes. `ByRow`: to keys per token.
template <int HeadDim, bool Keys, bool ByRow = false>
__device__ __forceinline__ void rewrite(const ShrinkParams& p, const ShrinkRecord<HeadDim>& shrink,
                                        uint8_t* shared, SharedOf<HeadDim>& s) {
  const PageAtLevel& from = shrink.from;
  const PageAtLevel& to = shrink.to;
  Codes q;
  uint32_t width = from.format;
  if (from.format == kF16) {
    // Every level of the ladders is reached through 8 bits.
    const bool straight = !ByRow && is<IsStraight>(to.format);
    width = straight ? to.format : static_cast<uint32_t>(ByRow ? kInt8t : kInt8);
    const float levels = straight ? value_of<StraightLevels>(to.format) : 255.f;
    stage_rows<HeadDim>(shared,
                        [&](uint32_t token, uint32_t byte) { return shrink.row(token, byte); });
    uint64_t failure;
    if (!find_ranges < HeadDim,
        Keys && !ByRow > (shared, reinterpret_cast<uint16_t*>(shared + 256 * HeadDim), s, levels,
                          failure)) {
      if (threadIdx.x == 0) report(p, failure);
      return;
    }
    quantise<HeadDim, Keys, ByRow>(shared, s, levels, q);
  } else {
    read_page<HeadDim, Keys, ByRow>(shrink.src, layout_of(from.format), shared, s, q);
  }
  lower_page<HeadDim, Keys, ByRow>(width, to.format, to.clipped != 0, shared, s, q);
  write_page<HeadDim, Keys, ByRow>(shrink.dst, layout_of(to.format), shared, s, q);
}

template <int HeadDim, bool Keys>
__device__ __forceinline__ void transcode(const ShrinkParams& p,
                                          const ShrinkRecord<HeadDim>& shrink, uint8_t* shared,
                                          SharedOf<HeadDim>& s) {
  const PageAtLevel& from = shrink.from;
  const PageAtLevel& to = shrink.to;
  if (from.format == to.format) {
    for (uint32_t o = 16 * threadIdx.x; o < to.bytes; o += 32 * HeadDim) {
      const uint8_t* at =
          from.format == kF16 ? shrink.row(o / (2 * HeadDim), o % (2 * HeadDim)) : shrink.src.at(o);
      *reinterpret_cast<uint4*>(shrink.dst.at(o)) = *reinterpret_cast<const uint4*>(at);
    }
    return;
  }
  if (!is<WrittenBy<Writer::kTranscode>>(to.format)) return;
  if constexpr (Keys) {
    if (is<IsByToken>(to.format)) return rewrite<HeadDim, true, true>(p, shrink, shared, s);
  }
  rewrite<HeadDim, Keys>(p, shrink, shared, s);
}

template <int HeadDim>
__device__ __forceinline__ void transcode_record(const ShrinkParams& p, uint8_t* shared) {
  __shared__ SharedOf<HeadDim> s;
  with_record<HeadDim>(p, [&](const ShrinkRecord<HeadDim>& shrink, auto keys) {
    transcode<HeadDim, decltype(keys)::value>(p, shrink, shared, s);
  });
}

}  // namespace ebb

EBB_KERNEL(transcode_d64, ebb::ShrinkParams, 128, 8) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::transcode_record<64>(p, shared);
}
EBB_KERNEL(transcode_d128, ebb::ShrinkParams, 256, 4) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::transcode_record<128>(p, shared);
}
EBB_KERNEL(transcode_d256, ebb::ShrinkParams, 512, 1) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::transcode_record<256>(p, shared);
}
