// Shrinks of 16-bit pages to static formats, which no page shrinks through: polar keys, groups of
// 32, and the papers' ablations. The bytes are those of the CPU's codecs
// (formats/), to the bit. A CTA a record, as in transcode.cu, beside which this runs: it makes the
// records that the other leaves out.
#include "formats.cuh"
#include "plane.cuh"
#include "shrink.cuh"

namespace ebb {

// Writes the rows that are staged in `scratch`. False if they have no codes; then thread 0 has the
// failure, and what was written means nothing.
template <int HeadDim, bool Keys>
__device__ __forceinline__ bool encode_rows(const RecordBytes& dst, uint32_t format,
                                            uint8_t* scratch, PageShared& s, uint64_t& failure) {
  const Layout layout = layout_of(format);
  bool done = true;
  with_codec<EncoderOf, Keys>(format, [&](auto encoder) {
    done = decltype(encoder)::template write<HeadDim, Keys>(dst, layout, scratch, s, failure);
  });
  return done;
}

template <int HeadDim, bool Keys>
__device__ __forceinline__ void encode(const ShrinkParams& p, const ShrinkRecord<HeadDim>& shrink,
                                       uint8_t* shared, PageShared& s) {
  if (is<WrittenBy<Writer::kTranscode>>(shrink.to.format) || shrink.from.format != kF16) return;
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
