// A shrink as the host lists it.
#pragma once
#include <type_traits>

#include "pool.cuh"
#include "quantise.cuh"

namespace ebb {

struct ShrinkJob {
  uint32_t from, to;        // precision levels
  uint32_t source, target;  // first frames, into KvPool::frames
  uint32_t records;         // to be shrunk, from the first on
};
static_assert(sizeof(ShrinkJob) == 20);

struct ShrinkParams {
  KvPool pool;
  const ShrinkJob* jobs;
  // [shrinks]: of the first record that has no codes, record << kRecordShift | why (quantise.cuh);
  // kNoFailure before.
  unsigned long long* failures;
};
static_assert(sizeof(ShrinkParams) == 64);

// A record and its shrink.
template <int HeadDim>
struct ShrinkRecord {
  const KvPool& pool;
  ShrinkJob job;
  uint32_t record;
  PageAtLevel from, to;
  RecordBytes src, dst;  // src: of a block at a level >= 1
  __device__ __forceinline__ ShrinkRecord(const ShrinkParams& p, uint32_t shrink, uint32_t record,
                                          uint32_t page, uint32_t head)
      : pool(p.pool),
        job(p.jobs[shrink]),
        record(record),
        from(page_at(pool, job.from, page, HeadDim)),
        to(page_at(pool, job.to, page, HeadDim)) {
    dst = record_bytes(pool, to, head, job.target);
    src = dst;
    if (job.from > 0) src = record_bytes(pool, from, head, job.source);
  }
  // A byte of a token's row, while the page is 16 bit.
  __device__ __forceinline__ uint8_t* row(uint32_t token, uint32_t byte) const {
    if (job.from > 0) return src.at(token * 2 * HeadDim + byte);
    return sub_record(pool, record, job.source, token / 16, 32 * HeadDim) +
           token % 16 * 2 * HeadDim + byte;
  }
};

// Calls `run` with the record of this CTA, and in a type whether it is of keys. Grid: (records of a
// block, shrinks).
template <int HeadDim, class Run>
__device__ __forceinline__ void with_record(const ShrinkParams& p, Run run) {
  const uint32_t record = blockIdx.x, page = record / p.pool.kv_heads,
                 head = record - page * p.pool.kv_heads;
  // The others are of layers whose window the block has left.
  if (record >= p.jobs[blockIdx.y].records) return;
  const ShrinkRecord<HeadDim> shrink(p, blockIdx.y, record, page, head);
  if (page % 2 == 0)
    run(shrink, std::true_type());
  else
    run(shrink, std::false_type());
}

// One thread tells that the record of this CTA has no codes.
__device__ __forceinline__ void report(const ShrinkParams& p, uint64_t failure) {
  atomicMin(p.failures + blockIdx.y,
            static_cast<unsigned long long>(blockIdx.x) << kRecordShift | failure);
}

// What a shrink that has not failed reports.
constexpr unsigned long long kNoFailure = ~0ull;

}  // namespace ebb
