// What the kernels that finish and append heads are told, and where they append.
#pragma once
#include "../common/pages.cuh"
#include "heads.cuh"

namespace ebb {

struct RopeAppendParams {
  PageTable pages;
  HeadParams heads;
  const uint32_t* positions;     // [rows]
  const uint32_t* first_blocks;  // [rows]: of the row's sequence
  const uint32_t* row_count;     // rows past it are padding
  bf16* q;                       // [rows][q_heads * head_dim]
  uint32_t layer;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t reserved;
};
static_assert(sizeof(RopeAppendParams) == 144);

// Where a row's head of K or V goes, by what the step uploaded. Record (layer, side, KV head): K
// heads, then V heads, follow each other as they do in `qkv`.
__device__ __forceinline__ bf16* row_in_page(const RopeAppendParams& p, uint32_t row, uint32_t head,
                                             uint32_t head_dim) {
  const uint32_t row_bytes = head_dim * 2, position = p.positions[row];
  const RecordPlace place = record_place(p.pages, p.layer * 2 * p.kv_heads + head - p.q_heads,
                                         kSubBlockTokens * row_bytes);
  const uint32_t frame =
      sub_block_frame(p.pages, p.first_blocks[row], position / kSubBlockTokens, place.slot);
  return reinterpret_cast<bf16*>(
      frame_address(p.pages, frame, place.offset + position % kSubBlockTokens * row_bytes));
}

}  // namespace ebb
