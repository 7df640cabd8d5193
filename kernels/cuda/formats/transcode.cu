// Shrinks: every record of a block read in its present format and written in its next one, to new frames. The bytes are those of
// the CPU's codecs (formats/), to the bit.
//
// A CTA a record. Low-bit records never pass shared memory, except for kitty's slabs; 16-bit rows are staged there, for the minima
// and maxima, and so that a matrix load hands them out in the plane's order.
#include "page.cuh"
#include "shrink.cuh"

namespace ebb {

struct TranscodeParams {
  KvPool pool;
  const ShrinkJob* jobs;
  // [shrinks]: of the first record that has no codes, record << kRecordShift | why (quantise.cuh); kNoFailure before.
  unsigned long long* failures;
};
static_assert(sizeof(TranscodeParams) == 64);

template <int HeadDim, bool Keys>
__device__ __forceinline__ void transcode(const TranscodeParams& p, uint8_t* shared, PageShared& s, uint32_t record, uint32_t page, uint32_t head) {
  const KvPool& pool = p.pool;
  const ShrinkJob job = p.jobs[blockIdx.y];
  const PageOfPosition from = page_of(pool, job.from, page, HeadDim), to = page_of(pool, job.to, page, HeadDim);
  const RecordBytes dst = record_bytes(pool, to, head, job.target);
  RecordBytes src = dst;
  if (job.from > 0) src = record_bytes(pool, from, head, job.source);
  constexpr uint32_t kSubBytes = 32 * HeadDim;
  auto row = [&](uint32_t token, uint32_t byte) -> uint8_t* {
    if (job.from > 0) return src.at(token * 2 * HeadDim + byte);
    return sub_record(pool, record, job.source, token / 16, kSubBytes) + token % 16 * 2 * HeadDim + byte;
  };
  if (from.format == to.format) {
    for (uint32_t o = 16 * threadIdx.x; o < to.bytes; o += 32 * HeadDim) {
      const uint8_t* at = from.format == kF16 ? row(o / (2 * HeadDim), o % (2 * HeadDim)) : src.at(o);
      *reinterpret_cast<uint4*>(dst.at(o)) = *reinterpret_cast<const uint4*>(at);
    }
    return;
  }
  if (from.format == kF16) {
    stage_rows<HeadDim>(shared, row);
    uint64_t failure;
    if (!encode_rows<HeadDim, Keys>(dst, to.format, shared, s, failure) && threadIdx.x == 0) {
      atomicMin(p.failures + blockIdx.y, static_cast<unsigned long long>(record) << kRecordShift | failure);
    }
    return;
  }
  Codes q;
  read_page<HeadDim, Keys>(src, from.format, shared, s, q);
  lower_page<HeadDim, Keys>(from.format, to.format, s, q);
  write_page<HeadDim, Keys>(dst, to.format, shared, s, q);
}

template <int HeadDim>
__device__ __forceinline__ void transcode_record(const TranscodeParams& p, uint8_t* shared) {
  __shared__ PageShared s;
  const uint32_t record = blockIdx.x, page = record / p.pool.kv_heads, head = record - page * p.pool.kv_heads;
  if (page % 2 == 0) {
    transcode<HeadDim, true>(p, shared, s, record, page, head);
  } else {
    transcode<HeadDim, false>(p, shared, s, record, page, head);
  }
}

}  // namespace ebb

// Grid: (records of a block, shrinks).
EBB_KERNEL(transcode_d64, ebb::TranscodeParams, 128, 8) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::transcode_record<64>(p, shared);
}
EBB_KERNEL(transcode_d128, ebb::TranscodeParams, 256, 4) {
  EBB_DYNAMIC_SHARED(shared);
  ebb::transcode_record<128>(p, shared);
}
