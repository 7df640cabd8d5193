// Shrunk blocks of one layer back to 16 bit, into scratch frames that the 16-bit attention kernels
// read: bf16, to nearest, of what the CPU's codecs dequantise.
#include "formats.cuh"
#include "plane.cuh"
#include "shrink.cuh"

namespace ebb {

struct DequantiseJob {
  uint32_t level;   // of precision, of the block
  uint32_t source;  // first frame, into KvPool::frames
  // first of its scratch frames, an id; they are neighbours, `scratch_slots` a sub-block
  uint32_t target;
  uint32_t shrink;  // the shrink of this step that wrote it, or kNoShrink
};
static_assert(sizeof(DequantiseJob) == 16);
constexpr uint32_t kNoShrink = ~0u;

struct DequantiseParams {
  KvPool pool;
  const DequantiseJob* jobs;
  const ShrinkJob* shrinks;
  const unsigned long long* failures;
  uint32_t layer;
  uint32_t scratch_slots;  // frames of a sub-block, of which one layer's records never fill more
};
static_assert(sizeof(DequantiseParams) == 80);

// What knows heads of more than 128 channels: of formats with a dense plane of codes.
struct PlaneDequantiserOf {
  template <class Codec>
  static constexpr bool kIsPlane = std::is_same<Codec, PlaneDequantiser<false>>::value ||
                                   std::is_same<Codec, PlaneDequantiser<true>>::value;
  template <PageFormat F>
  using type = std::conditional_t<kIsPlane<typename Format<F>::Dequantiser>,
                                  typename Format<F>::Dequantiser, void>;
};

// A record of any format below 16 bit to staged rows.
template <int HeadDim, bool Keys>
__device__ __forceinline__ void dequantise_rows(const RecordBytes& src, uint32_t format,
                                                uint8_t* staged, SharedOf<HeadDim>& s) {
  const Layout layout = layout_of(format);
  using Of = std::conditional_t<HeadDim <= 128, DequantiserOf, PlaneDequantiserOf>;
  with_codec<Of, Keys>(format, [&](auto dequantiser) {
    decltype(dequantiser)::template read<HeadDim, Keys>(src, layout, staged, s);
  });
}

template <int HeadDim, bool Keys>
__device__ __forceinline__ void dequantise_record(const DequantiseParams& p, uint8_t* shared,
                                                  SharedOf<HeadDim>& s, uint32_t page,
                                                  uint32_t head) {
  const KvPool& pool = p.pool;
  const DequantiseJob job = p.jobs[blockIdx.y];
  const uint32_t record = page * pool.kv_heads + head;
  // Of a shrink that failed the old frames are read.
  uint32_t level = job.level, source = job.source;
  if (job.shrink != kNoShrink && p.failures[job.shrink] != kNoFailure) {
    level = p.shrinks[job.shrink].from;
    source = p.shrinks[job.shrink].source;
  }
  constexpr uint32_t kRowBytes = 2 * HeadDim, kSubBytes = 16 * kRowBytes;
  const PageAtLevel from = page_at(pool, level, page, HeadDim);
  RecordBytes src = {};
  if (level > 0) src = record_bytes(pool, from, head, source);
  if (from.format != kF16) dequantise_rows<HeadDim, Keys>(src, from.format, shared, s);
  const uint32_t slot = record / pool.records_per_frame;
  uint8_t* const out = pool.arena + pool.frame_bytes * (job.target + slot % p.scratch_slots) +
                       (record - slot * pool.records_per_frame) * kSubBytes;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t v = threadIdx.x + k * 2 * HeadDim, token = v / (HeadDim / 8),
                   chunk = v % (HeadDim / 8);
    const uint8_t* at = shared + staged_offset<HeadDim>(token, chunk);
    if (from.format == kF16) {
      at = level > 0 ? src.at(token * kRowBytes + 16 * chunk)
                     : sub_record(pool, record, source, token / 16, kSubBytes) +
                           token % 16 * kRowBytes + 16 * chunk;
    }
    uint8_t* to = out + pool.frame_bytes * (token / 16 * p.scratch_slots) + token % 16 * kRowBytes +
                  16 * chunk;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(at);
  }
}

template <int HeadDim>
__device__ __forceinline__ void dequantise_record_of(const DequantiseParams& p, uint8_t* shared) {
  __shared__ SharedOf<HeadDim> s;
  const uint32_t side = blockIdx.x / p.pool.kv_heads, head = blockIdx.x - side * p.pool.kv_heads;
  if (side == 0) {
    dequantise_record<HeadDim, true>(p, shared, s, 2 * p.layer, head);
  } else {
    dequantise_record<HeadDim, false>(p, shared, s, 2 * p.layer + 1, head);
  }
}

}  // namespace ebb

// Grid: (KV heads of both sides, blocks).
EBB_KERNEL(dequantise_pages_d64, ebb::DequantiseParams, 128, 8) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::dequantise_record_of<64>(p, shared);
}
EBB_KERNEL(dequantise_pages_d128, ebb::DequantiseParams, 256, 4) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::dequantise_record_of<128>(p, shared);
}
EBB_KERNEL(dequantise_pages_d256, ebb::DequantiseParams, 512, 1) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::dequantise_record_of<256>(p, shared);
}
