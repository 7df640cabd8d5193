// See parts.cuh.
#include "parts.cuh"

// Grid: any number of CTAs, which take units and heads in turn.
EBB_KERNEL(parts_decode, ebb::PartsParams, 256, 2) {
  EBB_DYNAMIC_SHARED(bytes);
  const ebb::PartsShared shared(bytes, p.head_dim);
  const ebb::HeadSets heads(p);
  const uint32_t of_unit = p.kv_heads * heads.sets, items = *p.unit_count * of_unit;
  for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const ebb::DecodeUnit unit = p.units[item / of_unit];
    ebb::PartsWork w = {};
    w.row = unit.row;
    w.rows = 1;
    // A window begins no later than the unit.
    w.position = unit.end - 1;
    w.begin = unit.begin;
    w.end = unit.end;
    w.first_block = unit.first_block;
    heads.take(w, item % of_unit);
    ebb::PartsSums sums;
    ebb::attend_parts(p, w, shared, sums);
    ebb::store_parts(p, w, shared, sums, unit.splits == 1, unit.partial + unit.split);
    __syncthreads();
  }
}

// Grid: (decoding rows, query heads).
EBB_KERNEL(parts_merge, ebb::PartsParams, 256, 2) {
  if (blockIdx.x >= *p.row_count) return;
  const ebb::DecodeRow row = p.rows[blockIdx.x];
  if (row.splits == 1) return;
  const uint32_t head = blockIdx.y, channel = 2 * threadIdx.x;
  float most = ebb::kNoScore;
  for (uint32_t i = 0; i < row.splits; i++)
    most = fmaxf(most, p.partial_ml[static_cast<uint64_t>(row.partial + i) * p.q_heads + head].x);
  float sum = p.scores.sinks == nullptr ? 0.f : ebb::exponential_of_sink(p.scores, head, most);
  float2 o = make_float2(0.f, 0.f);
  if (channel >= p.head_dim) return;
  for (uint32_t i = 0; i < row.splits; i++) {
    const uint64_t at = static_cast<uint64_t>(row.partial + i) * p.q_heads + head;
    const float2 ml = p.partial_ml[at];
    const float scale = ebb::ex2(ml.x - most);
    sum = fmaf(ml.y, scale, sum);
    const float2 part = *reinterpret_cast<const float2*>(p.partial_o + at * p.head_dim + channel);
    o.x = fmaf(part.x, scale, o.x);
    o.y = fmaf(part.y, scale, o.y);
  }
  const float inverse = 1.f / sum;
  const uint64_t to = (static_cast<uint64_t>(row.row) * p.q_heads + head) * p.head_dim + channel;
  *reinterpret_cast<uint32_t*>(p.out + to) = ebb::pack_bf16(o.x * inverse, o.y * inverse);
}

// Grid: (tiles * tile_groups, KV heads * sets of query heads).
EBB_KERNEL(parts_prefill, ebb::PartsParams, 256, 2) {
  EBB_DYNAMIC_SHARED(bytes);
  const ebb::PartsShared shared(bytes, p.head_dim);
  const ebb::HeadSets heads(p);
  const ebb::PrefillTile tile = p.tiles[blockIdx.x / p.tile_groups];
  ebb::PartsWork w = {};
  heads.take(w, blockIdx.y);
  // As many rows as every set of heads can take.
  const uint32_t rows = max(ebb::kPartsQueries / heads.group, 1u);
  const uint32_t first = blockIdx.x % p.tile_groups * rows;
  if (first >= tile.rows) return;
  w.row = tile.first_row + first;
  w.rows = min(rows, tile.rows - first);
  w.position = tile.position + first;
  w.begin = ebb::first_seen(p.scores, w.position);
  w.end = w.position + w.rows;
  w.first_block = tile.first_block;
  ebb::PartsSums sums;
  ebb::attend_parts(p, w, shared, sums);
  ebb::store_parts(p, w, shared, sums, true, 0);
}
