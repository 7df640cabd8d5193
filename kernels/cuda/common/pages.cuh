// Where a 16-bit sub-record lies: the device side of the frame layout (see kv/geometry.rs).
//
// A sub-block (16 tokens) owns `frames_per_sub_block` frames; record r = (layer * 2 + side) *
// kv_heads + head lies in its frame r / records_per_frame at (r % records_per_frame) * record_bytes
// and is [16 tokens][head_dim] bf16. Layers are counted as their pages lie: those with a sliding
// window last.
#pragma once
#include <cstdint>

namespace ebb {

constexpr int kSubBlockTokens = 16;
constexpr int kSubBlocks = 8;  // per block of 128 tokens

// One block of a sequence.
struct BlockRef {
  uint32_t first_frame;  // into PageTable::frames
  uint32_t block;        // where what else is known of it lies
};

// Page tables, in device memory. Read by every layer, changed between steps (ops/scatter.cu).
struct PageTable {
  uint8_t* arena;
  const BlockRef* blocks;
  const uint32_t* frames;
  uint64_t frame_bytes;
  uint32_t frames_per_sub_block;
  uint32_t records_per_frame;
};
static_assert(sizeof(PageTable) == 40);

// Place of a record inside every 16-bit sub-block.
struct RecordPlace {
  uint32_t slot;    // frame of the sub-block
  uint32_t offset;  // bytes into the frame
};

__device__ __forceinline__ RecordPlace record_place(const PageTable& t, uint32_t record,
                                                    uint32_t record_bytes) {
  uint32_t slot = record / t.records_per_frame;
  return {slot, (record - slot * t.records_per_frame) * record_bytes};
}

// Frame id of `slot` in sub-block `sub_block` of the sequence whose blocks start at `first_block`.
__device__ __forceinline__ uint32_t sub_block_frame(const PageTable& t, uint32_t first_block,
                                                    uint32_t sub_block, uint32_t slot) {
  uint32_t first = __ldg(&t.blocks[first_block + sub_block / kSubBlocks].first_frame);
  return __ldg(&t.frames[first + (sub_block % kSubBlocks) * t.frames_per_sub_block + slot]);
}

__device__ __forceinline__ uint8_t* frame_address(const PageTable& t, uint32_t frame,
                                                  uint32_t offset) {
  return t.arena + static_cast<uint64_t>(frame) * t.frame_bytes + offset;
}

// The same place as a row of the arena seen as rows of `row_bytes` bytes, the view that tensor maps
// have of it.
__device__ __forceinline__ uint32_t frame_row(const PageTable& t, uint32_t frame, uint32_t offset,
                                              uint32_t row_bytes) {
  return frame * static_cast<uint32_t>(t.frame_bytes / row_bytes) + offset / row_bytes;
}

}  // namespace ebb
