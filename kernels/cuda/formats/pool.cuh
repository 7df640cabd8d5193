// Where the records of a block lie, at every precision level (see kv/layout.rs).
//
// At level 0 a record is eight sub-records `[16 tokens][head_dim]` bf16, one in each sub-block
// (common/pages.cuh). At other levels records lie one right behind the other over the block's
// frames, those of 16 bit first, each in its page's format, in one part or two.
#pragma once
#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "../common/ptx.cuh"
#include "format.cuh"

namespace ebb {

// A page (layer, side) at a level ≥ 1.
struct PageAtLevel {
  uint32_t start;    // of its first head's record, in bytes of the block
  uint32_t bytes;    // of each record
  uint32_t format;   // PageFormat
  uint32_t clipped;  // whether its 2-bit codes are, which only shrinking needs to know
};
static_assert(sizeof(PageAtLevel) == 16);

struct KvPool {
  uint8_t* arena;
  const PageAtLevel* pages;  // [level - 1][layer * 2 + side]
  const uint32_t* frames;    // ids, of the blocks that the work names
  uint64_t frame_bytes;
  uint32_t page_count;  // layers * 2
  uint32_t kv_heads;
  uint32_t frames_per_sub_block;
  uint32_t records_per_frame;
};
static_assert(sizeof(KvPool) == 48);

// A record's bytes: the first `split` at `head`, the rest at `tail`. Parts begin and end at
// multiples of 16 bytes.
struct RecordBytes {
  uint8_t* head;
  uint8_t* tail;
  uint32_t split;
  uint32_t bytes;
  __device__ __forceinline__ uint8_t* at(uint32_t offset) const {
    return offset < split ? head + offset : tail + (offset - split);
  }
};

__device__ __forceinline__ PageAtLevel page_at(const KvPool& pool, uint32_t level, uint32_t page,
                                               int head_dim) {
  if (level == 0) return {0, 256u * head_dim, kF16, 0};
  return pool.pages[(level - 1) * pool.page_count + page];
}

// The record of a head of a page at a level ≥ 1; the block's frames begin at `first_frame`.
__device__ __forceinline__ RecordBytes record_bytes(const KvPool& pool, const PageAtLevel& page,
                                                    uint32_t head, uint32_t first_frame) {
  const uint32_t frame_bytes = static_cast<uint32_t>(pool.frame_bytes);
  const uint32_t start = page.start + head * page.bytes;
  const uint32_t frame = start / frame_bytes, offset = start - frame * frame_bytes;
  const uint32_t rest = frame_bytes - offset;
  RecordBytes r;
  r.bytes = page.bytes;
  r.split = page.bytes < rest ? page.bytes : rest;
  r.head = pool.arena + pool.frame_bytes * pool.frames[first_frame + frame] + offset;
  // A record that ends with its frame has no second part, and may be the block's last.
  r.tail = r.split < page.bytes
               ? pool.arena + pool.frame_bytes * pool.frames[first_frame + frame + 1]
               : r.head;
  return r;
}

// The sub-record of sub-block `i` of a 16-bit block.
__device__ __forceinline__ uint8_t* sub_record(const KvPool& pool, uint32_t record,
                                               uint32_t first_frame, uint32_t i,
                                               uint32_t sub_bytes) {
  const uint32_t slot = record / pool.records_per_frame;
  const uint32_t frame = pool.frames[first_frame + i * pool.frames_per_sub_block + slot];
  return pool.arena + pool.frame_bytes * frame +
         (record - slot * pool.records_per_frame) * sub_bytes;
}

}  // namespace ebb
