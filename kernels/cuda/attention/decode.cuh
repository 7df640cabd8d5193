// Decode attention over paged 16-bit KV: one query row per sequence, any mixture of lengths in one
// launch.
//
// Work is a list of units, one unit = (sequence, range of tokens, KV head). Unit boundaries follow
// from the sequence's own length (the host plans them), so a result does not depend on the batch.
// CTAs take units from a counter, one ahead of the one they work on; inside a unit, warp w owns the
// 16-token tiles w, w + WARPS, ... and streams them through a ring of its own, which runs on into
// the next unit: no barrier stands between a warp and its loads. The warps of a unit merge in warp
// order, the units of a sequence in unit order by whichever CTA finishes last.
//
// S^T = K Q^T and O^T = V^T P^T with m16n8k16: the cache is the A operand (16 tokens or 16 channels
// high), the query heads that share the KV head are the n = 8 side. tile.cuh has how tiles lie in
// shared memory.
#pragma once
#include "../common/kernel.cuh"
#include "../common/pages.cuh"
#include "../common/ptx.cuh"
#include "scores.cuh"
#include "tile.cuh"

namespace ebb {

// Tokens `begin .. end` of one sequence; both sides of the cache. Planned on the host, serves every
// layer and KV head.
struct DecodeUnit {
  uint32_t row;          // of q and out
  uint32_t first_block;  // of the sequence, into PageTable::blocks
  // the first token that the sequence's first row sees of the unit's blocks: but for windows a
  // multiple of 128
  uint32_t begin;
  uint32_t end;      // exclusive; > begin
  uint32_t split;    // index of this unit among the sequence's
  uint32_t splits;   // 1: the unit writes `out` itself
  uint32_t partial;  // row of partial_o and partial_ml of split 0
  union {
    uint32_t counter;  // row of `counters`
    // of decode_mixed.cuh instead: rows of the sequence << 24 | tokens behind `end`, at most 15, <<
    // 16 | tokens from `begin` on that its last row does not see << 12 | first column
    uint32_t columns;
  };
};
static_assert(sizeof(DecodeUnit) == 32);

// A row of a sequence that decodes, and where its units leave their results.
struct DecodeRow {
  uint32_t row;      // of out
  uint32_t splits;   // 1: its unit wrote the result
  uint32_t partial;  // row of partial_o and partial_ml of split 0
  uint32_t reserved;
};
static_assert(sizeof(DecodeRow) == 16);

struct DecodeParams {
  PageTable pages;
  const bf16* q;  // [rows][q_stride], heads of head_dim channels from the start
  bf16* out;      // [rows][q_heads * head_dim]
  const DecodeUnit* units;
  const uint32_t* unit_count;
  float* partial_o;    // [partials][q_heads][head_dim], not divided by the sum
  float2* partial_ml;  // [partials][q_heads]: maximum (base 2, scaled) and sum
  // [sequences][kv_heads * ceil(group / 8)]: units done; zero between launches
  uint32_t* counters;
  // [2]: units handed out beyond the first of each CTA, CTAs done; zero between launches
  uint32_t* work;
  uint32_t layer;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t q_stride;
  float scale_log2;    // what scores are multiplied with, times log2(e)
  uint32_t units_max;  // room in `units`
};
static_assert(sizeof(DecodeParams) == 128);

struct RingDecodeParams {
  DecodeParams decode;
  ScoreParams scores;
};
static_assert(sizeof(RingDecodeParams) == 152);

// Where the first tile of a unit begins that begins at `begin`. ANY: see scores.cuh.
template <bool ANY>
__device__ __forceinline__ uint32_t tiles_begin(uint32_t begin) {
  return ANY ? begin / kSubBlockTokens * kSubBlockTokens : begin;
}

template <int D, int WARPS, int STAGES, bool ANY>
struct DecodeAttention {
  static constexpr int kThreads = WARPS * 32;
  static constexpr int kHeads = 8;                         // query heads a unit serves
  static constexpr int kRecord = kSubBlockTokens * D * 2;  // bytes of one side of a tile
  static constexpr int kSide = Tile<D>::kBytes;            // the same in shared memory
  static constexpr int kRow = Tile<D>::kRow;
  static constexpr bool kSwizzled = Tile<D>::kSwizzled;
  static constexpr int kTile = 2 * kSide;  // K, then V
  static constexpr int kChunks = D / 8;    // 16-byte chunks of a row
  static constexpr int kSteps = D / 16;    // k16 steps over the channels
  // floats; the padding spreads the banks
  static constexpr int kMergeRow = D + 4;
  static constexpr int kRingBytes = WARPS * STAGES * kTile;
  // float2 [WARPS][8]: maximum and sum
  static constexpr int kMlOffset = kRingBytes;
  // u32 [WARPS]: where each warp's output lies
  static constexpr int kSlotOffset = kMlOffset + WARPS * kHeads * 8;
  static constexpr int kNextOffset = kSlotOffset + WARPS * 4;  // u32: the unit after the next
  // u32: this CTA finished the sequence of its previous unit
  static constexpr int kLastOffset = kNextOffset + 4;
  static constexpr int kSharedBytes = kNextOffset + 16;
  static_assert(kHeads * kMergeRow * 4 <= kTile,
                "a warp's output takes the slot it has just emptied");
  static_assert(STAGES >= 2);

  const DecodeParams& p;
  const ScoreParams& scores;
  uint8_t* shared;
  uint32_t ring;  // shared address of this warp's ring
  int lane, warp;
  uint64_t policy;
  uint32_t unit_heads, groups, total;

  uint32_t unit, next;  // being consumed; after it (>= total: none)

  // Producer: up to STAGES tiles ahead of the consumer, in `unit` or in `next`.
  bool p_in_next;
  uint32_t p_begin, p_end, p_first_block;
  uint32_t p_tile, p_tiles;  // of this warp
  // ring slot filled next; tiles copied or under way and not consumed
  uint32_t p_slot, ahead;
  // lane i: frames of this warp's i-th tile of the current batch of 32
  uint32_t frame_k, frame_v;
  RecordPlace place_k, place_v;
  uint32_t copy_offset;  // of this lane's first chunk of a side, where lanes share rows evenly

  // The previous unit of a split sequence, whose arrival this CTA has counted: every thread knows
  // the unit, thread 0 the count.
  uint32_t pending, arrived;

  __device__ __forceinline__ DecodeAttention(const RingDecodeParams& params, uint8_t* sm)
      : p(params.decode),
        scores(params.scores),
        shared(sm),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {
    ring = smem_address(sm) + warp * (STAGES * kTile);
    policy = policy_evict_first();
    groups = (p.q_heads / p.kv_heads + kHeads - 1) / kHeads;
    unit_heads = p.kv_heads * groups;
    total = *p.unit_count * unit_heads;
    uint32_t chunk = lane % kChunks, row = lane / kChunks;
    copy_offset = Tile<D>::at(row, chunk);
    p_slot = ahead = 0;
    frame_k = frame_v = 0;
    pending = kNone;
    arrived = 0;
  }

  static constexpr uint32_t kNone = ~0u;

  // Tiles of a unit that belong to this warp.
  __device__ __forceinline__ uint32_t my_tiles(uint32_t begin, uint32_t end) const {
    uint32_t tiles = (end - begin + kSubBlockTokens - 1) / kSubBlockTokens;
    return tiles > static_cast<uint32_t>(warp) ? (tiles - warp + WARPS - 1) / WARPS : 0;
  }

  // Moves the producer to the start of a unit.
  __device__ __forceinline__ void open(uint32_t u) {
    const uint32_t item = u / unit_heads, head = (u - item * unit_heads) / groups;
    const uint4 d = __ldg(reinterpret_cast<const uint4*>(&p.units[item]));
    p_first_block = d.y;
    p_begin = tiles_begin<ANY>(d.z);
    p_end = d.w;
    p_tile = 0;
    p_tiles = my_tiles(p_begin, p_end);
    place_k = record_place(p.pages, (p.layer * 2) * p.kv_heads + head, kRecord);
    place_v = record_place(p.pages, (p.layer * 2 + 1) * p.kv_heads + head, kRecord);
  }

  // Starts the copy of this warp's next tile, if there is one in `unit` or `next`.
  __device__ __forceinline__ void produce() {
    if (p_tile == p_tiles) {
      if (p_in_next || next >= total) return;
      p_in_next = true;
      open(next);
      if (p_tiles == 0) return;
    }
    if (p_tile % 32 == 0) {
      const uint32_t mine = p_tile + lane;
      if (mine < p_tiles) {
        const uint32_t sub_block = p_begin / kSubBlockTokens + warp + mine * WARPS;
        frame_k = sub_block_frame(p.pages, p_first_block, sub_block, place_k.slot);
        frame_v = sub_block_frame(p.pages, p_first_block, sub_block, place_v.slot);
      }
    }
    const uint32_t fk = __shfl_sync(~0u, frame_k, p_tile % 32),
                   fv = __shfl_sync(~0u, frame_v, p_tile % 32);
    const uint8_t* k = frame_address(p.pages, fk, place_k.offset) + lane * 16;
    const uint8_t* v = frame_address(p.pages, fv, place_v.offset) + lane * 16;
    const uint32_t slot = ring + p_slot * kTile;
    const uint32_t valid = p_end - (p_begin + (warp + p_tile * WARPS) * kSubBlockTokens);
    if constexpr (kSwizzled && 32 % kChunks == 0) {
      constexpr int kRows = 32 / kChunks;  // rows a warp copies at once
#pragma unroll
      for (int i = 0; i < kSubBlockTokens / kRows; i++) {
        const uint32_t dst = slot + i * kRows * 128 + (copy_offset ^ ((i * kRows % 8) * 16));
        if (valid >= kSubBlockTokens) {
          cp_async16(dst, k + i * 512, policy);
          cp_async16(dst + kSide, v + i * 512, policy);
        } else {  // rows past the end hold anything: read none of it
          const uint32_t bytes = i * kRows + lane / kChunks < valid ? 16 : 0;
          cp_async16_zfill(dst, k + i * 512, bytes, policy);
          cp_async16_zfill(dst + kSide, v + i * 512, bytes, policy);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * D / 32; i++) {
        const uint32_t at = i * 32 + lane, row = at / kChunks;
        const uint32_t dst = slot + Tile<D>::at(row, at % kChunks);
        const uint32_t bytes = row < valid ? 16 : 0;
        cp_async16_zfill(dst, k + i * 512, bytes, policy);
        cp_async16_zfill(dst + kSide, v + i * 512, bytes, policy);
      }
    }
    cp_async_commit();
    p_tile++;
    ahead++;
    p_slot = p_slot + 1 == STAGES ? 0 : p_slot + 1;
  }

  // Fills the ring, as far as there are tiles.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int i = ahead; i < STAGES; i++) produce();
  }

  // Waits for the oldest tile in the ring.
  __device__ __forceinline__ void wait_oldest() {
    static_assert(STAGES <= 6);
    if (STAGES >= 6 && ahead == 6)
      cp_async_wait<5>();
    else if (STAGES >= 5 && ahead == 5)
      cp_async_wait<4>();
    else if (STAGES >= 4 && ahead == 4)
      cp_async_wait<3>();
    else if (STAGES >= 3 && ahead == 3)
      cp_async_wait<2>();
    else if (ahead == 2)
      cp_async_wait<1>();
    else
      cp_async_wait<0>();
    __syncwarp();
  }

  __device__ __forceinline__ void run() {
    volatile uint32_t* shared_next = reinterpret_cast<volatile uint32_t*>(shared + kNextOffset);
    unit = blockIdx.x;
    if (unit < total) {
      if (threadIdx.x == 0) *shared_next = atomicAdd(p.work, 1) + gridDim.x;
      next = kNone;
      p_in_next = false;
      open(unit);
      fill();
      __syncthreads();
      next = *shared_next;
      // all have read it: thread 0 writes the one after it while others may not have begun
      __syncthreads();
      uint32_t slot = 0;
#pragma unroll 1
      while (unit < total) slot = consume(slot);
      finish();
    }
    // The last CTA leaves the counters as it found them.
    if (threadIdx.x == 0 && atomicInc(p.work + 1, gridDim.x - 1) == gridDim.x - 1) *p.work = 0;
  }

  // Attends to the tiles of `unit`, merges, and moves on to `next`. `slot`: of this warp's first
  // tile; returns that of the next unit.
  __device__ __forceinline__ uint32_t consume(uint32_t slot) {
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t row8 = lane % 8, mat = lane / 8;
    // Row and first chunk of this lane's ldmatrix addresses: K's matrices are (tokens 0-7, 8-15) x
    // (channels 0-7, 8-15), V's, transposed, (channels 0-7, 8-15) x (tokens 0-7, 8-15).
    const uint32_t k_offset =
        ((mat & 1) * 8 + row8) * kRow + (((mat >> 1) ^ (kSwizzled ? row8 : 0)) * 16);
    const uint32_t v_offset =
        ((mat >> 1) * 8 + row8) * kRow + (((mat & 1) ^ (kSwizzled ? row8 : 0)) * 16);
    const uint32_t group = p.q_heads / p.kv_heads;

    // Asked for now, needed after the merge.
    uint32_t after_next = kNone;
    if (threadIdx.x == 0 && next < total) after_next = atomicAdd(p.work, 1) + gridDim.x;

    const uint32_t item = unit / unit_heads, unit_head = unit - item * unit_heads;
    const uint32_t kv_head = unit_head / groups, sub = unit_head - kv_head * groups;
    const uint32_t first_head = kv_head * group + sub * kHeads;
    const uint32_t heads = min(group - sub * kHeads, static_cast<uint32_t>(kHeads));
    const DecodeUnit u = p.units[item];
    const uint32_t begin = tiles_begin<ANY>(u.begin), tiles = my_tiles(begin, u.end);

    uint32_t q[kSteps][2];  // B operand: head g, channels 16s + 2t (+1) and + 8
    float o[kSteps][4];     // accumulator of O^T: channels 16s + g and + 8, heads 2t and 2t + 1
    // of heads 2t and 2t + 1; the sums of this lane's tokens
    float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f;
    const bf16* q_row = p.q + static_cast<uint64_t>(u.row) * p.q_stride + (first_head + g) * D;
#pragma unroll
    for (int s = 0; s < kSteps; s++) {
#pragma unroll
      for (int r = 0; r < 2; r++)
        q[s][r] = g < heads
                      ? __ldcg(reinterpret_cast<const uint32_t*>(q_row + 16 * s + 8 * r + 2 * t))
                      : 0u;
      o[s][0] = o[s][1] = o[s][2] = o[s][3] = 0.f;
    }

#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; tile++) {
      wait_oldest();
      const uint32_t k_tile = ring + slot * kTile, v_tile = k_tile + kSide;
      float s0[4] = {0.f, 0.f, 0.f, 0.f}, s1[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int s = 0; s < kSteps / 2 * 2; s += 2) {
        uint32_t a[4], b[4];
        ldmatrix_x4(a, k_tile + Tile<D>::step(s) + (k_offset ^ Tile<D>::flip(s)));
        ldmatrix_x4(b, k_tile + Tile<D>::step(s + 1) + (k_offset ^ Tile<D>::flip(s + 1)));
        mma_bf16(s0, a, q[s][0], q[s][1]);
        mma_bf16(s1, b, q[s + 1][0], q[s + 1][1]);
      }
      if constexpr (kSteps % 2 == 1) {
        constexpr int s = kSteps - 1;
        uint32_t a[4];
        ldmatrix_x4(a, k_tile + Tile<D>::step(s) + (k_offset ^ Tile<D>::flip(s)));
        mma_bf16(s0, a, q[s][0], q[s][1]);
      }
      // Scores of tokens g (0, 1) and g + 8 (2, 3), heads 2t and 2t + 1, in base 2.
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; i++) x[i] = (s0[i] + s1[i]) * p.scale_log2;
      if (ANY && scores.cap != 0.f) {
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = capped(scores, x[i]);
      }
      const uint32_t first = begin + (warp + tile * WARPS) * kSubBlockTokens;
      // A unit's first tile has a token that is seen, so the maximum is a number from there on.
      if (ANY && first < u.begin) {
        if (first + g < u.begin) x[0] = x[1] = -INFINITY;
        if (first + g + 8 < u.begin) x[2] = x[3] = -INFINITY;
      }
      if (first + kSubBlockTokens > u.end) {
        if (first + g >= u.end) x[0] = x[1] = -INFINITY;
        if (first + g + 8 >= u.end) x[2] = x[3] = -INFINITY;
      }
      // The reference moves only when a score would leave it by more than 2^8: the sums and
      // products keep their precision, and most tiles need no maximum across lanes.
      float x0 = fmaxf(x[0], x[2]), x1 = fmaxf(x[1], x[3]);
      if (__any_sync(~0u, x0 > m0 + 8.f || x1 > m1 + 8.f)) {
#pragma unroll
        for (int k = 4; k < 32; k <<= 1) {
          x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, k));
          x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, k));
        }
        x0 = fmaxf(x0, m0);
        x1 = fmaxf(x1, m1);
        const float e0 = ex2(m0 - x0), e1 = ex2(m1 - x1);
        m0 = x0;
        m1 = x1;
        l0 *= e0;
        l1 *= e1;
#pragma unroll
        for (int s = 0; s < kSteps; s++) {
          o[s][0] *= e0;
          o[s][1] *= e1;
          o[s][2] *= e0;
          o[s][3] *= e1;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i++) x[i] = ex2(x[i] - (i % 2 ? m1 : m0));
      l0 += x[0] + x[2];
      l1 += x[1] + x[3];
      // From the accumulator layout (token, head pair) to the B operand (token pair, head).
      const uint32_t p0 = movmatrix_trans(pack_bf16(x[0], x[1])),
                     p1 = movmatrix_trans(pack_bf16(x[2], x[3]));
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
        uint32_t a[4];
        ldmatrix_x4_trans(a, v_tile + Tile<D>::step(s) + (v_offset ^ Tile<D>::flip(s)));
        mma_bf16(o[s], a, p0, p1);
      }
      __syncwarp();
      ahead--;
      if (tile + 1 < tiles) {  // the last slot takes the output and is refilled after the merge
        produce();
        slot = slot + 1 == STAGES ? 0 : slot + 1;
      }
    }
    merge(u, unit_head, first_head, heads, tiles > 0, slot, after_next, m0, m1, l0, l1, o);
    if (tiles > 0) slot = slot + 1 == STAGES ? 0 : slot + 1;
    if (!p_in_next && unit < total) open(unit);
    p_in_next = false;
    if (unit < total) fill();
    return slot;
  }

  // Merges the warps' outputs of a unit, in warp order, and writes the result or, for a split
  // sequence, its partial; the CTA that finishes a sequence's last unit merges those, in unit
  // order.
  __device__ __forceinline__ void merge(const DecodeUnit& u, uint32_t unit_head,
                                        uint32_t first_head, uint32_t heads, bool any,
                                        uint32_t slot, uint32_t after_next, float m0, float m1,
                                        float l0, float l1, const float (&o)[kSteps][4]) {
    const int g = lane / 4, t = lane % 4;
    float2* ml = reinterpret_cast<float2*>(shared + kMlOffset);
    uint32_t* slots = reinterpret_cast<uint32_t*>(shared + kSlotOffset);
#pragma unroll
    for (int k = 4; k < 32; k <<= 1) {
      l0 += __shfl_xor_sync(~0u, l0, k);
      l1 += __shfl_xor_sync(~0u, l1, k);
    }
    if (any) {
      float* mine = reinterpret_cast<float*>(shared + (warp * STAGES + slot) * kTile);
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
          mine[(2 * t + r % 2) * kMergeRow + 16 * s + g + r / 2 * 8] = o[s][r];
      }
    }
    if (g == 0) {
      ml[warp * kHeads + 2 * t] = make_float2(m0, l0);
      ml[warp * kHeads + 2 * t + 1] = make_float2(m1, l1);
    }
    if (lane == 0) slots[warp] = slot;
    if (threadIdx.x == 0) reinterpret_cast<uint32_t*>(shared + kNextOffset)[0] = after_next;
    publish_arrival();
    __syncthreads();
    combine_if_last();
    const uint64_t partial = static_cast<uint64_t>(u.partial + u.split) * p.q_heads + first_head;
    for (uint32_t e = threadIdx.x; e < heads * D; e += kThreads) {
      const uint32_t h = e / D, c = e % D;
      float m = ml[h].x, l = 0.f, sum = 0.f;
#pragma unroll
      for (int w = 1; w < WARPS; w++) m = fmaxf(m, ml[w * kHeads + h].x);
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        const float2 x = ml[w * kHeads + h];
        if (x.y > 0.f) {  // a warp without tiles wrote no output
          const float scale = ex2(x.x - m);
          l += scale * x.y;
          sum += scale * reinterpret_cast<const float*>(shared + (w * STAGES + slots[w]) *
                                                                     kTile)[h * kMergeRow + c];
        }
      }
      if (u.splits == 1) {
        if (ANY) l += exponential_of_sink(scores, first_head + h, m);
        p.out[(static_cast<uint64_t>(u.row) * p.q_heads + first_head) * D + e] =
            __float2bfloat16(sum / l);
      } else {
        __stcg(&p.partial_o[partial * D + e], sum);
        if (c == 0) __stcg(&p.partial_ml[partial + h], make_float2(m, l));
      }
    }
    const uint32_t taken = reinterpret_cast<const uint32_t*>(shared + kNextOffset)[0];
    __syncthreads();  // frees the slots
    if (u.splits > 1) {
      pending = unit;
      if (threadIdx.x == 0) {
        __threadfence();  // after the barrier: orders the whole CTA's partials before the count
        arrived = atomicAdd(&p.counters[u.counter * unit_heads + unit_head], 1) + 1;
      }
    }
    unit = next;
    next = taken;
  }

  // Says whether the pending unit was the last of its sequence. The count was asked for a whole
  // unit ago.
  __device__ __forceinline__ void publish_arrival() {
    if (threadIdx.x == 0 && pending != kNone) {
      const DecodeUnit& u = p.units[pending / unit_heads];
      const bool last = arrived == u.splits;
      if (last) {
        p.counters[u.counter * unit_heads + pending % unit_heads] = 0;
        __threadfence();
      }
      reinterpret_cast<uint32_t*>(shared + kLastOffset)[0] = last;
    }
  }

  // After a barrier: combines the pending unit's sequence if this CTA completed it.
  __device__ __forceinline__ void combine_if_last() {
    if (pending == kNone) return;
    if (reinterpret_cast<const uint32_t*>(shared + kLastOffset)[0]) {
      const uint32_t item = pending / unit_heads, unit_head = pending - item * unit_heads;
      const uint32_t group = p.q_heads / p.kv_heads, sub = unit_head % groups;
      combine(p.units[item], unit_head / groups * group + sub * kHeads,
              min(group - sub * kHeads, static_cast<uint32_t>(kHeads)));
    }
    pending = kNone;
  }

  // After the last unit.
  __device__ __forceinline__ void finish() {
    publish_arrival();
    __syncthreads();
    combine_if_last();
  }

  // Merges the units of a sequence in unit order, four channels a thread.
  __device__ __forceinline__ void combine(const DecodeUnit& u, uint32_t first_head,
                                          uint32_t heads) {
    const uint64_t base = static_cast<uint64_t>(u.partial) * p.q_heads + first_head;
    for (uint32_t e = threadIdx.x * 4; e < heads * D; e += kThreads * 4) {
      const float2* ml = p.partial_ml + base + e / D;
      const float4* o = reinterpret_cast<const float4*>(p.partial_o + base * D + e);
      float m = -INFINITY, l = 0.f;
#pragma unroll 16
      for (uint32_t s = 0; s < u.splits; s++) m = fmaxf(m, __ldcg(&ml[s * p.q_heads]).x);
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 16
      for (uint32_t s = 0; s < u.splits; s++) {
        const float2 x = __ldcg(&ml[s * p.q_heads]);
        const float4 v = __ldcg(o + static_cast<uint64_t>(s) * p.q_heads * (D / 4));
        const float scale = ex2(x.x - m);
        l += scale * x.y;
        sum.x += scale * v.x;
        sum.y += scale * v.y;
        sum.z += scale * v.z;
        sum.w += scale * v.w;
      }
      if (ANY) l += exponential_of_sink(scores, first_head + e / D, m);
      uint2 packed = make_uint2(pack_bf16(sum.x / l, sum.y / l), pack_bf16(sum.z / l, sum.w / l));
      *reinterpret_cast<uint2*>(
          p.out + (static_cast<uint64_t>(u.row) * p.q_heads + first_head) * D + e) = packed;
    }
  }
};

}  // namespace ebb

// Of head_dim D; CTAs that a multiprocessor should hold. The name's suffix: warps of a CTA, stages
// of a warp's ring.
#define EBB_DECODE_OF(NAME, D, WARPS, STAGES, CTAS, ANY)           \
  EBB_KERNEL(NAME, ebb::RingDecodeParams, WARPS * 32, CTAS) {      \
    EBB_DYNAMIC_SHARED(shared);                                    \
    ebb::DecodeAttention<D, WARPS, STAGES, ANY> kernel(p, shared); \
    kernel.run();                                                  \
  }
#define EBB_DECODE(NAME, D, WARPS, STAGES, CTAS) EBB_DECODE_OF(NAME, D, WARPS, STAGES, CTAS, false)
#define EBB_DECODE_ANY(NAME, D, WARPS, STAGES, CTAS) \
  EBB_DECODE_OF(NAME, D, WARPS, STAGES, CTAS, true)
